"""Recognises runs of coding agents without a user, and their requests for summaries and titles."""

import re
from collections.abc import Iterator

from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.json import Json, field, objects

HEADLESS_TAG = "headless"
"""Tag of the requests of runs without a user."""
_BILLING_BLOCK = "x-anthropic-billing-header:"
# Claude Code writes its entry point into the first system block and into the user agent: `cli` is the terminal of a person.
_ENTRY_POINT = re.compile(r"(?:cc_entrypoint=|\(external, ?)(sdk-[a-z]+)")
# Beginnings of the last message or of the system prompt of requests that summarise or name a conversation, as Claude Code
# 2.1, opencode 1.18, and Codex 0.171 send them.
_SINGLE = (
    "Your task is to create a detailed summary of",
    "You are a helpful AI assistant tasked with summarizing conversations",
    "You are an anchored context summarization assistant",
    "You are performing a CONTEXT CHECKPOINT COMPACTION",
    "You are a title generator",
    "Generate a concise, sentence-case title",
    "Generate a title for this conversation",
    "Analyze if this message indicates a new conversation topic",
    "Summarize this coding conversation in under",
)
_KIND_LETTERS = 64
_INSTRUCTIONS = ("system", "developer")


def is_headless(request: ApiRequest) -> bool:
    """Whether an agent runs without a person who could continue the conversation after a pause."""
    if request.headers.get("originator") == "codex_exec":
        return True
    blocks = request.body.get("system")
    first = next((text for text in _texts(blocks) if text.startswith(_BILLING_BLOCK)), "")
    return bool(_ENTRY_POINT.search(f"{first} {request.headers.get('user-agent', '')}"))


def is_single_request(request: ApiRequest) -> bool:
    """Whether an agent asks for a summary or a title of a conversation, which no later request continues."""
    turns = objects(request.body.get("messages")) or objects(request.body.get("input"))
    last = list(_texts(turns[-1].get("content")))[-1:] if turns else []
    return any(text.lstrip().startswith(_SINGLE) for text in (*last, *_instructions(request)))


def request_kind(request: ApiRequest) -> str:
    """Return a name that requests for the same purpose have in common: the beginning of their instructions."""
    instructions = next((text.strip() for text in _instructions(request) if text.strip()), "")
    mode = "headless" if is_headless(request) else ""
    tools = "tools" if request.body.get("tools") else ""
    return f"{request.tenant}\0{request.model}\0{mode}\0{tools}\0{instructions[:_KIND_LETTERS]}"


def _instructions(request: ApiRequest) -> Iterator[str]:
    body = request.body
    for value in (body.get("system"), body.get("instructions")):
        yield from (text for text in _texts(value) if not text.startswith(_BILLING_BLOCK))
    for turn in objects(body.get("messages")) or objects(body.get("input")):
        if turn.get("role") not in _INSTRUCTIONS:
            return
        yield from _texts(turn.get("content"))


def _texts(content: Json) -> Iterator[str]:
    if isinstance(content, str):
        yield content
        return
    for block in objects(content):
        if isinstance(text := field(block, "text"), str):
            yield text
