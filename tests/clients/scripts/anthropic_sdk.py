"""The `anthropic` package: messages, thinking, prompt caching, tools, and the tool runner with message threads."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.clients.scripts.command_line import print_steps

TOOL: Any = {
    "name": "read_file",
    "description": "Read a file.",
    "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
}


def run(url: str, note: str) -> Iterator[tuple[str, object]]:
    import anthropic

    with anthropic.Anthropic(base_url=url, api_key="sk-anthropic", max_retries=0) as client:
        asked: list[Any] = [{"role": "user", "content": "The word is salt. Repeat it."}]
        message = client.messages.create(model="claude-sonnet-5-5", max_tokens=99, messages=asked)
        yield "message", message.content[0].text
        with client.messages.stream(model="claude-sonnet-5-5", max_tokens=99, messages=asked) as stream:
            yield "stream", "".join(stream.text_stream)
        yield from _tools(client, note)
        count = client.messages.count_tokens(model="claude-sonnet-5-5", messages=asked)
        yield "count", count.input_tokens > 0
        yield from _tool_runner(anthropic, client, note)


def _tools(client: Any, note: str) -> Iterator[tuple[str, object]]:
    mark = {"cache_control": {"type": "ephemeral"}}
    system = [{"type": "text", "text": "You look up words. " * 300, **mark}]
    messages: list[Any] = [{"role": "user", "content": f"What is the word in {note}?"}]
    for step in range(2):
        with client.messages.stream(
            model="claude-opus-5",
            max_tokens=2_000,
            thinking={"type": "adaptive"},
            system=system,
            tools=[TOOL],
            messages=messages,
        ) as stream:
            message = stream.get_final_message()
        messages.append({"role": "assistant", "content": message.content})
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": Path(block.input["path"]).read_text()}
            for block in message.content
            if block.type == "tool_use"
        ]
        messages.append({"role": "user", "content": results})
        yield f"tools {step}", ([block.type for block in message.content], message.stop_reason)


def _tool_runner(anthropic: Any, client: Any, note: str) -> Iterator[tuple[str, object]]:
    @anthropic.beta_tool
    def read_file(path: str) -> str:
        """Read a file.

        Args:
            path: The path.
        """
        return Path(path).read_text()

    runner = client.beta.messages.tool_runner(
        model="claude-opus-5",
        max_tokens=999,
        tools=[read_file],
        messages=[{"role": "user", "content": f"What is the word in {note}?"}],
    )
    for step, message in enumerate(runner):
        yield f"tool runner {step}", message.stop_reason
        last = message
    yield "tool runner", last.content[-1].text


if __name__ == "__main__":
    print_steps(run)
