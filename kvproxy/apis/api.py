"""The interface of a cached API: cache keys, storable responses, and replay as a stream."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from kvproxy.apis.json import (
    Json,
    JsonMap,
    JsonObject,
    as_object,
    as_token_count,
    contains_any,
    dumps,
    field,
    loads,
    objects,
    text_of,
    to_text,
)
from kvproxy.apis.key_fields import KeyFields
from kvproxy.apis.not_stored import Cause, NotStored, UnstorableResponse
from kvproxy.apis.reported_usage import other_completion_tokens, separate_reasoning_tokens, usage_of
from kvproxy.apis.sse import Event
from kvproxy.errors import KvproxyError

ApiName = Literal["chat", "completions", "embeddings", "messages", "responses"]
TokenCounts: TypeAlias = tuple[int | None, int | None]
"""Numbers of prompt and completion tokens; None if they are unknown."""
STREAM_FIELD = "kvproxy_stream"
"""Field of a stored response with what only its stream had, such as the place of a field. Clients do not receive it."""
_STREAM_FIELDS = (f'"{STREAM_FIELD}"'.encode(),)
_TEXT_PARTS = ("text", "input_text")
# Agents such as Claude Code put context for the model beside the user's text, in parts of their own.
_REMINDER = "<system-reminder>"


@dataclass(frozen=True, slots=True)
class Question:
    """The last user turn of a request, as text.

    Attributes:
        rest: the other content of the request's body. Only questions with an equal `rest` are compared.
        allows_semantic: whether the response to a similar question may be served.
        turns_field: name of the field of `rest` with the earlier turns; empty if the API has no turns.
        earlier_texts: text of each earlier turn; None for a turn with other content, such as an image.
        parts: texts of the turn's parts, which are joined in `text`; empty if it has no parts.
    """

    text: str
    rest: JsonObject
    allows_semantic: bool
    turns_field: str = ""
    earlier_texts: Sequence[str | None] = ()
    parts: Sequence[str] = ()


class Assembler:
    """Assembles the events of a stream into the response that a request without `stream` receives.

    Attributes:
        done: the stream has sent its final event.
    """

    done = False

    def push(self, event: Event) -> None:
        """Add an event. Raises UnstorableResponse or another ValueError if the stream failed or is invalid."""
        part = as_object(loads(event.data))
        if event.name == b"error" or part.get("type") == "error" or part.get("error") is not None:
            raise UnstorableResponse(Cause.ERROR)
        if self.done:
            raise UnstorableResponse(Cause.INVALID, "an event after the end of the stream")
        self.add(part, event.name)

    def add(self, part: JsonObject, name: bytes) -> None:
        """Add the data of an event and its name, which is empty for most APIs."""
        raise NotImplementedError

    def result(self) -> JsonObject:
        """Return the response at the end of the stream. Raises UnstorableResponse or another ValueError."""
        raise NotImplementedError


class Api:
    """An API whose responses are cached. The default methods implement OpenAI's conventions."""

    name: ApiName
    path: str
    fields: KeyFields
    assembler: type[Assembler]
    has_stream_options = False
    """Whether streams report their usage only if the request has `stream_options.include_usage`."""
    has_engine_fields = True
    """Whether engines accept the body fields `cache_salt`, `priority`, and `session_id`, with which the proxy sends hints."""

    def check(self, body: JsonMap) -> None:
        raise NotImplementedError

    def is_cacheable(self, body: JsonMap) -> bool:
        """Whether an equal request may receive the same response."""
        return self.fields.never_cached_field(body) is None

    def separate_inputs(self, body: JsonMap) -> Sequence[Json]:
        """Return the inputs of an array that are cached one by one; empty if the request has one response as a whole."""
        return ()

    def in_other_format(self, body: JsonMap) -> JsonObject | None:
        """Return the body of a request with the same response in another format, see `convert`; None without one."""
        return None

    def convert(self, response: JsonMap, body: JsonMap) -> JsonObject | None:
        """Return the response to `in_other_format` in the format of a request's body; None if something would be lost."""
        return None

    def is_stored_by_provider(self, body: JsonMap) -> bool:
        """Whether the provider stores the response, so that a client can retrieve and delete it by its id."""
        return body.get("store", self.fields.defaults.get("store")) is True

    def question(self, body: JsonObject) -> Question | None:
        """Return the question for the semantic search; None if only an exact match is possible."""
        return None

    def display_text(self, body: JsonMap) -> str:
        """Return the last text of the user, which listings show; without one, the last message, or an empty text."""
        return last_user_text(body, "messages")

    def is_storable(self, response: JsonObject, body: JsonMap) -> bool:
        """Whether the response to a request with this body is complete and successful."""
        return self.why_not_stored(response, body) is None

    def why_not_stored(self, response: JsonObject, body: JsonMap) -> NotStored | None:
        """Return why the response to a request with this body must not be stored; None for a complete, successful one."""
        raise NotImplementedError

    def output_text(self, response: JsonMap) -> str | None:
        """Return the text of a response; None if it contains other output, such as a tool call."""
        return None

    def prompt_and_completion_tokens(self, response: JsonMap) -> TokenCounts:
        """Return the numbers of prompt and completion tokens; None if they are not reported."""
        return token_counts(response, "prompt_tokens", "completion_tokens")

    def replay(self, response: JsonObject, body: JsonMap) -> Iterator[bytes]:
        """Yield the events of a stream with a stored response, for a request with this body."""
        raise NotImplementedError(f"{self.name} are not streamed")


def response_for_client(stored: bytes) -> bytes:
    """Return a stored response without the facts of its stream (`STREAM_FIELD`)."""
    if not contains_any(stored, _STREAM_FIELDS):
        return stored
    response = as_object(loads(stored))
    response.pop(STREAM_FIELD, None)
    return dumps(response)


def last_turn_question(
    body: JsonObject, turns_field: str, turn_text: Callable[[JsonObject], str | None], *, allows_semantic: bool
) -> Question | None:
    """Return the question of a request; None unless its last turn is text of the user.

    `turn_text` returns the text of a turn, or None if the turn has other content.
    """
    turns = body.get(turns_field)
    if not isinstance(turns, list) or not turns or len(known := objects(turns)) < len(turns):
        return None
    turn, texts = known[-1], list(map(turn_text, known))
    *earlier, text = texts
    if text is None or not text.strip() or turn.get("role") != "user":
        return None
    last: JsonObject = {key: value for key, value in turn.items() if key != "content"}
    name = "last"
    while name in body:
        name += " turn"
    rest: JsonObject = {**body, turns_field: turns[:-1], name: last}
    parts = [to_text(part.get("text")) for part in objects(turn.get("content"))]
    return Question(text, rest, allows_semantic and None not in texts, turns_field, earlier, parts)


def content_text(turn: JsonObject) -> str | None:
    return text_of(turn.get("content"))


def last_user_text(body: JsonMap, name: str) -> str:
    """Return the last text of the user, or else the last item; agents send results of tools and context after it."""
    items = body.get(name)
    texts = (_text_for_people(item.get("content")) for item in reversed(objects(items)) if item.get("role") == "user")
    if (text := next(filter(str.strip, texts), None)) is not None:
        return text
    last = items[-1] if isinstance(items, list) and items else items
    return to_text(last.get("content", last) if isinstance(last, dict) else last)


def _text_for_people(content: Json) -> str:
    """Return the text of a message without other parts, such as images and reminders to the model."""
    if isinstance(content, str):
        return content
    texts = [to_text(part.get("text")) for part in objects(content) if part.get("type") in _TEXT_PARTS]
    return "".join(text for text in texts if not text.startswith(_REMINDER))


def token_counts(response: JsonMap, prompt_field: str, completion_field: str) -> TokenCounts:
    usage = usage_of(response)
    prompt, completion = as_token_count(field(usage, prompt_field)), as_token_count(field(usage, completion_field))
    if completion is None:
        return prompt, other_completion_tokens(usage)
    return prompt, completion + separate_reasoning_tokens(usage)


def openai_error(error: KvproxyError) -> JsonObject:
    return {"error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code}}
