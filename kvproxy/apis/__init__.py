"""The cached APIs: one file per wire format, each with a subclass of `Api`."""

from kvproxy.apis.api import Api
from kvproxy.apis.chat import Chat
from kvproxy.apis.completions import Completions
from kvproxy.apis.embeddings import Embeddings
from kvproxy.apis.messages import Messages
from kvproxy.apis.responses import Responses

MESSAGES = Messages()
APIS: dict[str, Api] = {api.name: api for api in (Chat(), Completions(), Embeddings(), MESSAGES, Responses())}
