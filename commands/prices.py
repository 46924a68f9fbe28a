"""`kvproxy prices`."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from kvproxy.commands.command import CommandGroup
from kvproxy.commands.options import Data, JournalOptions, LimitOrAll, load_settings
from kvproxy.commands.output import Output, text_output
from kvproxy.commands.row_fields import RowFields
from kvproxy.commands.tables import (
    Column,
    ListLayout,
    Row,
    default_limit,
    number_column,
    print_table,
    table_output,
    text_column,
)
from kvproxy.errors import NotFound

if TYPE_CHECKING:
    from kvproxy.operations.journal_reports import ModelPrice

_NAMES = {"input": "Input", "cached": "Cached", "write_5m": "Written 5m", "write_1h": "Written 1h", "output": "Output"}

_MODALITIES = {
    "audio_input": "Audio in",
    "audio_output": "Audio out",
    "image_input": "Image in",
    "image_output": "Image out",
}

app = CommandGroup("prices", help="List, show, or update the prices of paid APIs.")


@app.subcommand
def show(
    models: Annotated[
        list[str] | None, Argument(help="Names of models.", show_default="those in the journal and the settings")
    ] = None,
    *,
    layout: Annotated[ListLayout, RowFields("model", "kvproxy.operations.journal_reports:PriceTier")],
    source: JournalOptions,
) -> Output:
    """Show the prices in use, per million tokens.

    The source is a table of [journal.prices], or the providers' list. A model without a price has no source; if no given model
    has a price, this is an error. Longer prompts of
    some models have other prices, in a row for each, and so do other hours of the day, later prices of the settings, and
    service tiers. A tier without own prices has a factor of the standard price, from the settings, or as the provider
    publishes it.

    Example: kvproxy prices show claude-sonnet-4-6
    """
    from kvproxy.operations.journal_parameters import PriceQuery
    from kvproxy.operations.journal_reports import configured_prices, list_prices

    queries = [PriceQuery(model) for model in dict.fromkeys(models)] if models else [PriceQuery()]
    try:
        journal = source.open()
    except NotFound:
        # Before the first start of a proxy there is no journal.
        settings = load_settings(data=source.data).journal
        prices = [price for query in queries for price in configured_prices(settings, query)]
    else:
        prices = [price for query in queries for price in journal.perform(list_prices, query)]
    if models and not any(price.tiers for price in prices):
        raise NotFound(f"{_unpriced_note(prices)} kvproxy prices ls --search NAME lists the known names.")
    rows = [row for price in prices for row in _rows(price)]
    empty = "the journal and the settings have no models: name one, as in kvproxy prices show gpt-5 (kvproxy prices ls lists all)"
    document = [asdict(price) for price in prices]
    records = [record for price in document for record in _records(price)]
    return Output(
        document,
        lambda: print_table(rows, empty=empty, layout=layout, records=records),
        records=records,
        note=_unpriced_note(prices),
    )


@app.subcommand
def ls(
    *,
    search: Annotated[str | None, Option(help="Only models whose names contain this text.")] = None,
    limit: LimitOrAll = None,
    layout: Annotated[ListLayout, RowFields("kvproxy.operations.journal_reports:KnownPrice")],
    data: Data = None,
) -> Output:
    """List the models with a known price, per million tokens.

    The names are those of [journal.prices], then those of the providers' list. A pattern of [journal.prices] is no model.
    Models of a host begin with its name, such as groq/. Prices are those of short prompts in the standard service tier; kvproxy
    prices show has all prices of a model.

    Example: kvproxy prices ls --search sonnet
    """
    from kvproxy.operations.journal_reports import known_prices

    known = known_prices(load_settings(data=data).journal, search)
    listed = known[: default_limit(limit, 100) or None]
    rows: list[Row] = [
        {
            text_column("Model"): price.model,
            "Source?": price.source,
            **{number_column(title, name): getattr(price, name) for name, title in _NAMES.items()},
        }
        for price in listed
    ]
    empty = "no model with a known price has this name"
    return table_output(listed, rows, empty=empty, layout=layout, total=len(known))


def _records(price: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a flat record for each price of a model; one without prices has empty ones."""
    from kvproxy.operations.journal_reports import PriceTier

    for tier in price["tiers"] or [asdict(PriceTier(0))]:
        yield {"model": price["model"], **tier}


def _rows(price: "ModelPrice") -> Iterator[Row]:
    from kvproxy.operations.journal_reports import PriceTier

    for tier in price.tiers or [PriceTier(0)]:
        yield {
            text_column("Model"): price.model,
            Column("Tier", field="service_tier", hides_empty=True): tier.service_tier,
            "Source?": tier.source,
            "Since?": tier.since,
            number_column("Prompt above", "above"): tier.above,
            Column("Hours UTC", field="hours", hides_empty=True): tier.hours,
            **{number_column(title, name): getattr(tier, name) for name, title in _NAMES.items()},
            **{
                number_column(title, name, hides_empty=True): getattr(tier, name) for name, title in _MODALITIES.items()
            },
        }


def _unpriced_note(prices: "Sequence[ModelPrice]") -> str | None:
    names = [price.model for price in prices if not price.tiers]
    if not names:
        return None
    tables = ", ".join(f'[journal.prices."{name}"]' for name in names)
    return (
        f"no known price: {', '.join(names)}; set {tables}. kvproxy does not use list prices of models for audio or images,"
        " or per hour of audio."
    )


@app.subcommand
def update(
    url: Annotated[str | None, Option(help="Address of the price list.", show_default="genai-prices")] = None,
    data: Data = None,
) -> Output:
    """Download the current list prices of paid APIs.

    They are stored in the data folder. The list of the project genai-prices has dates, so that earlier requests keep their
    prices. A running proxy reads it after a restart. Remove the file to return to the prices of the installed package. No
    other command downloads prices.

    Example: kvproxy prices update
    """
    from kvproxy.installation.price_update import URL, update_prices
    from kvproxy.settings.journal import PRICE_FILE

    price_update = update_prices(url or URL, load_settings(data=data).data / PRICE_FILE)
    return text_output(
        asdict(price_update),
        f"wrote {price_update.file}: {price_update.models:,} models of {price_update.providers:,} providers",
    )
