"""Splits a prompt into regions in the order of chat templates: tools, system prompt, messages."""

from dataclasses import dataclass

from kvproxy.apis.codecs.codec import Conversation, PromptInput
from kvproxy.apis.json import JsonObject, dumps, text_of

TOOLS = "tools"
PROMPT = "prompt"


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a prompt.

    Attributes:
        name: `tools`, `prompt`, `system prompt`, or the role of a message and its number from 1.
        message: index of the message; None for `tools` and `prompt`.
    """

    name: str
    text: str
    message: int | None = None


def prompt_regions(form: PromptInput) -> list[Region]:
    """Return the regions of a prompt: all tools, then each message. A prompt of token ids has no region."""
    if isinstance(form, str):
        return [Region(PROMPT, form)]
    if not isinstance(form, Conversation):
        return []
    tools = [Region(TOOLS, "\n".join(map(tool_line, form.tools)))] if form.tools else []
    return [*tools, *(_message_region(index, message) for index, message in enumerate(form.messages))]


def tool_line(tool: JsonObject) -> str:
    return dumps(tool).decode()


def prompt_head(regions: list[Region]) -> str:
    """Return the text of the tools and the system prompt; without these, of the first message."""
    first = [region.text for region in regions if region.name in (TOOLS, "system prompt")]
    return "\n".join(first) if first else (regions[0].text if regions else "")


def _message_region(index: int, message: JsonObject) -> Region:
    role = str(message.get("role", ""))
    name = "system prompt" if role in ("system", "developer") and index == 0 else f"{role} message {index + 1}"
    calls = message.get("tool_calls")
    text = text_of(message.get("content")) or ""
    return Region(name, text + (dumps(calls).decode() if calls else ""), index)
