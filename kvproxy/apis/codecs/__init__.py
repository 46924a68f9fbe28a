"""Codecs of the embedded engine: they decode requests and encode responses of each API. `codec.py` is the interface."""

from kvproxy.apis.api import ApiName
from kvproxy.apis.codecs.chat import ChatCodec
from kvproxy.apis.codecs.codec import Codec
from kvproxy.apis.codecs.completions import CompletionsCodec
from kvproxy.apis.codecs.messages import MessagesCodec
from kvproxy.apis.codecs.responses import ResponsesCodec

CODECS: dict[ApiName, Codec] = {
    "chat": ChatCodec(),
    "completions": CompletionsCodec(),
    "messages": MessagesCodec(),
    "responses": ResponsesCodec(),
}
"""The engine does not compute embeddings."""
