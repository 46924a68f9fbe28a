"""Clients and their keys, from the settings and from the file of `kvproxy keys`."""

import hashlib
import os
import secrets
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import orjson
from pydantic import TypeAdapter, ValidationError

from kvproxy.errors import InvalidRequest, KvproxyError, NotFound, SettingsError
from kvproxy.settings import Settings
from kvproxy.settings.clients import ClientSettings

_PREFIX = "kvp-"
_LIST = TypeAdapter(list[ClientSettings])


def clients_file(data: Path) -> Path:
    return data / "clients.json"


def all_clients(settings: Settings) -> tuple[ClientSettings, ...]:
    """List all clients, those of the settings first.

    Raises:
        SettingsError: the file cannot be read, or two clients share a name or a key.
    """
    found = (*settings.clients, *_read(settings.data))
    for what, values in (
        ("name", [each.name for each in found]),
        ("key", [each for client in found for each in client.digests]),
    ):
        if len(set(values)) < len(values):
            raise SettingsError(f"two clients have the same {what}: kvproxy keys ls lists them, keys rm removes one")
    return found


def requires_client_key(settings: Settings) -> bool:
    """Whether requests require a key, which stays true after the last client's removal."""
    return bool(settings.clients) or clients_file(settings.data).exists()


def add_client(settings: Settings, name: str, **limits: int | None) -> str:
    """Add a client, and return its key, which is not stored.

    Args:
        limits: fields of `ClientSettings`.

    Raises:
        InvalidRequest: the name exists or is invalid.
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


def rotate_key(settings: Settings, name: str, grace: float) -> str:
    """Give a client a new key. Running proxies notice it within a second.

    Args:
        grace: seconds in which the old key stays valid.

    Raises:
        NotFound: no such client.
        InvalidRequest: kvproxy.toml defines the client.
    """
    clients = list(_read(settings.data))
    place = next((place for place, each in enumerate(clients) if each.name == name), None)
    if place is None:
        raise _missing_client_error(settings, name)
    key = _PREFIX + secrets.token_urlsafe(32)
    previous = {"previous_key_sha256": clients[place].key_sha256, "previous_key_expires": time.time() + grace}
    clients[place] = clients[place].model_copy(
        update={"key_sha256": digest(key)} | (previous if grace > 0 else dict.fromkeys(previous))
    )
    _write(settings.data, clients)
    return key


def remove_client(settings: Settings, name: str) -> None:
    """Remove a client. Running proxies notice it within a second.

    Raises:
        NotFound: no such client.
        InvalidRequest: kvproxy.toml defines the client.
    """
    kept = _read(settings.data)
    left = [each for each in kept if each.name != name]
    if len(left) == len(kept):
        raise _missing_client_error(settings, name)
    _write(settings.data, left)


def _missing_client_error(settings: Settings, name: str) -> KvproxyError:
    if any(each.name == name for each in settings.clients):
        return InvalidRequest(f"the client {name!r} is in kvproxy.toml: change it there")
    return NotFound(f"no client {name!r}: kvproxy keys ls lists them")


def digest(key: str) -> str:
    """Return the SHA-256 of a key. One round is enough, because keys are long and random."""
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
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=data, prefix=".clients-")
    with os.fdopen(handle, "wb") as out:
        out.write(orjson.dumps([each.model_dump() for each in clients], option=orjson.OPT_INDENT_2))
        out.flush()
        os.fsync(out.fileno())
    os.replace(temporary, clients_file(data))
