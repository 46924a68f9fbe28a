"""The `litellm` package: chat, streams, tools, Messages, Responses, and embeddings."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.clients.scripts.command_line import print_steps
from tests.clients.scripts.openai_sdk import TOOL


def run(url: str, note: str) -> Iterator[tuple[str, object]]:
    import litellm

    asked = [{"role": "user", "content": "The word is salt. Repeat it."}]
    for model, base in (("openai/gpt-5.1", f"{url}/v1"), ("anthropic/claude-sonnet-5-5", url)):
        options: dict[str, Any] = {"model": model, "api_base": base, "api_key": "sk-litellm", "num_retries": 0}
        yield model, litellm.completion(messages=asked, **options).choices[0].message.content
        parts = litellm.completion(messages=asked, stream=True, **options)
        yield f"{model} stream", "".join(part.choices[0].delta.content or "" for part in parts)
        messages: list[Any] = [{"role": "user", "content": f"What is the word in {note}?"}]
        for step in range(2):
            tools = [{"type": "function", "function": TOOL}]
            message = litellm.completion(messages=messages, tools=tools, **options).choices[0].message
            messages.append(message)
            for call in message.tool_calls or ():
                content = Path(json.loads(call.function.arguments)["path"]).read_text()
                messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
            yield f"{model} tools {step}", message.content or [call.function.name for call in message.tool_calls]
    embedding = litellm.embedding(
        model="openai/text-embedding-3-small", input=["a"], api_base=f"{url}/v1", api_key="sk-litellm"
    )
    yield "embeddings", len(embedding.data[0]["embedding"])


if __name__ == "__main__":
    print_steps(run)
