"""`kvproxy prices`."""

from typing import Annotated

from typer import Option

from kvproxy.commands.command import CommandGroup
from kvproxy.commands.options import Data, load_settings
from kvproxy.commands.output import Output, text_output
from kvproxy.errors import InvalidRequest
from kvproxy.settings.journal import PRICE_FILE

URL = "https://raw.githubusercontent.com/pydantic/genai-prices/refs/heads/main/prices/new_data/v2/data.json"
_SECONDS = 30.0

app = CommandGroup("prices", help="Update the list prices of paid APIs.")


@app.subcommand
def update(
    url: Annotated[str, Option(help="Address of the price list.")] = URL,
    data: Data = None,
) -> Output:
    """Download the current list prices of paid APIs into the data folder.

    The list of the project genai-prices has dates, so that earlier requests keep their prices. A running proxy reads it after a
    restart. Remove the file to return to the prices of the installed package. Nothing else downloads prices.

    Example: kvproxy prices update
    """
    import httpx

    from kvproxy.providers.price_list import parse_price_list, save_price_list
    from kvproxy.upstreams.limited_fetch import fetch

    file = load_settings(data=data).data / PRICE_FILE
    try:
        response = fetch(url, _SECONDS, follow_redirects=True)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise InvalidRequest(
            f"cannot download {url} ({error}): try again, or give another address with --url"
        ) from None
    if response.status_code != 200:
        raise InvalidRequest(f"{url} answered {response.status_code}: try again, or give another address with --url")
    found = parse_price_list(response.content)
    save_price_list(response.content, file)
    models = sum(len(provider.models) for provider in found.providers)
    document = {"file": str(file), "providers": len(found.providers), "models": models}
    return text_output(document, f"wrote {file}: {models:,} models of {len(found.providers):,} providers")
