"""The `pydantic-ai` package: an agent with a tool, over chat, Responses, and Messages, with and without a stream."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.clients.scripts.command_line import print_steps


def run(url: str, note: str) -> Iterator[tuple[str, object]]:
    from pydantic_ai import Agent
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    openai = OpenAIProvider(base_url=f"{url}/v1", api_key="sk-pydantic-ai")
    models: dict[str, Any] = {
        "chat": OpenAIChatModel("gpt-5.1", provider=openai),
        "responses": OpenAIResponsesModel("gpt-5.1", provider=openai),
        "messages": AnthropicModel(
            "claude-sonnet-5-5", provider=AnthropicProvider(base_url=url, api_key="sk-pydantic-ai")
        ),
    }

    async def answers(agent: Any, question: str) -> tuple[str, str]:
        whole = await agent.run(question)
        async with agent.run_stream(question) as stream:
            return whole.output, await stream.get_output()

    async def run_all() -> list[tuple[str, object]]:
        steps: list[tuple[str, object]] = []
        for name, model in models.items():
            agent: Any = Agent(model, instructions="You look up words.")

            @agent.tool_plain
            def read_file(path: str) -> str:
                """Read a file."""
                return Path(path).read_text()

            steps.append((name, await answers(agent, f"What is the word in {note}?")))
        return steps

    yield from asyncio.run(run_all())


if __name__ == "__main__":
    print_steps(run)
