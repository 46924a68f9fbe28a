"""What the flow asks of an API: which requests are alike, when an answer is complete, and how it looks as a stream."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from kvproxy.errors import KvproxyError


@dataclass(frozen=True, slots=True)
class Question:
    """The last user turn of a request, where it is text.

    Attributes:
        text: what the user asks.
        rest: the body without that text; questions are compared only where it is equal.
        similar: whether a similar question may be answered alike; else only an equal request is.
    """

    text: str
    rest: dict[str, Any]
    similar: bool


class Assembler(Protocol):
    """Puts a stream together to the object that the same request would have got without streaming."""

    done: bool
    """Whether the stream came to its proper end."""

    def push(self, data: bytes) -> None:
        """Take one event's data; raises any exception where it makes no sense."""

    def result(self, usage: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """The object, or None unless it is complete; `usage` counts where the stream carried none."""


class Dialect(Protocol):
    """One API. Objects of it hold no state; bodies are JSON objects of which nothing else is known."""

    name: str
    path: str
    irrelevant: frozenset[str]
    """Fields that cannot change the answer's content; everything else, known or not, is part of the key."""

    def check(self, body: dict[str, Any]) -> None:
        """Refuse what no server could answer; raises InvalidRequest."""

    def cacheable(self, body: dict[str, Any]) -> bool:
        """Whether an equal request may be given the same answer at all."""

    def question(self, body: dict[str, Any]) -> Question | None:
        """What to compare with earlier questions, None where only equal requests are answered alike."""

    def shown(self, body: dict[str, Any]) -> str:
        """What to show for the request in listings."""

    def complete(self, whole: dict[str, Any]) -> bool:
        """Whether an object is a finished answer, and no error or part of one."""

    def said(self, whole: dict[str, Any]) -> str | None:
        """What an answer says, where it is one text and nothing else; raises any exception where it is no answer."""

    def usage(self, whole: dict[str, Any]) -> tuple[int, int]:
        """Tokens of the prompt and of the answer."""

    def assembler(self) -> Assembler:
        """For one stream."""

    def replay(self, whole: dict[str, Any], body: dict[str, Any]) -> Iterator[bytes]:
        """An object as the events that a streaming request would have got."""

    def error(self, error: KvproxyError) -> dict[str, Any]:
        """An error of our own in the API's form."""


def text_of(content: Any, kind: str = "text") -> str | None:
    """The text of a message's content: a string, or a list of text parts and nothing else."""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == kind for part in content):
        return "".join(str(part.get("text", "")) for part in content)
    return None


def ask(body: dict[str, Any], field: str, last: dict[str, Any], text: str | None, similar: bool) -> Question | None:
    """The question in the last item of a list, if that is text of the user.

    Args:
        body: the request.
        field: name of the list.
        last: its last item.
        text: the item's text, None where it has other content too.
        similar: whether the rest of the request allows similar questions.
    """
    if text is None or not text.strip() or last.get("role") != "user":
        return None
    turn = {name: value for name, value in last.items() if name != "content"}
    return Question(text, body | {field: body[field][:-1], "last": turn}, similar)


def shown(value: Any) -> str:
    """A text as it is, anything else as JSON."""
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def counts(whole: dict[str, Any], prompt: str, completion: str) -> tuple[int, int]:
    """Two fields of an answer's usage."""
    usage = whole.get("usage") or {}
    return usage.get(prompt) or 0, usage.get(completion) or 0
