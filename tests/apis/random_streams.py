"""Random streams of chat completions, completions, Messages, and Responses, in the forms that the official SDKs read."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from kvproxy.apis.api import ApiName
from kvproxy.apis.json import dumps

Event = dict[str, Any]
Draw = Callable[[st.SearchStrategy[Any]], Any]
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=6)
PIECES = st.lists(TEXTS, min_size=1, max_size=4)
COUNTS = st.integers(0, 2**31)
SAFE = {"hate": {"filtered": False, "severity": "safe"}}


@dataclass
class RandomStream:
    """A stream.

    Attributes:
        lost: fields of the response that the SDK does not read from a stream, because they arrive late.
        is_complete_at_end: the final event repeats the whole output.
    """

    api: ApiName
    events: list[Event]
    lost: set[str] = field(default_factory=set)
    is_complete_at_end: bool = True
    asks_usage: bool = False
    num_choices: int = 1


def pieces_of(draw: Draw, text: str) -> list[str]:
    cuts = sorted({0, len(text), *draw(st.lists(st.integers(0, len(text)), max_size=3))})
    return [text[start:end] for start, end in pairwise(cuts)]


def some(draw: Draw) -> bool:
    return bool(draw(st.booleans()))


def interleave(draw: Draw, parts: Iterable[list[Any]]) -> list[Any]:
    """Return all items; the items of each part keep their order, and the first items of the parts come first."""
    queues = [list(part) for part in parts if part]
    found = [queue.pop(0) for queue in queues]
    while queues := [queue for queue in queues if queue]:
        found.append(queues[draw(st.integers(0, len(queues) - 1))].pop(0))
    return found


def tool_call_deltas(draw: Draw) -> list[Event]:
    calls = []
    for index in range(draw(st.integers(1, 3))):
        arguments = dumps({draw(TEXTS): draw(TEXTS), "wei": 10 ** draw(st.integers(0, 30))}).decode()
        head = {"name": f"tool_{index}", "arguments": ""}
        call = [{"index": index, "id": f"call_{index}", "type": "function", "function": head}]
        call += [{"index": index, "function": {"arguments": part}} for part in pieces_of(draw, arguments)]
        calls.append([{"tool_calls": [each]} for each in call])
    return interleave(draw, calls)


def audio_deltas(draw: Draw) -> list[Event]:
    return [
        {"audio": {"id": "audio_1", "transcript": draw(TEXTS)}},
        *({"audio": {"data": draw(st.sampled_from(["QUJD", "REVG"]))}} for _ in range(draw(st.integers(1, 3)))),
        {"audio": {"transcript": draw(TEXTS), "expires_at": draw(COUNTS)}},
    ]


def reasoning_details_deltas(draw: Draw) -> list[Event]:
    parts = []
    for index in range(draw(st.integers(1, 2))):
        head = {"type": "reasoning.text", "index": index}
        items = [{**head, "text": text} for text in draw(PIECES)] + [{**head, "signature": "SIG"}]
        parts.append([{"reasoning_details": [each]} for each in items])
    return interleave(draw, parts)


def chat_deltas(draw: Draw) -> list[Event]:
    """Return the deltas of a choice after the first one."""
    kinds: list[Callable[[], list[Event]]] = [
        lambda: [{"content": text} for text in draw(PIECES)],
        lambda: [{"reasoning_content": text} for text in draw(PIECES)],
        lambda: [{"refusal": text} for text in draw(PIECES)],
        lambda: [
            {"function_call": {"name": "f", "arguments": ""}},
            *({"function_call": {"arguments": text}} for text in pieces_of(draw, '{"city": "Rome"}')),
        ],
        lambda: tool_call_deltas(draw),
        lambda: audio_deltas(draw),
        lambda: reasoning_details_deltas(draw),
        lambda: [{"images": [{"type": "image_url", "index": 0, "image_url": {"url": "data:image/png;base64,QUJD"}}]}],
        lambda: [{"annotations": [{"type": "url_citation", "url_citation": {"url": "https://example.org"}}]}],
        lambda: [{"vendor": {"note": text}} for text in ("one ", "two", "3")],
    ]
    chosen = draw(st.lists(st.sampled_from(range(len(kinds))), unique=True, max_size=4))
    return [delta for kind in chosen for delta in kinds[kind]()]


@st.composite
def chat_streams(draw: Draw) -> RandomStream:
    found = RandomStream("chat", [], asks_usage=some(draw), num_choices=draw(st.integers(1, 3)))
    head: Event = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "m"}
    head |= {"system_fingerprint": "fp", "service_tier": "default"} if some(draw) else {}
    choices = []
    for index in range(found.num_choices):
        first: Event = {"role": "assistant", "content": draw(st.sampled_from([None, ""]))}
        deltas = [first, *chat_deltas(draw)]
        if not any(each.keys() & {"content", "tool_calls", "audio"} for each in deltas[1:]):
            deltas.append({"content": draw(TEXTS)})
        empty = {"logprobs": None, "finish_reason": None}
        parts: list[Event] = [{"index": index, "delta": each, **empty} for each in deltas]
        if some(draw):
            for part in parts[1:]:
                part["logprobs"] = {"content": [{"token": draw(TEXTS), "logprob": -0.5}], "refusal": None}
        if some(draw):
            parts[0]["content_filter_results"] = SAFE
        last: Event = {"index": index, "delta": {}, "finish_reason": draw(st.sampled_from(["stop", "tool_calls"]))}
        if some(draw):
            last["stop_reason"] = 17
            found.lost.add("stop_reason")
        choices.append([*parts, last])
    chunks: list[Event] = [{**head, "choices": [part]} for part in interleave(draw, choices)]
    place = draw(st.sampled_from(["first", "all", "last", "none"]))
    citations = {"citations": ["https://example.org/a"], "search_results": [{"title": "A"}]}
    for number, chunk in enumerate(chunks):
        if place == "all" or (place == "first" and number == 0) or (place == "last" and number == len(chunks) - 1):
            chunk |= citations
    if place == "last":
        found.lost |= citations.keys()
    usage = {"prompt_tokens": draw(COUNTS), "completion_tokens": draw(COUNTS), "total_tokens": draw(COUNTS)}
    usage |= {"completion_tokens_details": {"reasoning_tokens": 3}} if some(draw) else {}
    if found.asks_usage:
        chunks = [{**chunk, "usage": None} for chunk in chunks] + [{**head, "choices": [], "usage": usage}]
    elif some(draw):
        chunks[-1]["usage"] = usage
    found.events = chunks
    return found


@st.composite
def completion_streams(draw: Draw) -> RandomStream:
    found = RandomStream("completions", [], asks_usage=some(draw), num_choices=draw(st.integers(1, 3)))
    head = {"id": "cmpl-1", "object": "text_completion", "created": 1_700_000_000, "model": "m"}
    choices = []
    for index in range(found.num_choices):
        parts: list[Event] = [
            {"index": index, "text": text, "logprobs": None, "finish_reason": None} for text in draw(PIECES)
        ]
        if some(draw):
            for part in parts:
                part["logprobs"] = {"tokens": [part["text"]], "token_logprobs": [-1.5], "top_logprobs": [None]}
        parts[-1]["finish_reason"] = "stop"
        choices.append(parts)
    found.events = [{**head, "choices": [part]} for part in interleave(draw, choices)]
    if found.asks_usage:
        usage = {"prompt_tokens": draw(COUNTS), "completion_tokens": draw(COUNTS), "total_tokens": draw(COUNTS)}
        found.events.append({**head, "choices": [], "usage": usage})
    return found


def message_block(draw: Draw) -> tuple[Event, list[Event]]:
    """Return the start of a content block, and its deltas."""
    kind = draw(st.sampled_from(["text", "thinking", "redacted", "tool", "server tool", "search", "citations"]))
    texts = draw(PIECES)
    if kind == "thinking":
        deltas: list[Event] = [{"type": "thinking_delta", "thinking": text} for text in texts]
        return {"type": "thinking", "thinking": "", "signature": ""}, [
            *deltas,
            {"type": "signature_delta", "signature": "SIG"},
        ]
    if kind == "redacted":
        return {"type": "redacted_thinking", "data": draw(TEXTS)}, []
    if kind in ("tool", "server tool"):
        given: Event = {"query": draw(TEXTS), "wei": 10 ** draw(st.integers(0, 40)), "list": [draw(COUNTS), None, 1.5]}
        text = draw(st.sampled_from(["", dumps(given).decode()]))
        name = (
            {"type": "tool_use", "name": "f"} if kind == "tool" else {"type": "server_tool_use", "name": "web_search"}
        )
        parts = ["", *pieces_of(draw, text)]
        return {**name, "id": "toolu_1", "input": {}}, [
            {"type": "input_json_delta", "partial_json": part} for part in parts
        ]
    if kind == "search":
        page = {
            "type": "web_search_result",
            "url": "https://example.org",
            "title": draw(TEXTS),
            "encrypted_content": "x",
        }
        return {"type": "web_search_tool_result", "tool_use_id": "toolu_1", "content": [page]}, []
    deltas = [{"type": "text_delta", "text": text} for text in texts]
    if kind == "citations":
        place = {"document_index": 0, "document_title": "A", "start_char_index": 0, "end_char_index": 2}
        citation = {"type": "char_location", "cited_text": draw(TEXTS), **place}
        deltas += [{"type": "citations_delta", "citation": citation}] * draw(st.integers(1, 2))
    return {"type": "text", "text": ""}, deltas


@st.composite
def message_streams(draw: Draw) -> RandomStream:
    usage = {"input_tokens": draw(COUNTS), "output_tokens": draw(COUNTS), "service_tier": "standard"}
    usage |= {"cache_creation_input_tokens": draw(COUNTS), "cache_read_input_tokens": 0} if some(draw) else {}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": []}
    message |= {"stop_reason": None, "stop_sequence": None, "usage": usage}
    events: list[Event] = [{"type": "message_start", "message": message}, {"type": "ping"}]
    for index in range(draw(st.integers(1, 4))):
        start, deltas = message_block(draw)
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        events += [{"type": "content_block_delta", "index": index, "delta": each} for each in deltas]
        events.append({"type": "content_block_stop", "index": index})
    end: Event = {"stop_reason": draw(st.sampled_from(["end_turn", "tool_use"])), "stop_sequence": None}
    final: Event = {"output_tokens": draw(COUNTS)}
    final |= {"input_tokens": draw(COUNTS), "cache_read_input_tokens": draw(COUNTS)} if some(draw) else {}
    final |= {"server_tool_use": {"web_search_requests": draw(COUNTS)}} if some(draw) else {}
    beside = {"context_management": {"applied_edits": []}} if some(draw) else {}
    events += [{"type": "message_delta", "delta": end, "usage": final, **beside}, {"type": "message_stop"}]
    return RandomStream("messages", events, lost=set(beside))


def output_item(draw: Draw, index: int) -> tuple[Event, list[Event]]:
    """Return an output item of a response, and its events."""
    kind = draw(st.sampled_from(["message", "reasoning", "function_call", "custom_tool_call", "web_search_call"]))
    at: Event = {"output_index": index, "item_id": f"item_{index}"}
    item: Event = {"id": f"item_{index}", "type": kind}
    events: list[Event] = []
    if kind == "web_search_call":
        item |= {"status": "completed", "action": {"type": "search", "query": draw(TEXTS)}}
        start: Event = {**item, "status": "in_progress"}
        events = [{"type": f"response.web_search_call.{state}", **at} for state in ("in_progress", "completed")]
    elif kind in ("function_call", "custom_tool_call"):
        name = "arguments" if kind == "function_call" else "input"
        text = dumps({"a": draw(TEXTS), "wei": 10**30}).decode()
        event = "response.function_call_arguments" if name == "arguments" else "response.custom_tool_call_input"
        item |= {"call_id": f"call_{index}", "name": "f", name: text}
        start = {**item, name: ""}
        events = [{"type": f"{event}.delta", **at, "delta": part} for part in pieces_of(draw, text)]
        events.append({"type": f"{event}.done", **at, name: text})
    elif kind == "reasoning":
        texts = draw(PIECES)
        item |= {"summary": [{"type": "summary_text", "text": "".join(texts)}]}
        start = {**item, "summary": []}
        at["summary_index"] = 0
        events = [{"type": "response.reasoning_summary_text.delta", **at, "delta": text} for text in texts]
    else:
        item |= {"role": "assistant", "status": "completed", "content": []}
        start = {**item, "status": "in_progress"}
        for place in range(draw(st.integers(1, 2))):
            texts = draw(PIECES)
            field_name, part_type = draw(st.sampled_from([("text", "output_text"), ("refusal", "refusal")]))
            extra: Event = {"annotations": [], "logprobs": []} if part_type == "output_text" else {}
            part: Event = {"type": part_type, field_name: "".join(texts), **extra}
            where = {**at, "content_index": place}
            events.append({"type": "response.content_part.added", **where, "part": {**part, field_name: ""}})
            events += [{"type": f"response.{part_type}.delta", **where, "delta": text, **extra} for text in texts]
            events.append({"type": f"response.{part_type}.done", **where, field_name: part[field_name], **extra})
            events.append({"type": "response.content_part.done", **where, "part": part})
            item = {**item, "content": [*item["content"], part]}
    return item, [
        {"type": "response.output_item.added", "output_index": index, "item": start},
        *events,
        {"type": "response.output_item.done", "output_index": index, "item": item},
    ]


@st.composite
def response_streams(draw: Draw) -> RandomStream:
    head: Event = {"id": "resp_1", "object": "response", "created_at": 1_700_000_000, "model": "m", "tools": []}
    head |= {"parallel_tool_calls": True, "tool_choice": "auto"}
    created = {**head, "status": "in_progress", "output": [], "usage": None}
    events: list[Event] = [{"type": "response.created", "response": created}]
    items = [output_item(draw, index) for index in range(draw(st.integers(1, 4)))]
    events += (
        interleave(draw, [each for _, each in items]) if some(draw) else [each for _, own in items for each in own]
    )
    output = [item for item, _ in items]
    listed = draw(st.sampled_from([output, output, output[:-1], []]))
    usage = {"input_tokens": draw(COUNTS), "output_tokens": draw(COUNTS), "total_tokens": draw(COUNTS)}
    events.append(
        {"type": "response.completed", "response": {**head, "status": "completed", "output": listed, "usage": usage}}
    )
    events = [{**event, "sequence_number": number} for number, event in enumerate(events)]
    return RandomStream("responses", events, is_complete_at_end=listed == output)


STREAMS = st.one_of(chat_streams(), completion_streams(), message_streams(), response_streams())


@dataclass(frozen=True)
class Framing:
    """How a stream is written: line ends, a space after `data:`, comments, the last blank line, and the size of chunks."""

    line_end: bytes
    space: bool
    comments: bool
    blank_line: bool
    chunk_size: int

    def write(self, stream: RandomStream) -> list[bytes]:
        separator, end = (b": " if self.space else b":"), self.line_end
        written = b""
        for event in stream.events:
            written += (b": keep-alive" + end + end) if self.comments else b""
            if "type" in event:
                written += b"event" + separator + event["type"].encode() + end
            written += b"data" + separator + dumps(event) + end + end
        if stream.api in ("chat", "completions"):
            written += b"data" + separator + b"[DONE]" + end + end
        if not self.blank_line:
            written = written.removesuffix(end)
        return [written[start : start + self.chunk_size] for start in range(0, len(written), self.chunk_size)]


FRAMINGS = st.builds(
    Framing,
    st.sampled_from([b"\n", b"\r\n"]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from([7, 1 << 20]),
)
