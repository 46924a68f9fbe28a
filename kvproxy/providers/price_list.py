"""Reads price lists in the published JSON form of the package `genai-prices`."""

import json
from collections.abc import Mapping
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvproxy.errors import InvalidRequest, SettingsError

if TYPE_CHECKING:
    from genai_prices.data_snapshot import DataSnapshot

_PRICES = "prices"


def parse_price_list(content: bytes) -> "DataSnapshot":
    """Return the prices in a list of providers. Raises InvalidRequest.

    `genai_prices.UpdatePrices.fetch` reads the same form, but only from a URL, without a limit of its size.
    """
    from genai_prices.data_snapshot import DataSnapshot
    from genai_prices.types import Provider
    from pydantic import ConfigDict, TypeAdapter

    try:
        document = json.loads(content)
        if not isinstance(document, list) or not document:
            raise ValueError("it is not a list of providers")
        providers = TypeAdapter(list[Provider], config=ConfigDict(arbitrary_types_allowed=True))
        return DataSnapshot(providers.validate_python(_with_model_prices(document)), from_auto_update=True)
    except (ValueError, TypeError, AssertionError, RecursionError) as error:
        raise InvalidRequest(f"not a price list of genai-prices: {str(error)[:300]}") from None


def _with_model_prices(value: Any) -> Any:
    """Replace the prices of models, which pydantic does not know, by objects of the package."""
    if isinstance(value, list):
        return [_with_model_prices(inner) for inner in value]
    if not isinstance(value, Mapping):
        return value
    return {
        name: _model_price(inner) if name == _PRICES and isinstance(inner, Mapping) else _with_model_prices(inner)
        for name, inner in value.items()
    }


def _model_price(value: Mapping[str, Any]) -> Any:
    from genai_prices.types import ModelPrice, TieredPrices
    from pydantic import TypeAdapter

    return ModelPrice(**TypeAdapter(dict[str, Decimal | TieredPrices | None]).validate_python(value))


@lru_cache(maxsize=2)
def load_price_list(file: Path) -> "DataSnapshot":
    """Return the prices in a file; a changed file is read after a restart. Raises SettingsError."""
    try:
        return parse_price_list(file.read_bytes())
    except (OSError, InvalidRequest) as error:
        reason = error.message if isinstance(error, InvalidRequest) else error.strerror
        raise SettingsError(
            f"cannot read the prices in {file} ({reason}): write it with 'kvproxy prices update', or remove it"
        ) from None
