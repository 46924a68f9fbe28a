"""The `openai-agents` package: an agent with a tool, over chat and Responses, with and without a stream."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.clients.scripts.command_line import print_steps


def run(url: str, note: str) -> Iterator[tuple[str, object]]:
    import agents
    from openai import AsyncOpenAI

    agents.set_tracing_disabled(True)

    @agents.function_tool
    def read_file(path: str) -> str:
        """Read a file."""
        return Path(path).read_text()

    async def answers(model: Any) -> tuple[str, str]:
        agent: Any = agents.Agent("words", instructions="You look up words.", model=model, tools=[read_file])
        question = f"What is the word in {note}?"
        whole = await agents.Runner.run(agent, question)
        stream = agents.Runner.run_streamed(agent, question)
        async for _ in stream.stream_events():
            pass
        return whole.final_output, stream.final_output

    async def run_all() -> list[tuple[str, object]]:
        client = AsyncOpenAI(base_url=f"{url}/v1", api_key="sk-agents", max_retries=0)
        chat = agents.OpenAIChatCompletionsModel("gpt-5.1", client)
        responses = agents.OpenAIResponsesModel("gpt-5.1", client)
        return [("chat", await answers(chat)), ("responses", await answers(responses))]

    yield from asyncio.run(run_all())


if __name__ == "__main__":
    print_steps(run)
