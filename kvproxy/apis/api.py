"""What the flow asks of an API: which requests are alike, when an answer may be kept, and how it looks as a stream."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from kvproxy.apis.json import JsonMap, JsonObject, field
from kvproxy.apis.sse import Event
from kvproxy.errors import KvproxyError

ApiName = Literal["chat", "completions", "embeddings", "messages", "responses"]


@dataclass(frozen=True, slots=True)
class Question:
    """The last user turn of a request, where it is text.

    Attributes:
        text: what the user asks.
        rest: the body without that text; questions are compared only where it is equal.
        similar: whether a similar question may be answered alike; else only an equal request is.
    """

    text: str
    rest: JsonObject
    similar: bool


class Assembler(Protocol):
    """Puts an upstream's stream together to the object that the same request would have got without streaming."""

    done: bool
    """Whether the stream came to its proper end."""

    def push(self, event: Event) -> None:
        """Take one event; raises ValueError, KeyError or TypeError where it makes no sense."""

    def result(self) -> JsonObject | None:
        """The object; None unless it is whole."""


class Api(Protocol):
    """One API. Its objects hold no state; a body is a JSON object of which nothing else is known."""

    name: ApiName
    path: str
    irrelevant: frozenset[str]
    """Fields that cannot change the answer; everything else, known or not, is part of the key."""

    def check(self, body: JsonMap) -> None:
        """Refuse what no server could answer; raises InvalidRequest."""

    def cacheable(self, body: JsonMap) -> bool:
        """Whether an equal request may be given the same answer at all."""

    def question(self, body: JsonObject) -> Question | None:
        """What to compare with earlier questions; None where only equal requests are answered alike."""

    def shown(self, body: JsonMap) -> str:
        """What a listing shows for the request."""

    def keeps(self, whole: JsonObject, body: JsonMap) -> bool:
        """Whether an object is a finished answer that may be given again: no error, no part of one, nothing cut short."""

    def said(self, whole: JsonMap) -> str | None:
        """What an answer says, where it is one text and nothing else."""

    def usage(self, whole: JsonMap) -> tuple[int, int]:
        """Tokens of the prompt and of the answer; 0 where the answer does not tell."""

    def assembler(self) -> Assembler:
        """For one stream."""

    def replay(self, whole: JsonObject, body: JsonMap) -> Iterator[bytes]:
        """A kept answer as the events that a streaming request would have got."""

    def error(self, error: KvproxyError) -> JsonObject:
        """An error of our own in the API's form."""


def ask(body: JsonObject, name: str, last: JsonObject, text: str | None, similar: bool) -> Question | None:
    """The question in the last item of a list, if that is text of the user.

    Args:
        body: the request.
        name: the list's field.
        last: its last item.
        text: the item's text; None where it has other content too.
        similar: whether the rest of the request allows similar questions.
    """
    before = body[name]
    if text is None or not text.strip() or last.get("role") != "user" or not isinstance(before, list):
        return None
    turn: JsonObject = {key: value for key, value in last.items() if key != "content"}
    return Question(text, {**body, name: before[:-1], "last": turn}, similar)


def counts(whole: JsonMap, prompt: str, completion: str) -> tuple[int, int]:
    """Two fields of an answer's usage."""
    usage = whole.get("usage")
    return _count(field(usage, prompt)), _count(field(usage, completion))


def _count(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 2**53 else 0


def openai_error(error: KvproxyError) -> JsonObject:
    """An error in OpenAI's form."""
    return {
        "error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code},
    }
