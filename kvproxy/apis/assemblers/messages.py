"""Anthropic's streams of Messages."""

from kvproxy.apis.json import Json, JsonObject, as_index, as_list, as_object, as_text, loads
from kvproxy.apis.sse import Event

# What a block's deltas add to: the delta's field, which is the block's too.
_TEXTS = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}


class MessageAssembler:
    """See `Assembler`."""

    def __init__(self) -> None:
        self._message: JsonObject = {}
        self._blocks: list[JsonObject] = []
        self._inputs: dict[int, str] = {}
        self.done = False

    def push(self, event: Event) -> None:
        part = as_object(loads(event.data))
        if event.name == b"error":
            raise ValueError("the stream ended in an error")
        if self.done:
            raise ValueError("an event after the end of the stream")
        match part["type"]:
            case "message_start":
                if self._message:
                    raise ValueError("a second message in one stream")
                self._message = dict(as_object(part["message"]))
            case "content_block_start":
                if part["index"] != len(self._blocks):
                    raise ValueError("a content block comes before the one ahead of it")
                self._blocks.append(dict(as_object(part["content_block"])))
            case "content_block_delta":
                self._add(as_index(part["index"]), as_object(part["delta"]))
            case "message_delta":
                delta, before = as_object(part["delta"]), self._message.get("stop_reason")
                if before and delta.get("stop_reason") not in (None, before):
                    raise ValueError("two different stop reasons in one stream")
                self._message |= delta
                given = {name: value for name, value in as_object(part.get("usage") or {}).items() if value is not None}
                self._message["usage"] = {**as_object(self._message.get("usage") or {}), **given}
            case "message_stop":
                self.done = True
            case "error":
                raise ValueError("the stream ended in an error")

    def _add(self, index: int, delta: JsonObject) -> None:
        if index >= len(self._blocks):
            raise ValueError("a delta of no content block")
        block, kind = self._blocks[index], as_text(delta["type"])
        if kind in _TEXTS:
            name = _TEXTS[kind]
            block[name] = as_text(block.get(name) or "") + as_text(delta[name])
        elif kind == "input_json_delta":
            self._inputs[index] = self._inputs.get(index, "") + as_text(delta["partial_json"])
        elif kind == "citations_delta":
            block["citations"] = [*as_list(block.get("citations") or []), delta["citation"]]
        else:
            # Unknown parts pass to the client, but what they mean for the whole cannot be known.
            raise ValueError(f"an unknown kind of delta: {kind}")

    def result(self) -> JsonObject | None:
        if not self.done:
            return None
        for index, text in self._inputs.items():
            self._blocks[index]["input"] = loads(text.encode()) if text.strip() else {}
        return {**self._message, "content": list[Json](self._blocks)}
