"""The `dspy` package: a prediction by a chat model, without its own cache."""

from collections.abc import Iterator

from tests.clients.scripts.command_line import print_steps


def run(url: str, note: str) -> Iterator[tuple[str, object]]:
    import dspy

    lm = dspy.LM("openai/gpt-4o", api_base=f"{url}/v1", api_key="sk-dspy", cache=False, temperature=0.0, num_retries=0)
    yield "call", lm("The word is salt. Repeat it.")
    yield "messages", lm(messages=[{"role": "user", "content": "The word is pepper. Repeat it."}])


if __name__ == "__main__":
    print_steps(run)
