"""`kvproxy prices`."""

from dataclasses import asdict
from typing import Annotated

from typer import Option

from kvproxy.commands.command import CommandGroup
from kvproxy.commands.options import Data, load_settings
from kvproxy.commands.output import Output, text_output

app = CommandGroup("prices", help="Update the list prices of paid APIs.")


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
