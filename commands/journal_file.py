"""The journal of a proxy: of the data folder that --data names, of the proxy that runs at the URL, or of the default folder."""

import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvproxy.commands.client import ProxyClient
from kvproxy.errors import InvalidRequest

if TYPE_CHECKING:
    from kvproxy.journal.reader import Query, Reader

_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}

Since = Annotated[
    str | None, typer.Option(help="Only what came in so long a time, as 90s, 5m, 2h or 7d.", show_default=False)
]
Layer = Annotated[str | None, typer.Option(help="Only what this layer answered.", show_default=False)]
Reason = Annotated[
    str | None, typer.Option(help="Only this reason, or those that begin so, as miss.", show_default=False)
]
Tenant = Annotated[str | None, typer.Option(help="Only this tenant, or the client of this name.", show_default=False)]
Model = Annotated[str | None, typer.Option(help="Only requests for this model.", show_default=False)]
Where = Annotated[
    str | None,
    typer.Option(help='Only what fits a condition in SQL, as "total_ms > 500 and status = 200".', show_default=False),
]


def data_folder(url: str, token: str | None, data: Path | None) -> Path:
    """The data folder: the one that is named, else that of the proxy at the URL if it is on this machine, else the default."""
    from kvproxy.settings import load_settings

    if data is None:
        client = ProxyClient(url, token)
        if client.reachable():
            told = client.get("/health").get("data")
            if isinstance(told, str) and Path(told).is_dir():
                return Path(told)
    return load_settings(data=data).data


def open_journal(url: str, token: str | None, data: Path | None) -> "Reader":
    """A journal to read.

    Raises:
        NotFound: there is none.
    """
    from kvproxy.journal.reader import Reader
    from kvproxy.journal.schema import FILE

    return Reader(data_folder(url, token, data) / FILE)


def query(
    since: str | None,
    layer: str | None,
    reason: str | None,
    tenant: str | None,
    model: str | None,
    where: str | None,
    limit: int | None = None,
) -> "Query":
    """The options of a command as a query; raises InvalidRequest where one of them is impossible."""
    from typing import get_args

    from kvproxy.journal.reader import Query
    from kvproxy.journal.record import Layer as Layers

    if layer is not None and layer not in get_args(Layers):
        raise InvalidRequest(f"no layer {layer[:40]!r}: there are {', '.join(get_args(Layers))}")
    start = None if since is None else time.time() - seconds(since)
    return Query(start, layer, reason, tenant, model, where, limit=limit)


def seconds(text: str) -> float:
    """A length of time such as `90s`, `5m`, `2h` or `7d`.

    Raises:
        InvalidRequest: it is none.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d)", text.strip())
    if found is None:
        raise InvalidRequest(f"{text[:40]!r} is no length of time: give one such as 90s, 5m, 2h or 7d")
    return float(found[1]) * _UNITS[found[2]]


def questions(data: Path, entries: Iterable[str | None]) -> dict[str, str]:
    """The questions of stored responses, by their ids, as far as they are still stored and can be read."""
    from kvproxy.checks.stored import opened_store, store_exists
    from kvproxy.errors import KvproxyError
    from kvproxy.settings import load_settings

    settings = load_settings(data=data)
    ids = sorted({entry for entry in entries if entry is not None})
    if not ids or not store_exists(settings):
        return {}
    try:
        with opened_store(settings) as store:
            return {id: head.prompt for id, head in store.questions(ids).items()}
    except KvproxyError:
        # A store that is away, or keys that are not here: the records say enough without.
        return {}
