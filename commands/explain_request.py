"""kvproxy explain --request: why a request was not answered from the cache."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from kvproxy.proxy_client.journal import data_folder
from kvproxy.commands.output import print_facts, print_json
from kvproxy.commands.safe import shown
from kvproxy.commands.formatting import moment

if TYPE_CHECKING:
    from kvproxy.journal.causes import Explained
    from kvproxy.journal.reader import Reader
    from kvproxy.journal.record import Record


def explain_request(request: str, url: str, token: str | None, data: Path | None, as_json: bool) -> None:
    """Tell why a request was not answered from the cache.

    Raises:
        NotFound: the journal has no such request.
    """
    found = explained(lambda reader: reader.find(request), url, token, data)
    if as_json:
        print_json(asdict(found))
    else:
        typer.echo("\n".join(told(found)))
        _facts(found)


def explained(find: "Callable[[Reader], Record]", url: str, token: str | None, data: Path | None) -> "Explained":
    """Why a request was not answered from the cache, from the journal and the store of a proxy.

    Args:
        find: finds the request's record in the journal.

    Raises:
        NotFound: the journal has no such request.
    """
    import contextlib

    from kvproxy.checks.stored import opened_store, store_exists
    from kvproxy.flow.explain import texts
    from kvproxy.journal.causes import explain_record
    from kvproxy.journal.reader import Reader
    from kvproxy.journal.schema import FILE
    from kvproxy.settings import load_settings

    folder = data_folder(url, token, data)
    settings = load_settings(data=folder)
    reader = Reader(folder / FILE)
    with opened_store(settings) if store_exists(settings) else contextlib.nullcontext() as store:
        return explain_record(reader, find(reader), texts(reader, store))


def told(found: "Explained") -> list[str]:
    """What there is to say, a sentence a line."""
    from kvproxy.journal.sentences import sentences

    return [shown(line) for line in sentences(found, moment)]


def _facts(found: "Explained") -> None:
    record = found.record
    print_facts(
        [
            ("request", record.request_id),
            ("time", moment(record.time)),
            ("reason", record.reason),
            ("tenant", record.client or record.tenant),
            ("model", record.model),
        ]
    )
