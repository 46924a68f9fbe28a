"""The `openai` package: chat, tools, Responses, completions, and embeddings."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.clients.scripts.command_line import print_steps

PARAMETERS = {
    "type": "object",
    "properties": {"path": {"type": "string"}},
    "required": ["path"],
    "additionalProperties": False,
}
TOOL: Any = {"name": "read_file", "description": "Read a file.", "parameters": PARAMETERS}


def run(url: str, note: str) -> Iterator[tuple[str, object]]:
    import openai

    with openai.OpenAI(base_url=f"{url}/v1", api_key="sk-openai", max_retries=0) as client:
        yield "models", len(client.models.list().data)
        yield from _chat(client, note)
        yield from _responses(client, note)
        completion = client.completions.create(model="gpt-4o", prompt="The word is salt. Repeat it.", max_tokens=9)
        yield "completion", completion.choices[0].text
        embedding = client.embeddings.create(model="text-embedding-3-small", input=["a", "b"])
        yield "embeddings", [len(each.embedding) for each in embedding.data]


def _chat(client: Any, note: str) -> Iterator[tuple[str, object]]:
    asked: list[Any] = [{"role": "user", "content": "The word is salt. Repeat it."}]
    chat = client.chat.completions.create(model="gpt-5.6", messages=asked)
    yield "chat", (chat.choices[0].message.content, chat.usage.total_tokens > 0)
    with client.chat.completions.stream(model="gpt-5.6", messages=asked) as events:
        yield "chat stream", "".join(event.delta for event in events if event.type == "content.delta")
    messages: list[Any] = [{"role": "user", "content": f"What is the word in {note}?"}]
    options: dict[str, Any] = {"model": "gpt-5.6", "tools": [{"type": "function", "function": TOOL}]}
    for step in range(2):
        with client.chat.completions.stream(messages=messages, **options) as stream:
            message = stream.get_final_completion().choices[0].message
        messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
        for call in message.tool_calls or ():
            content = Path(json.loads(call.function.arguments)["path"]).read_text()
            messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
        yield f"chat tools {step}", message.content or [call.function.name for call in message.tool_calls]


def _responses(client: Any, note: str) -> Iterator[tuple[str, object]]:
    response = client.responses.create(model="gpt-5.6", input="The word is salt. Repeat it.", store=False)
    yield "response", response.output_text
    with client.responses.stream(model="gpt-5.6", input="The word is salt. Repeat it.", store=False) as events:
        deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
        yield "response stream", "".join(deltas)
    items: list[Any] = [{"role": "user", "content": f"What is the word in {note}?"}]
    for step in range(2):
        tools = [{"type": "function", "strict": True, **TOOL}]
        response = client.responses.create(model="gpt-5.6", input=items, tools=tools, store=False)
        for item in response.output:
            items.append(item.to_dict())
            if item.type == "function_call":
                content = Path(json.loads(item.arguments)["path"]).read_text()
                items.append({"type": "function_call_output", "call_id": item.call_id, "output": content})
        yield f"response tools {step}", response.output_text or response.output[0].name
    # Ids that live at the provider.
    first = client.responses.create(model="gpt-5.6", input="The word is pepper. Repeat it.")
    second = client.responses.create(model="gpt-5.6", input="Again.", previous_response_id=first.id)
    yield "previous response", second.output_text
    yield "retrieved response", client.responses.retrieve(first.id).output_text
    client.responses.delete(first.id)
    client.responses.delete(second.id)
    yield "deleted responses", 2


if __name__ == "__main__":
    print_steps(run)
