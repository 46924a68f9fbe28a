"""Downloads the list prices of paid APIs."""

import os
from dataclasses import dataclass
from pathlib import Path

from kvproxy.errors import OTHER_FOLDER, KvproxyError, file_error
from kvproxy.providers.price_list import parse_price_list
from kvproxy.upstreams.limited_fetch import FetchError, fetch

URL = "https://raw.githubusercontent.com/pydantic/genai-prices/refs/heads/main/prices/new_data/v2/data.json"
_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class PriceUpdate:
    """A downloaded price list, and the number of its providers and models."""

    file: str
    providers: int
    models: int


def update_prices(url: str, file: Path) -> PriceUpdate:
    """Replace a file of list prices by the list at a URL. Raises KvproxyError, and changes nothing, if there is none."""
    remedy = "try again, or give another address with --url"
    try:
        response = fetch(url, _SECONDS, follow_redirects=True)
    except FetchError as error:
        raise KvproxyError(f"cannot download {url} ({error}): {remedy}") from None
    if response.status != 200:
        raise KvproxyError(f"{url} answered {response.status}: {remedy}")
    price_list = parse_price_list(response.content)
    written = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        written.write_bytes(response.content)
        os.replace(written, file)
    except OSError as error:
        written.unlink(missing_ok=True)
        raise file_error("write", file, error, OTHER_FOLDER) from None
    return PriceUpdate(
        str(file), len(price_list.providers), sum(len(provider.models) for provider in price_list.providers)
    )
