"""A format of request logs: its signature, and how to read a row."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from types import MappingProxyType
from typing import Literal

from kvproxy.analyse.log_formats.json_texts import decoded
from kvproxy.analyse.log_formats.labels import Labels
from kvproxy.apis import APIS
from kvproxy.apis.api import Api, ApiName
from kvproxy.apis.json import Json, JsonMap, JsonObject, as_list, as_object, field, objects
from kvproxy.apis.modalities import reported_modalities, with_region
from kvproxy.apis.service_tiers import logged_tier, named_tier
from kvproxy.errors import InvalidRequest
from kvproxy.settings.journal import LIST_CURRENCY

PROMPT_FIELDS = ("messages", "prompt", "input")
# Fields of compatible servers that change the prompt or the response: vLLM, SGLang, llama.cpp, OpenRouter, Mistral, Perplexity.
_EXTENSIONS = frozenset(
    "add_generation_prompt add_special_tokens allowed_token_ids bad_words cache_salt chat_template chat_template_kwargs"
    " continue_final_message documents dynatemp_range enable_thinking extra_body frequency_penalty grammar guided_choice"
    " guided_decoding_backend guided_grammar guided_json guided_regex ignore_eos include_reasoning json_schema"
    " length_penalty logits_processors lora_path max_completion_tokens min_p min_tokens mirostat n_predict plugins priority"
    " prompt_logprobs provider random_seed reasoning regex repetition_penalty response_format return_token_ids route"
    " safe_prompt search_domain_filter search_recency_filter skip_special_tokens spaces_between_special_tokens"
    " stop_sequences stop_token_ids structured_outputs thinking top_a top_k transforms truncate_prompt_tokens typical_p"
    " use_beam_search web_search_options xtc_probability models anthropic_version anthropic_beta".split()
)
_MESSAGES_FIELDS = {"system", "stop_sequences", "thinking", "anthropic_version", "anthropic_beta"}
_MESSAGES_BLOCKS = {"tool_use", "tool_result", "image", "document", "thinking"}
_PROMPTS: Mapping[ApiName, str] = MappingProxyType(
    {"chat": "messages", "messages": "messages", "completions": "prompt", "embeddings": "input", "responses": "input"}
)
_OUTPUTS = {"choices", "content", "output", "data"}
_RESPONSES_FIELDS = set("instructions max_output_tokens previous_response_id reasoning store text tools".split())


Assumption = Literal["one request", "short prompts"]


@dataclass(frozen=True, slots=True)
class SummedUsage:
    """The requests of a report of usage, whose tokens are one sum, without the limits of one request.

    Attributes:
        requests: their number; None if the report does not state it.
        prompt_tokens, completion_tokens: None if unknown. The prompt includes the tokens of the provider's cache.
        cached_tokens, written_5m, written_1h: tokens read from the provider's cache, and written to it; None if unknown.
        seconds: length of the period that begins at their time; 0 if unknown.
        priced_length: length of a prompt that has their price; None for the mean of the requests.
        modalities: audio and image tokens, see `apis/modalities.py`; None without any.
        is_of_local_day: the day is that of the tool's time zone, which is unknown, and not of UTC.
        assumption: what their price assumes; None if the report states it.
    """

    requests: int | None
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None = None
    written_5m: int | None = None
    written_1h: int | None = None
    seconds: float = 0.0
    priced_length: int | None = None
    modalities: str | None = None
    is_of_local_day: bool = False
    assumption: Assumption | None = None


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """A request of a log.

    Attributes:
        line: number of its line, or of its item in a JSON array, from 1.
        body: request body, in which `model` is set and `stream` is false.
        headers: lower-case names.
        time: arrival in seconds since the epoch; None if not logged.
        response: response body, or only its text; None if not logged.
        seconds: duration until the response ended; 0 if unknown.
        first_seconds: duration until the response began; None if unknown.
        project: folder in which the client ran; empty if not logged.
        client: name of its API key, or else of its user; the program that sent it for a transcript. Empty if unknown.
        team: name of the client's team; empty if unknown.
        key: digest or name of its API key, which has a cache of its own; empty if unknown.
        is_transcript: it is from the transcript of an agent.
        is_engine: a self-hosted engine answered it.
        unreadable: headings of columns whose cells have no number of tokens.
        cost: money that the log states for the request; None if it states none.
        currency: currency of this money.
        names_model: the logged request names its model.
        processing: service tier that the log implies or states, such as `batch`; if empty, body and response decide.
        summed: the requests whose sum the usage is, in a report of usage; None for one request.
        provider: the provider whose report of usage it is from; empty for other logs.
        batch_id: the `custom_id` of its line in the input or the output of a batch; empty for other logs.
        columns: texts in the row of a table or of a log for a bill, by `letters_of` the heading.
        usage: usage of a request whose response is not logged; None if the response decides.
    """

    line: int
    api: Api
    body: JsonObject
    headers: Mapping[str, str] = dataclass_field(default_factory=dict)
    time: float | None = None
    response: JsonObject | str | None = None
    seconds: float = 0.0
    project: str = ""
    client: str = ""
    names_model: bool = True
    processing: str | None = None
    summed: SummedUsage | None = None
    usage: SummedUsage | None = None
    team: str = ""
    key: str = ""
    is_transcript: bool = False
    is_engine: bool = False
    unreadable: tuple[str, ...] = ()
    cost: float | None = None
    currency: str = LIST_CURRENCY
    first_seconds: float | None = None
    provider: str = ""
    batch_id: str = ""
    columns: Mapping[str, str] = dataclass_field(default_factory=dict)

    @property
    def has_prompt(self) -> bool:
        return any(self.body.get(name) for name in PROMPT_FIELDS)

    @property
    def service_tier(self) -> str | None:
        """The tier that decides the price; see `apis/service_tiers.py`. None for the standard tier."""
        if self.processing:
            return named_tier(self.processing)
        return logged_tier(self.body, self.response if isinstance(self.response, dict) else {})

    @property
    def modalities(self) -> str | None:
        """Audio and image tokens, and the region, see `apis/modalities.py`; None without any."""
        response = self.response if isinstance(self.response, dict) else {}
        if (usage := self.summed or self.usage) is not None:
            return with_region(usage.modalities, field(response.get("usage"), "inference_geo"))
        return reported_modalities(response)


@dataclass(frozen=True, slots=True)
class Row:
    """A JSON object of a log, such as a line, and the model of requests that name none."""

    number: int
    value: JsonObject
    model: str


class SkipRow(Exception):
    """The row has no successful request to a cached API. The text is the cause, such as `failed`."""


class WithoutPrompts(InvalidRequest):
    """A log has usage or costs, of which it has a bill, and no prompt."""


ANSWERED_BY_CACHE = "answered by a cache of the gateway"
"""Cause to skip a row: neither a provider nor an engine received its request."""
_HITS = ("true", "hit", "semantic hit")


@dataclass(frozen=True, slots=True)
class LogFormat:
    """A format of request logs.

    Attributes:
        name: value of `--format`.
        title: name for people.
        signature: paths of the fields that a row of this format has; `a|b` names alternatives.
        read: yields the requests of a row. Raises SkipRow, or InvalidRequest for a malformed row.
        has_requests: False for a known format without prompts; `read` then raises the error that names the fix.
        read_usage: yields requests without prompts, for bills; None if `read` yields all requests.
        costs: paths of the fields with the money in US dollars that a row's request cost; the first one with an amount counts.
    """

    name: str
    title: str
    signature: tuple[str, ...]
    read: Callable[[Row], Iterable[LoggedRequest]]
    has_requests: bool = True
    read_usage: Callable[[Row], Iterable[LoggedRequest]] | None = None
    costs: tuple[str, ...] = ()

    def missing(self, value: JsonObject) -> list[str]:
        """Return the fields of the signature that a row lacks."""
        return [paths for paths in self.signature if not any(has_path(value, path) for path in paths.split("|"))]

    def matches(self, value: JsonObject) -> bool:
        return not self.missing(value)


def has_path(value: Json, path: str) -> bool:
    for name in path.split("."):
        if not isinstance(value, dict) or value.get(name) is None:
            return False
        value = value[name]
    return True


def request_of(
    row: Row,
    body: JsonObject,
    *,
    api: Api | None = None,
    headers: Mapping[str, str] = MappingProxyType({}),
    time: float | None = None,
    response: JsonObject | str | None = None,
    seconds: float = 0.0,
    labels: Labels = Labels(),
    is_engine: bool = False,
) -> LoggedRequest:
    """Return the request with a body. Raises InvalidRequest if its API is ambiguous or its prompt is missing.

    Without `api`, the form of the response determines the API if the body fits, else the body does.
    """
    if not any(body.get(name) for name in PROMPT_FIELDS):
        raise InvalidRequest(f"the request has no {', '.join(PROMPT_FIELDS[:-1])}, or {PROMPT_FIELDS[-1]}")
    if any(isinstance(body.get(name), int | float) for name in PROMPT_FIELDS):
        raise InvalidRequest("the prompt is a number: kvproxy log prints no whole prompts, but cache export does")
    if api is None:
        name = _fitting_api(body, response) or detect_api(body)
        api = None if name is None else APIS[name]
    if api is None:
        paths = ", ".join(api.path for api in APIS.values())
        raise InvalidRequest(f"the API is ambiguous: add the route as url or path, one of {paths}")
    names_model = bool(body.get("model"))
    named = (body if names_model else body | {"model": row.model}) | {"stream": False}
    return LoggedRequest(
        row.number,
        api,
        named,
        headers,
        time,
        response,
        seconds,
        project=labels.project,
        client=labels.client,
        names_model=names_model,
        team=labels.team,
        key=labels.key,
        is_engine=is_engine,
    )


def known_fields(fields: JsonMap, api: Api | None = None) -> JsonObject:
    """Return the fields that are fields of a request, without those of the log around it."""
    name = detect_api(fields)
    api = api or (None if name is None else APIS[name])
    apis = list(APIS.values()) if api is None else [api]
    known = _EXTENSIONS.union(
        *(candidate.fields.key | candidate.fields.ignored | candidate.fields.never_cached for candidate in apis)
    )
    return {name: value for name, value in fields.items() if name in known}


def detect_api(body: JsonMap) -> ApiName | None:
    """Return the API of a request body; None if the body fits several APIs, for example if it only has `input`."""
    if "messages" in body:
        return "messages" if _is_for_messages(body) else "chat"
    if "prompt" in body:
        return "completions"
    if "input" not in body:
        return None
    if {"dimensions", "encoding_format"} & set(body) or "embed" in str(body.get("model")).lower():
        return "embeddings"
    return "responses" if objects(body["input"]) or _RESPONSES_FIELDS & set(body) else None


def api_of_response(response: JsonMap) -> str | None:
    """Return the API of a response by its form; None for other objects, such as a usage or an error.

    Besides the cached APIs, it is the Converse API of Bedrock (`converse`), or `unknown` for another form with output.
    """
    object_name = str(response.get("object"))
    choice = next(iter(objects(response.get("choices"))), None)
    if response.get("type") == "message" or ("stop_reason" in response and choice is None):
        return "messages"
    if object_name == "response":
        return "responses"
    if object_name.startswith("chat.completion") or field(choice, "message") is not None:
        return "chat"
    if object_name == "text_completion" or isinstance(field(choice, "text"), str):
        return "completions"
    if objects(response.get("data")) and field(objects(response["data"])[0], "embedding") is not None:
        return "embeddings"
    if "stopReason" in response or field(response.get("output"), "message") is not None:
        return "converse"
    return "unknown" if _OUTPUTS & set(response) and not response.get("error") else None


def _fitting_api(body: JsonMap, response: JsonObject | str | None) -> ApiName | None:
    """Return the API of a response's form if it reads a prompt from a field of this body."""
    if not isinstance(response, dict):
        return None
    name, usage = api_of_response(response), response.get("usage")
    counts = set(usage) if isinstance(usage, dict) else set()
    if name is None and "messages" in body and "input_tokens" in counts and "prompt_tokens" not in counts:
        # Only the usage was logged.
        return "messages"
    return next((api for api, prompt in _PROMPTS.items() if api == name and prompt in body), None)


def _is_for_messages(body: JsonMap) -> bool:
    contents = [turn["content"] for turn in objects(body["messages"]) if isinstance(turn.get("content"), list)]
    return (
        bool(_MESSAGES_FIELDS & set(body))
        or any("input_schema" in tool for tool in objects(body.get("tools")))
        or any(field(block, "type") in _MESSAGES_BLOCKS for content in contents for block in as_list(content))
    )


def api_of_route(route: str) -> Api | None:
    path = "/" + route.partition("://")[2].partition("/")[2] if "://" in route else route
    path = "/" + path.partition("?")[0].lstrip("/")
    return next(
        (api for api in APIS.values() if path.endswith(api.path) or f"/v1{path}" == api.path or route == api.name), None
    )


def decoded_response(value: Json) -> JsonObject | str | None:
    """Return a response body, or its text; None without a response."""
    document = decoded(value)
    if isinstance(document, dict):
        inner = decoded(document.get("body"))
        return (inner if isinstance(inner, dict) else document) or None
    return document if isinstance(document, str) and document else None


def chat_response(message: Json) -> JsonObject | str | None:
    """Return a response from an answer: a response body, a message, a list of messages, or a text."""
    answer = decoded(message)
    if isinstance(answer, list):
        answer = next((item for item in reversed(answer) if isinstance(item, dict)), None)
    if isinstance(answer, dict) and "content" in answer and "choices" not in answer and answer.get("type") != "message":
        return {"object": "chat.completion", "choices": [{"index": 0, "finish_reason": "stop", "message": answer}]}
    return decoded_response(answer)


def first_of(value: JsonMap, *paths: str) -> Json:
    """Return the first present field of several, by paths such as `response.body`."""
    for path in paths:
        inner: Json = dict(value)
        for name in path.split("."):
            inner = field(inner, name)
        if inner is not None:
            return inner
    return None


def is_failed(status: Json) -> bool:
    """Whether a status, a number or a word, is one of a failed request."""
    if isinstance(status, str) and len(status) < 10 and status.isdecimal():
        status = int(status)
    if isinstance(status, int) and not isinstance(status, bool):
        return not 200 <= status < 300
    return isinstance(status, str) and status.lower() in (
        "failure",
        "failed",
        "error",
        "errored",
        "timeout",
        "cancelled",
    )


def is_cache_hit(value: Json) -> bool:
    """Whether the value of a log's field for its cache, a bool or a word, means a hit."""
    return value is True or (isinstance(value, str) and value.lower() in _HITS)


def conversation_requests(
    row: Row, turns: Iterable[tuple[str, Json]], fields: JsonObject | None = None, time: float | None = None
) -> Iterable[LoggedRequest]:
    """Yield a chat request for each answer of a recorded conversation. `turns` are roles and contents."""
    messages: list[Json] = []
    for role, content in turns:
        if role == "assistant" and messages:
            body: JsonObject = {**(fields or {}), "messages": list(messages)}
            response = chat_response({"role": role, "content": content})
            yield request_of(row, body, api=APIS["chat"], time=time, response=response)
        messages.append({"role": role, "content": content})


def require_object(value: Json, name: str) -> JsonObject:
    try:
        return as_object(value)
    except ValueError:
        raise InvalidRequest(f"{name} is not a JSON object") from None
