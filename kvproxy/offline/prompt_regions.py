"""A prompt as the regions that it is made of, in the order in which servers write them: tools, system prompt, messages."""

from dataclasses import dataclass

from kvproxy.apis.codecs.codec import Conversation, PromptInput
from kvproxy.apis.json import JsonObject, dumps, text_of

TOOLS = "tools"
PROMPT = "prompt"


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a prompt.

    Attributes:
        name: `tools`, `prompt`, or the message's role and its number from 1.
        message: which message it is, from 0; None for tools and plain prompts.
    """

    name: str
    text: str
    message: int | None = None


def regions_of(form: PromptInput) -> list[Region]:
    """The regions of a prompt; none for one that is given in token ids."""
    if isinstance(form, str):
        return [Region(PROMPT, form)]
    if not isinstance(form, Conversation):
        return []
    tools = [Region(TOOLS, "\n".join(written(tool) for tool in form.tools))] if form.tools else []
    return [*tools, *(_message(number, message) for number, message in enumerate(form.messages))]


def _message(number: int, message: JsonObject) -> Region:
    role = str(message.get("role", ""))
    name = "system prompt" if role in ("system", "developer") and number == 0 else f"{role} message {number + 1}"
    calls = message.get("tool_calls")
    said = text_of(message.get("content")) or ""
    return Region(name, said + (dumps(calls).decode() if calls else ""), number)


def written(tool: JsonObject) -> str:
    """A tool as one line."""
    return dumps(tool).decode()


def head_of(regions: list[Region]) -> str:
    """What a family of prompts has in common if anything: tools and system prompt, else the first message."""
    first = [region.text for region in regions if region.name in (TOOLS, "system prompt")]
    return "\n".join(first) if first else (regions[0].text if regions else "")
