"""Greedy answers of an engine that is stepped by hand."""

from kvproxy.engine.core import EngineCore
from kvproxy.generation import GenerationRequest, SamplingParams
from tests.reference.integrity import check_integrity


def run(engine: EngineCore, prompts: list[list[int]], n: int = 1, answer: int = 8) -> list[list[int]]:
    answers: dict[str, list[int]] = {}
    for number, prompt in enumerate(prompts):
        params = SamplingParams(max_tokens=answer, temperature=0.0, n=n)
        engine.add_request(
            GenerationRequest(str(number), tuple(prompt), params),
            lambda delta, number=number: answers.setdefault(f"{number}#{delta.index}", []).extend(delta.tokens),  # type: ignore[misc]
        )
    while engine.has_work:
        engine.step()
        check_integrity(engine.manager)
    return [answers[f"{number}#{index}"] for number in range(len(prompts)) for index in range(n)]
