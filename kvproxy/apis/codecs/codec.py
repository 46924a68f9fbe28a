"""The interface of codecs between the wire formats and the embedded engine."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.codecs.generation import Delta, FinishReason, Grammar, SamplingParams, TokenLogprob, ToolCall
from kvproxy.apis.json import Json, JsonMap, JsonObject


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
class ToolUse:
    """Tools that a response may call: JSON schemas of their parameters, by name. `required`: the response must call a tool."""

    schemas: dict[str, JsonObject]
    required: bool
    parallel: bool = True


@dataclass(frozen=True, slots=True)
class DecodedRequest:
    """A request for the embedded engine.

    Attributes:
        echo: the response begins with the prompt.
        ignored: names of fields that the engine does not honour, and that do not change the form of the response.
    """

    prompt: PromptInput
    sampling: SamplingParams
    echo: bool = False
    salt: str | None = None
    queue_priority: int = 0
    grammar: Grammar | None = None
    tools: ToolUse | None = None
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Echo:
    """The prompt at the beginning of a response. Its `first_token` has no log-probability."""

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

    The decoders raise InvalidRequest for content that the engine does not support, such as images.
    """

    decode_prompt: Callable[[JsonMap], PromptInput]
    decode: Callable[[JsonMap, SamplingParams], DecodedRequest]
    encoder: Callable[[ApiRequest, str, Echo | None], ResponseEncoder]


@dataclass(slots=True)
class CollectedChoice:
    text: str = ""
    reasoning: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_string: str | None = None
    completion_tokens: int = 0
    reasoning_tokens: int = 0


class CollectedOutput:
    """All completions of one prompt, by their index. `prompt_logprobs` begins with the second token of the prompt."""

    def __init__(self) -> None:
        self.choices: dict[int, CollectedChoice] = {}
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.prompt_logprobs: tuple[TokenLogprob, ...] = ()

    def add(self, piece: Delta) -> bool:
        """Add a piece; return whether it is the first piece of its completion."""
        is_first = piece.index not in self.choices
        if not self.choices:
            self.prompt_tokens, self.cached_tokens = piece.usage.prompt_tokens, piece.usage.cached_tokens
            self.prompt_logprobs = piece.prompt_logprobs
        choice = self.choices.setdefault(piece.index, CollectedChoice())
        choice.text += piece.text
        choice.reasoning += piece.reasoning
        if choice.reasoning and not choice.text:
            choice.reasoning_tokens += len(piece.tokens)
        choice.logprobs += piece.logprobs
        choice.calls += piece.calls
        choice.finish_reason = piece.finish_reason or choice.finish_reason
        choice.stop_string = piece.stop_string
        choice.completion_tokens = piece.usage.completion_tokens
        return is_first

    @property
    def completion_tokens(self) -> int:
        return sum(choice.completion_tokens for choice in self.choices.values())

    @property
    def reasoning_tokens(self) -> int:
        return sum(choice.reasoning_tokens for choice in self.choices.values())

    @property
    def first_choice(self) -> CollectedChoice:
        return self.choices.get(0) or CollectedChoice()
