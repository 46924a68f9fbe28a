"""kvproxy explain --request: why a request was not answered from the cache."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from kvproxy.commands.journal_file import data_folder
from kvproxy.commands.output import print_facts, print_json
from kvproxy.commands.safe import shown
from kvproxy.commands.units import moment

if TYPE_CHECKING:
    from kvproxy.apis.json import Json
    from kvproxy.index.store import Store
    from kvproxy.journal.causes import Difference, Explained, Texts
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
        typer.echo("\n".join(sentences(found)))
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
    from kvproxy.journal.causes import explain_record
    from kvproxy.journal.reader import Reader
    from kvproxy.journal.schema import FILE
    from kvproxy.settings import load_settings

    folder = data_folder(url, token, data)
    settings = load_settings(data=folder)
    reader = Reader(folder / FILE)
    with opened_store(settings) if store_exists(settings) else contextlib.nullcontext() as store:
        return explain_record(reader, find(reader), texts(reader, store))


def texts(reader: "Reader", store: "Store | None") -> "Texts":
    """Finds what the regions of a prompt held: in the journal, or in the request of the response that is stored for it."""
    import zlib

    from kvproxy.apis.json import as_object, loads

    def text_of(prompt: int) -> "Mapping[str, Json] | None":
        kept = reader.whole(prompt)
        if kept is not None:
            return as_object(loads(zlib.decompress(kept)))
        stored = reader.stored(prompt)
        return None if store is None or stored is None else _of_entry(store, stored[0])

    return text_of


def _of_entry(store: "Store", id: str) -> "Mapping[str, Json] | None":
    from kvproxy.apis import by_name
    from kvproxy.apis.json import as_object, loads
    from kvproxy.apis.request import ApiRequest
    from kvproxy.flow.keys import cache_key
    from kvproxy.journal.regions import parts_of

    entry = store.get(id)
    api = None if entry is None else by_name(entry.endpoint)
    if entry is None or api is None:
        return None
    request = ApiRequest(api, as_object(loads(entry.request)), entry.request, {}, entry.tenant, entry.request_id)
    return dict(parts_of(cache_key(request, entry.backend).parts))


def sentences(found: "Explained") -> list[str]:
    """What there is to say, a sentence a line."""
    from kvproxy.journal.reasons import meaning

    record = found.record
    said = [meaning(record.reason)]
    if record.gone is not None:
        said.append(f"It went at {moment(record.gone)}.")
    if record.near is not None:
        said.append(
            f"The nearest question is that of entry {record.near[:12]}, with a similarity of {record.similarity:.3f}"
            + (f" and a score of {record.score:.3f}" if record.score is not None else "")
            + "."
        )
    if found.earlier is not None and found.differences and not record.reason.startswith("hit-"):
        said.append(
            f"The earlier request most like it is {found.earlier.request_id[:32]}, of {moment(found.earlier.time)}:"
        )
        said += [f"- {_difference(each, found)}" for each in found.differences[:8]]
        if len(found.differences) > 8:
            said.append(f"- and {len(found.differences) - 8} more")
    if record.prompt_tokens and record.reused_tokens is not None:
        computed = record.prompt_tokens - record.reused_tokens
        said.append(
            f"The backend reused {record.reused_tokens:,} of {record.prompt_tokens:,} tokens of the prompt; it computed"
            f" {computed:,}, and its answer began after {(record.first_ms or 0) / 1000:.3f} s."
        )
    if found.left is not None and found.left.region is not None and not record.reason.startswith("hit-"):
        said.append(
            f"The prompt follows that of request {found.left.earlier[:32]} furthest, and leaves it at"
            f" {_named(found.left.region)}."
        )
    return [shown(line) for line in said]


def _difference(difference: "Difference", found: "Explained") -> str:
    name, earlier, record = difference.region, found.earlier, found.record
    if name == "tenant" and earlier is not None:
        return f"another tenant asked it: {earlier.client or earlier.tenant} then, {record.client or record.tenant} now"
    if name == "model" and earlier is not None:
        return f"another model was asked: {earlier.model} then, {record.model} now"
    if difference.place is None:
        if difference.before is None and difference.after is None:
            return f"{_named(name)} differs"
        if difference.before is None:
            return f"{_named(name)} is new: {difference.after!r}"
        if difference.after is None:
            return f"{_named(name)} is missing: it was {difference.before!r}"
    return f"{_named(name)}, at character {difference.place}: {difference.before!r} became {difference.after!r}"


def _named(region: str) -> str:
    """A region as people call it."""
    if region in ("system", "instructions") or region.endswith((" system", " developer")):
        return f"the system prompt ({region})"
    if region.startswith(("messages[", "input[")):
        place, _, role = region.partition(" ")
        return f"{place} of the {role}" if role else place
    return {"tools": "the tools", "prompt": "the prompt", "input": "the input"}.get(region, f"the field {region}")


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
