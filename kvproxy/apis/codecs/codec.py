"""The interface of codecs between the wire formats and the embedded engine."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.codecs.output_formats import ToolUse
from kvproxy.apis.json import Json, JsonMap, JsonObject
from kvproxy.generation import Delta, Grammar, SamplingParams


@dataclass(frozen=True, slots=True)
class Conversation:
    """Input of a chat template: messages and tools in the format of OpenAI's chat completions."""

    messages: tuple[JsonObject, ...]
    tools: tuple[JsonObject, ...] = ()

    def chat_fields(self) -> JsonObject:
        messages: JsonObject = {"messages": list[Json](self.messages)}
        return {**messages, "tools": list[Json](self.tools)} if self.tools else messages


PromptInput: TypeAlias = Conversation | str | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DecodedRequest:
    """A request for the embedded engine.

    Attributes:
        echo: whether the response begins with the prompt.
        salt, queue_priority: see `GenerationRequest`.
    """

    prompt: PromptInput
    sampling: SamplingParams
    echo: bool = False
    salt: str | None = None
    queue_priority: int = 0
    grammar: Grammar | None = None
    tools: ToolUse | None = None


@dataclass(frozen=True, slots=True)
class Echo:
    """The prompt that a response to a request with `echo` repeats. Its `first_token` has no log-probability."""

    text: str
    first_token: str


class ResponseEncoder(Protocol):
    """Encodes one response.

    Call `write` with each piece, then `end` for the last events of a stream, or `response` for a complete response.
    """

    def write(self, piece: Delta) -> Iterator[bytes]: ...

    def end(self) -> Iterator[bytes]: ...

    def response(self) -> JsonObject: ...


@dataclass(frozen=True, slots=True)
class Codec:
    """Decodes requests and encodes responses of one API.

    Attributes:
        decode_prompt: returns the prompt of a body. Raises InvalidRequest for parts other than text.
        decode: converts a body to a request for the engine. Raises InvalidRequest for unsupported fields.
        encoder: creates an encoder from the request, the model's name, and the prompt to echo.
    """

    decode_prompt: Callable[[JsonMap], PromptInput]
    decode: Callable[[JsonMap, SamplingParams], DecodedRequest]
    encoder: Callable[[ApiRequest, str, Echo | None], ResponseEncoder]
