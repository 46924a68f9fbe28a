"""Clients and their keys: those of the settings, and those of a file in the data folder that `kvproxy keys` writes."""

import hashlib
import os
import secrets
import tempfile
from collections.abc import Sequence
from pathlib import Path

import orjson
from pydantic import TypeAdapter, ValidationError

from kvproxy.errors import InvalidRequest, NotFound, SettingsError
from kvproxy.settings import Settings
from kvproxy.settings.clients import ClientSettings

_PREFIX = "kvp-"
_LIST = TypeAdapter(list[ClientSettings])


def clients_file(data: Path) -> Path:
    """Where `kvproxy keys` keeps its clients."""
    return data / "clients.json"


def all_clients(settings: Settings) -> tuple[ClientSettings, ...]:
    """Every client, those of the settings first.

    Raises:
        SettingsError: the file cannot be read, or two clients share a name or a key.
    """
    found = (*settings.clients, *_read(settings.data))
    for what, values in (("name", [each.name for each in found]), ("key", [each.key_sha256 for each in found])):
        if len(set(values)) < len(values):
            raise SettingsError(f"two clients have the same {what}: kvproxy keys ls lists them, keys rm removes one")
    return found


def is_closed(settings: Settings) -> bool:
    """Whether only clients with a key are served: if there is one, or was one before its file became empty."""
    return bool(settings.clients) or clients_file(settings.data).exists()


def add_client(settings: Settings, name: str, **limits: int | None) -> str:
    """Make a client; its key, which is shown now and never again.

    Args:
        limits: what it may use, by the names of `ClientSettings`.

    Raises:
        InvalidRequest: there is one of that name, or it is no name.
    """
    if any(each.name == name for each in all_clients(settings)):
        raise InvalidRequest(f"there is a client {name!r} already: keys rm {name} removes it")
    key = _PREFIX + secrets.token_urlsafe(32)
    try:
        client = ClientSettings.model_validate({**limits, "name": name, "key_sha256": digest(key)})
    except ValidationError:
        raise InvalidRequest(
            f"{name!r} is no name for a client: take up to 64 letters, digits, dots, dashes and underscores"
        ) from None
    _write(settings.data, [*_read(settings.data), client])
    return key


def remove_client(settings: Settings, name: str) -> None:
    """Take a client's key back; running proxies notice at once.

    Raises:
        NotFound: there is none of that name in the file.
        InvalidRequest: it stands in the settings.
    """
    kept = _read(settings.data)
    left = [each for each in kept if each.name != name]
    if len(left) < len(kept):
        _write(settings.data, left)
    elif any(each.name == name for each in settings.clients):
        raise InvalidRequest(f"the client {name!r} stands in kvproxy.toml: remove it there")
    else:
        raise NotFound(f"no client {name!r}: kvproxy keys ls lists them")


def digest(key: str) -> str:
    """What is kept of a key. It is random and long, so that one round of hashing is enough."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def _read(data: Path) -> Sequence[ClientSettings]:
    file = clients_file(data)
    try:
        return _LIST.validate_json(file.read_bytes())
    except FileNotFoundError:
        return ()
    except (OSError, ValidationError) as error:
        raise SettingsError(f"cannot read {file}: {error}") from None


def _write(data: Path, clients: Sequence[ClientSettings]) -> None:
    """Put the file in place whole, readable for its owner alone."""
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=data, prefix=".clients-")
    with os.fdopen(handle, "wb") as out:
        out.write(orjson.dumps([each.model_dump() for each in clients], option=orjson.OPT_INDENT_2))
        out.flush()
        os.fsync(out.fileno())
    os.replace(temporary, clients_file(data))
