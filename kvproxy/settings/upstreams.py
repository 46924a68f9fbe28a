"""The sections on upstreams, their connections, and their routing."""

import base64
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import SplitResult, unquote, urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

from kvproxy.doors import UPSTREAMS
from kvproxy.errors import SettingsError
from kvproxy.settings.section import Bytes, Seconds, Section, part_of

_REFERENCE = re.compile(r"(Bearer )?(\$\{?[A-Z][A-Z0-9_]*\}?|os\.environ/.*|\$\(.*\))")
_KEY_SOURCES = ("api_key", "api_key_env", "api_key_file", "authorization")


def _clean_key(value: object) -> object:
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if not isinstance(value, str):
        return value
    value = value.strip()
    if not (value.isascii() and value.isprintable()):
        raise ValueError("a key or token may contain visible ASCII characters only")
    if _REFERENCE.fullmatch(value):
        raise ValueError(
            'the text itself would be the key, because the file has no variables: give an upstream api_key_env = "NAME", or'
            " set KVPROXY_FORWARD__API_KEY or KVPROXY_ADMIN_TOKEN"
        )
    return value or None


SecretKey = Annotated[SecretStr | None, BeforeValidator(_clean_key)]
PlainKey = Annotated[str | None, BeforeValidator(_clean_key)]
"""An optional key as text. Fields of this type require `repr=False`, to keep the key out of logs."""


def _clean_model_name(name: str) -> str:
    name = name.strip()
    if not name or not name.isprintable() or "," in name:
        raise ValueError("a model's name must have visible characters, and no comma")
    return name


ModelName = Annotated[str, Field(max_length=256), AfterValidator(_clean_model_name)]


class UpstreamSettings(Section):
    """Connections to upstreams."""

    connect_timeout: Seconds = Field(default=5.0, gt=0, description="Connect timeout.")
    first_byte_timeout: Seconds | None = Field(
        default=None,
        gt=0,
        description="Maximum time from the request to the first byte of its response, which without `stream` follows the whole"
        " generation. Then the next upstream or the fallback gets the request, or the client 504. By default read_timeout.",
    )
    read_timeout: Seconds = Field(default=600.0, gt=0, description="Timeout between chunks of a response.")
    max_connections: int = Field(default=512, ge=1, description="Maximum connections to an upstream.")
    retries: int = Field(default=1, ge=0, description="Retries of requests that could not be sent.")
    request_usage: bool = Field(
        default=True,
        description="Ask for the usage of streams (stream_options.include_usage); a client that did not ask does not get it.",
    )
    api_key: PlainKey = Field(default=None, repr=False, description="API key that replaces the client's key.")
    tokenizer: str = Field(
        default="upstream",
        description="Tokenizer of mirrored pools: upstream (its /tokenize), a folder, or a Hugging Face id.",
    )


class UpstreamServer(Section):
    """An upstream. Credentials in its URL set `authorization` (`user:password@`) or `api_key` (`key@`)."""

    url: str = Field(description="URL such as http://127.0.0.1:8000, with or without /v1.")
    api_key: SecretKey = Field(
        default=None, description="API key that replaces the client's key; by default forward.api_key."
    )
    api_key_env: str | None = Field(
        default=None, min_length=1, description="Environment variable with the API key, instead of api_key."
    )
    api_key_file: Path | None = Field(
        default=None, description="File with the API key, instead of api_key; it is read again after a change."
    )
    authorization: SecretKey = Field(default=None, description="Authorization header that replaces the client's key.")
    models: tuple[ModelName, ...] = Field(
        default=(),
        description="Models that it serves, or patterns such as gpt-*; by default all models that no upstream names.",
    )
    aliases: dict[ModelName, ModelName] = Field(
        default={},
        description="Other names of its models, as tables of names and models; * is any name that no upstream serves.",
    )
    first_byte_timeout: Seconds | None = Field(
        default=None, gt=0, description="Overrides forward.first_byte_timeout for this upstream."
    )
    read_timeout: Seconds | None = Field(
        default=None, gt=0, description="Overrides forward.read_timeout for this upstream."
    )
    weight: float = Field(default=1.0, gt=0, description="Relative speed.")
    kv_events: str | None = Field(default=None, description="Address of its KV events: tcp://host:5557, or :5557-5560.")
    kv_replay: str | None = Field(default=None, description="Address to replay missed KV events, in the same form.")
    hash_algorithm: Literal["sha256_cbor", "xxhash_cbor", "sha256", "xxhash"] = Field(
        default="sha256_cbor", description="Its --prefix-caching-hash-algo."
    )
    kind: Annotated[str, part_of(UPSTREAMS)] | None = Field(
        default=None, description="Kind of server: llama.cpp, or a plugin's; by default detected."
    )
    hash_seed: str | None = Field(
        default=None, description="Its PYTHONHASHSEED; by default kvproxy's, or vLLM's fixed seed."
    )

    @model_validator(mode="before")
    @classmethod
    def _clean_url(cls, values: Any) -> Any:
        if isinstance(values, str):
            values = {"url": values}
        if not isinstance(values, dict) or not isinstance(values.get("url"), str):
            return values
        try:
            parsed = parse_upstream_url(values["url"])
        except ValueError:
            # The field reports it, beside the errors of other fields.
            return values
        given = [name for name in _KEY_SOURCES if values.get(name)]
        if len(parsed) > 1 and given:
            raise ValueError(f"{parsed['url']} has credentials in its URL and a separate key: remove one of them")
        if len(given) > 1:
            raise ValueError(f"{parsed['url']} has {' and '.join(given)}: remove one of them")
        return values | parsed

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        parse_upstream_url(url)
        return url

    @property
    def has_key(self) -> bool:
        return any(getattr(self, name) for name in _KEY_SOURCES)

    def authorization_or_key(self) -> tuple[str | None, str | None]:
        """Return the Authorization header and the API key, of which at most one is set. Raises SettingsError without them."""
        if self.authorization is not None:
            return self.authorization.get_secret_value(), None
        return None, self.api_key.get_secret_value() if self.api_key is not None else self._read_key()

    def _read_key(self) -> str | None:
        if self.api_key_env is not None:
            source, text = f"the variable {self.api_key_env}", os.environ.get(self.api_key_env, "")
            fix = f"set it in the environment of this command, as api_key_env of {self.url} requires"
        elif self.api_key_file is not None:
            source, text = f"the file {self.api_key_file}", _read_text(self.api_key_file)
            fix = f"write the API key of {self.url} to it, as api_key_file requires"
        else:
            return None
        try:
            key = _clean_key(text)
        except ValueError as error:
            raise SettingsError(f"setting upstreams: {source}: {error}") from None
        if not isinstance(key, str):
            raise SettingsError(f"setting upstreams: {source} has no key: {fix}")
        return key


def missing_keys(tables: object) -> Iterator[str]:
    """Return an error for each table `[[upstreams]]` whose variable or file has no key; other errors are left out."""
    for table in tables if isinstance(tables, list | tuple) else ():
        named = (
            {name: table[name] for name in ("url", *_KEY_SOURCES) if name in table} if isinstance(table, dict) else {}
        )
        try:
            UpstreamServer.model_validate(named).authorization_or_key()
        except ValidationError:
            continue
        except SettingsError as error:
            yield error.message


def _read_text(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        cause = getattr(error, "strerror", None) or "it is not text"
        raise SettingsError(f"setting upstreams: cannot read api_key_file {file} ({cause})") from None


EngineHint = Literal["session_id", "cache_salt", "priority"]


class RoutingSettings(Section):
    """Health checks and routing."""

    health_interval: Seconds = Field(default=2.0, gt=0, description="Time between health probes.")
    health_timeout: Seconds = Field(default=5.0, gt=0, description="Timeout of a health probe.")
    metrics_interval: Seconds = Field(default=5.0, gt=0, description="Time between reads of an upstream's /metrics.")
    eject_after: int = Field(
        default=3, ge=1, description="Consecutive failed probes, connections, or requests until an upstream is ejected."
    )
    prediction_sample_rate: float = Field(
        default=0.0625,
        ge=0,
        le=1,
        description="Share of requests whose reuse is predicted while only one upstream, with a mirror, is available.",
    )
    hints: list[EngineHint] = Field(
        default=[],
        description="Hints to vLLM and SGLang: session_id, cache_salt (tenants share no prefix), and priority.",
    )
    name: str | None = Field(
        default=None, description="Name of the group of upstreams in cache keys; by default their URLs."
    )
    fallbacks: dict[ModelName, tuple[ModelName, ...]] = Field(
        default={}, description="Models, or patterns, with the models that answer if they fail, in order."
    )


class SlotSettings(Section):
    """Slots of llama.cpp upstreams."""

    disk_size: Bytes = Field(
        default=8 * 2**30, description="Maximum size of slots in each --slot-save-path; 0 disables saving."
    )
    min_tokens: int = Field(default=32, ge=1, description="Minimum tokens of a slot to save or restore.")
    save_after: Seconds = Field(default=2.0, ge=0, description="Time without a request until a slot is saved.")
    queue_timeout: Seconds = Field(default=30.0, ge=0, description="Maximum time to wait for a free slot.")


def parse_upstream_url(text: str) -> dict[str, str]:
    """Split an upstream's URL into `url`, without a trailing slash or `/v1`, and `api_key` or `authorization`.

    `api_key` is a user name without a password. Raises ValueError, whose message contains no credentials.
    """
    shown = url_without_secrets(text)
    if "://" not in text:
        raise ValueError(f"{shown} has no scheme: write http://{shown}")
    try:
        parts = urlsplit(text.strip())
        has_late_at = "@" in parts.path + parts.query + parts.fragment
        port = None if has_late_at else parts.port
    except ValueError:
        # The reason may quote a part of a password.
        raise ValueError(f"{shown} is not a URL: use a form such as http://127.0.0.1:8000") from None
    if has_late_at:
        raise ValueError(f"{shown} has an @ after its host: write / in a password as %2F, ? as %3F, # as %23, @ as %40")
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"{shown} has the scheme {parts.scheme}: use http:// or https://")
    if not parts.hostname or port == 0 or any(letter.isspace() for letter in parts.netloc):
        raise ValueError(f"{shown} has no host: use a form such as http://127.0.0.1:8000")
    if parts.query or parts.fragment:
        raise ValueError(f"{shown} must end after its path: remove the part after ? or #, and give a key as api_key")
    return _split_credentials(parts)


def _split_credentials(parts: SplitResult) -> dict[str, str]:
    credentials, _, host = parts.netloc.rpartition("@")
    url = parts._replace(netloc=host).geturl().rstrip("/").removesuffix("/v1")
    if not credentials.strip(":"):
        return {"url": url}
    if ":" not in credentials:
        return {"url": url, "api_key": unquote(credentials)}
    # RFC 7617: the password begins after the first colon.
    encoded = base64.b64encode(unquote(credentials).encode()).decode()
    return {"url": url, "authorization": f"Basic {encoded}"}


def url_without_secrets(text: str) -> str:
    """Return a URL without its credentials, query, and fragment."""
    scheme, separator, rest = text.strip().rpartition("://") if "://" in text else ("", "", text.strip())
    # A password may contain ? and #, so remove the credentials first.
    rest = rest.rpartition("@")[2]
    return f"{scheme}{separator}{rest.partition('?')[0].partition('#')[0]}"
