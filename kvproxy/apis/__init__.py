"""The cached APIs, each a subclass of `Api`."""

from kvproxy.apis.api import Api
from kvproxy.apis.chat_completions_embeddings import Chat, Completions, Embeddings
from kvproxy.apis.messages import Messages
from kvproxy.apis.responses import Responses

MESSAGES = Messages()
APIS: dict[str, Api] = {api.name: api for api in (Chat(), Completions(), Embeddings(), MESSAGES, Responses())}
