"""Outputs may be sent during the next step, as on a GPU, or immediately."""

from typing import Any

import pytest

from kvproxy.apis.codecs.generation import Delta
from tests.engine.driven import Driven, prompts_of

REQUESTS: list[dict[str, Any]] = [
    {},
    {"count": 1},
    {"stop": ("a", "kq")},
    {"logprobs": 2, "prompt_logprobs": 1},
    {"n": 2, "temperature": 1.0, "seed": 7},
]


def _driven(overlap: bool, **settings: Any) -> Driven:
    driven = Driven(**settings)
    driven.engine._sends_during_next_step = overlap
    return driven


@pytest.mark.parametrize("settings", [{}, {"num_speculative_tokens": 3}, {"num_blocks": 40}])
def test_outputs_are_the_same(settings: dict[str, Any]) -> None:
    prompts, _ = prompts_of("llama")
    found = []
    for overlap in (False, True):
        driven = _driven(overlap, **settings)
        for number, (prompt, options) in enumerate(zip(prompts, REQUESTS, strict=True)):
            driven.submit(str(number), prompt, **options)
        driven.run()
        assert not any(driven.errors.values())
        found.append({id: [_without_times(piece) for piece in pieces] for id, pieces in driven.pieces.items()})
    assert found[0] == found[1]
    assert all(pieces[-1][4] for pieces in found[1].values()), "each ended"


def _without_times(piece: Delta) -> tuple[Any, ...]:
    return (
        piece.index,
        piece.text,
        piece.tokens,
        piece.logprobs,
        piece.finish_reason,
        piece.usage,
        piece.prompt_logprobs,
    )


def test_an_output_is_sent_after_the_next_step_is_computed() -> None:
    driven = _driven(True)
    driven.submit("a", prompts_of("llama")[0][0][:10], 3)
    sent = []
    while driven.engine.has_work:
        driven.step()
        sent.append(len(driven.pieces["a"]))
    assert sent == [0, 1, 3]


@pytest.mark.parametrize("at", [0, 2])
def test_an_error_while_sending_reaches_the_client(at: int) -> None:
    driven = _driven(True)
    calls: list[Delta] = []

    def emit(delta: Delta) -> None:
        calls.append(delta)
        if len(calls) == at + 1:
            raise ValueError("no such client")

    prompt, other = prompts_of("llama")[0][:2]
    driven.submit("a", prompt, 3, emit)
    driven.submit("b", other, 5)
    driven.run()
    assert len(driven.errors["a"]) == 1
    assert len(calls) == at + 1
    assert driven.done == ["b"]
    driven.submit("c", prompt, 1)
    driven.run()
    assert driven.usage["c"].cached_tokens == (len(prompt) - 1) // 4 * 4, "blocks remain cached"


def test_an_abort_drops_unsent_outputs() -> None:
    driven = _driven(True)
    prompts, (_, expected, *_) = prompts_of("llama")

    def emit(delta: Delta) -> None:
        raise RuntimeError("the client's event loop is closed")

    driven.submit("a", prompts[0][:10], 8, emit)
    driven.step()
    driven.engine.abort("a")
    assert not driven.engine._unsent, "sequences would stay in memory"
    driven.submit("a", prompts[1])
    driven.run()
    assert not driven.errors["a"]
    assert driven.tokens["a#0"] == expected


def test_outputs_precede_the_error_of_a_failed_step() -> None:
    driven = _driven(True)
    driven.submit("a", prompts_of("llama")[0][0][:10], 8)
    driven.step()
    driven.step()
    driven.engine._runner.execute_model = _fail  # type: ignore[method-assign]
    with pytest.raises(Exception, match="out of order"):
        driven.step()
    assert len(driven.pieces["a"]) == 2
    assert len(driven.errors["a"]) == 1


def _fail(*_: Any) -> Any:
    raise RuntimeError("out of order")
