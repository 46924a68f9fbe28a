"""Codecs of the embedded engine: they decode requests and encode responses of each API. `codec.py` is the interface."""

from kvproxy.apis.codecs import chat, completions, messages, responses
from kvproxy.apis.codecs.codec import Codec

CODECS = {
    "chat": Codec(chat.decode_prompt, chat.decode, chat.ChatEncoder),
    "completions": Codec(completions.decode_prompt, completions.decode, completions.CompletionsEncoder),
    "messages": Codec(messages.decode_prompt, messages.decode, messages.MessagesEncoder),
    "responses": Codec(responses.decode_prompt, responses.decode, responses.ResponsesEncoder),
}
