"""Codecs of the embedded engine: each decodes the requests of an API and encodes their responses."""

from kvproxy.apis.codecs import chat_and_completions as choices
from kvproxy.apis.codecs import messages, responses
from kvproxy.apis.codecs.codec import Codec

CODECS = {
    "chat": Codec(choices.decode_chat_prompt, choices.decode_chat, choices.ChatEncoder),
    "completions": Codec(choices.decode_completion_prompt, choices.decode_completion, choices.CompletionsEncoder),
    "messages": Codec(messages.decode_prompt, messages.decode, messages.MessagesEncoder),
    "responses": Codec(responses.decode_prompt, responses.decode, responses.ResponsesEncoder),
}
