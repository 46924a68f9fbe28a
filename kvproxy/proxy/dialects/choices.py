"""Answers made of choices: what OpenAI's chat completions and completions have in common."""

from collections.abc import Callable, Iterator
from typing import Any

from kvproxy.proxy.documents import loads
from kvproxy.proxy.sse import DONE, event


def can_be_replayed(body: dict[str, Any]) -> bool:
    """Whether a stored answer fits a request in either form: log-probabilities of the prompt have none in a stream."""
    return body.get("prompt_logprobs") is None or not body.get("stream")


def choices_complete(whole: dict[str, Any]) -> bool:
    """Whether every choice of an object has come to its end."""
    choices = whole.get("choices")
    if not isinstance(choices, list) or not choices or "error" in whole:
        return False
    return all(isinstance(choice, dict) and choice.get("finish_reason") is not None for choice in choices)


def replay_choices(
    whole: dict[str, Any], parts: Callable[[dict[str, Any]], Iterator[dict[str, Any]]], *, include_usage: bool
) -> Iterator[bytes]:
    """A stored answer as a stream, up to and with [DONE].

    Args:
        whole: the answer; what is beside its choices and its usage goes into every chunk.
        parts: a choice as the choices of its chunks.
        include_usage: whether the client asked for token counts.
    """
    head = {name: value for name, value in whole.items() if name not in ("choices", "usage")}
    extra: dict[str, Any] = {"usage": None} if include_usage else {}
    for choice in whole["choices"]:
        for part in parts(choice):
            yield event(head | {"choices": [part]} | extra)
    if include_usage and whole.get("usage"):
        yield event(head | {"choices": [], "usage": whole["usage"]})
    yield event(DONE)


class ChoiceAssembler:
    """Puts chunks of choices together; see `Assembler`."""

    def __init__(self) -> None:
        self._head: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._usage: dict[str, Any] | None = None
        self.done = False

    def push(self, data: bytes) -> None:
        if data == DONE:
            self.done = True
            return
        chunk = loads(data)
        if "error" in chunk:
            raise ValueError("the stream ended in an error")
        if not self._head:
            self._head = {name: value for name, value in chunk.items() if name not in ("choices", "usage")}
        self._usage = chunk.get("usage") or self._usage
        for choice in chunk.get("choices") or ():
            self._merge(choice)

    def _merge(self, choice: dict[str, Any]) -> None:
        index = choice.get("index", 0)
        whole = self._choices.setdefault(index, {"index": index, "finish_reason": None})
        if choice.get("finish_reason"):
            whole["finish_reason"] = choice["finish_reason"]
        if "text" in choice:
            whole["text"] = whole.get("text", "") + (choice["text"] or "")
        if "delta" in choice:
            _merge_delta(whole.setdefault("message", {}), choice["delta"] or {})
        if choice.get("logprobs"):
            _merge_logprobs(whole, choice["logprobs"])
        if choice.get("prompt_logprobs"):
            whole["prompt_logprobs"] = choice["prompt_logprobs"]

    def result(self, usage: dict[str, Any] | None = None) -> dict[str, Any] | None:
        choices = [self._choices[index] for index in sorted(self._choices)]
        kind = str(self._head.get("object", "")).removesuffix(".chunk")
        whole = self._head | {"object": kind, "choices": choices}
        if not self.done or not choices_complete(whole):
            return None
        counts = self._usage or usage
        return whole | {"usage": counts} if counts else whole


def _merge_delta(message: dict[str, Any], delta: dict[str, Any]) -> None:
    for name, value in delta.items():
        if name == "tool_calls" and value:
            calls = message.setdefault("tool_calls", [])
            for part in value:
                _merge_tool_call(calls, part)
        elif isinstance(value, str) and isinstance(message.get(name), str) and name != "role":
            message[name] += value
        elif value is not None or name not in message:
            message[name] = value


def _merge_tool_call(calls: list[dict[str, Any]], part: dict[str, Any]) -> None:
    index = part.get("index", 0)
    if index == len(calls):
        calls.append({"function": {"name": "", "arguments": ""}})
    if not 0 <= index < len(calls):
        raise ValueError("a tool call comes before the one ahead of it")
    call = calls[index]
    if part.get("id") and call.get("id", part["id"]) != part["id"]:
        raise ValueError("two tool calls share one index")
    call.update({name: value for name, value in part.items() if name not in ("index", "function") and value})
    for name, value in (part.get("function") or {}).items():
        call["function"][name] = call["function"].get(name, "") + (value or "")


def _merge_logprobs(whole: dict[str, Any], logprobs: dict[str, Any]) -> None:
    merged = whole.setdefault("logprobs", {})
    for name, values in logprobs.items():
        if isinstance(values, list):
            merged[name] = (merged.get(name) or []) + values
        else:
            merged.setdefault(name, values)
