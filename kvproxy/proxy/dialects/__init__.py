"""The APIs whose answers are cached, one file each behind the interface in `dialect.py`."""

from kvproxy.proxy.dialects.chat import Chat
from kvproxy.proxy.dialects.completions import Completions
from kvproxy.proxy.dialects.dialect import Dialect
from kvproxy.proxy.dialects.embeddings import Embeddings
from kvproxy.proxy.dialects.messages import Messages
from kvproxy.proxy.dialects.responses import Responses

DIALECTS: dict[str, Dialect] = {
    dialect.name: dialect for dialect in (Chat(), Completions(), Embeddings(), Messages(), Responses())
}
