"""The cached APIs: one file per wire format, behind the protocol in `api.py`."""

from kvproxy.apis.api import Api, ApiName
from kvproxy.apis.chat import Chat
from kvproxy.apis.completions import Completions
from kvproxy.apis.embeddings import Embeddings
from kvproxy.apis.messages import Messages
from kvproxy.apis.responses import Responses

APIS: dict[ApiName, Api] = {api.name: api for api in (Chat(), Completions(), Embeddings(), Messages(), Responses())}


def by_name(name: str) -> Api | None:
    """Return the API with a name, if there is one."""
    return next((api for api in APIS.values() if api.name == name), None)
