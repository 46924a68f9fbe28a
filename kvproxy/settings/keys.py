"""What keys and tokens have in common: an empty one is none, and each fits into a header."""

from typing import Annotated

from pydantic import BeforeValidator, SecretStr


def _clean(value: object) -> object:
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if not isinstance(value, str):
        return value
    value = value.strip()
    if not (value.isascii() and value.isprintable()):
        raise ValueError("a key or token holds visible ASCII characters only, and this one holds others")
    return value or None


Key = Annotated[SecretStr | None, BeforeValidator(_clean)]
"""A key that is kept as a secret, or none."""

PlainKey = Annotated[str | None, BeforeValidator(_clean)]
"""A key as text, or none. Give such a field `repr=False`."""
