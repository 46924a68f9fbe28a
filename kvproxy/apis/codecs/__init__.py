"""How the embedded engine answers each API: what it needs of a request, and how what it says is written, once.

`codec.py` is the protocol, one file each implements it.
"""

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
"""By API; embeddings are missing, since the engine makes none."""
