"""kvproxy savings: what the caches saved, in tokens, seconds and money."""

import time
from dataclasses import asdict
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from kvproxy.proxy_client.journal import data_folder, seconds
from kvproxy.commands.options import DEFAULT_URL, Data, Json, Token, Url
from kvproxy.commands.output import print_json, print_table
from kvproxy.commands.tables import text
from kvproxy.commands.formatting import percent

if TYPE_CHECKING:
    from kvproxy.journal.savings import Saving, Wrong
    from kvproxy.settings import Settings


class By(StrEnum):
    """What requests are put together by."""

    layer = "layer"
    tenant = "tenant"
    model = "model"
    tag = "tag"
    day = "day"


def savings(
    by: Annotated[By, typer.Option(help="What requests are put together by.")] = By.layer,
    since: Annotated[
        str | None, typer.Option(help="Only whole days within so long a time, as 7d.", show_default=False)
    ] = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Tell what the caches saved: tokens, seconds of the backend, and money. Nothing that is removed shrinks it.

    Prices stand in kvproxy.toml: [journal.prices."gpt-4o*"] with input, cached and output for a million tokens. Of semantic hits
    some may be wrong: the least money counts these as worth nothing.

    Example: kvproxy savings --by tenant

    Example: kvproxy savings --by day --since 7d
    """
    from kvproxy.journal import savings as saved
    from kvproxy.journal.reader import Reader
    from kvproxy.journal.schema import FILE
    from kvproxy.settings import load_settings

    folder = data_folder(url, token, data)
    settings = load_settings(data=folder)
    reader = Reader(folder / FILE)
    first = None
    if since is not None:
        first = datetime.fromtimestamp(time.time() - seconds(since), UTC).date().isoformat()
    wrong = _wrong(settings)
    rows = saved.savings(reader, by.value, settings.journal.prices, wrong, first)
    if as_json:
        total = asdict(saved.total_of(rows)) if by is not By.tag else None
        print_json(
            {"rows": [asdict(row) for row in rows], "total": total, "wrong": None if wrong is None else asdict(wrong)}
        )
        return
    # A request with two tags is counted under both: there is no sum of tags.
    shown = rows if by is By.tag or len(rows) < 2 else [*rows, saved.total_of(rows)]
    print_table(
        (
            text(by.value),
            "requests#",
            "answered#",
            "prompt tokens#",
            "answer tokens#",
            "reused tokens#",
            "seconds#",
            "money#",
            "at least#",
        ),
        map(_row, shown),
        empty="nothing was asked yet",
    )
    if rows:
        _notes(rows, wrong)


def _row(row: "Saving") -> tuple[object, ...]:
    money = ["-" if each is None else f"{each:,.4f}" for each in (row.money, row.least_money)]
    return (
        row.name,
        row.requests,
        row.answered,
        row.prompt_tokens,
        row.completion_tokens,
        row.reused_tokens,
        f"{row.seconds:,.1f}",
        *money,
    )


def _notes(rows: "list[Saving]", wrong: "Wrong | None") -> None:
    if all(row.money is None for row in rows):
        typer.echo('No price is known: give some in kvproxy.toml, under [journal.prices."MODEL"].')
    if wrong is not None:
        share = percent(wrong.most) if wrong.least == 0 else f"{percent(wrong.least)} to {percent(wrong.most)}"
        most = "at most " if wrong.least == 0 else ""
        typer.echo(f"Of the semantic hits {most}{share} may be wrong: {wrong.told_by}.")


def _wrong(settings: "Settings") -> "Wrong | None":
    """The share of semantic hits that may be wrong."""
    from kvproxy.checks.stored import store_exists
    from kvproxy.index.store.opening import open_observations
    from kvproxy.journal.savings import wrong_share

    counts = None
    if settings.cache.semantic and store_exists(settings):
        observations = open_observations(settings.store_where)
        counts = observations.summary()
        observations.close()
    return wrong_share(counts, settings.cache)
