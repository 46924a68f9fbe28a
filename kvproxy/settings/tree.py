"""One frozen tree of settings. Later sources win: defaults, a TOML file, the environment, flags.

Environment variables are `KVPROXY_` plus the path joined by two underscores: `KVPROXY_PORT`, `KVPROXY_CACHE__TTL`.
An empty environment variable counts as unset. The TOML file is `kvproxy.toml` in the data folder unless
`KVPROXY_CONFIG` names another one; the data folder is then that of a flag, of `KVPROXY_DATA`, or the default.
"""

import os
import tomllib
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

import platformdirs
from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from kvproxy.errors import SettingsError
from kvproxy.settings.access import AccessSettings
from kvproxy.settings.cache import CacheSettings
from kvproxy.settings.clients import ClientSettings
from kvproxy.settings.edits import EditSettings
from kvproxy.settings.engine import EngineSettings
from kvproxy.settings.journal import JournalSettings
from kvproxy.settings.keys import PlainKey
from kvproxy.settings.limits import LimitSettings
from kvproxy.settings.lines import Misplaced, line_of
from kvproxy.settings.privacy import EncryptionSettings, RedactionSettings
from kvproxy.settings.rules import RuleSettings
from kvproxy.settings.slots import SlotSettings
from kvproxy.settings.telemetry import TelemetrySettings
from kvproxy.settings.tiers import TierSettings
from kvproxy.settings.upstreams import RoutingSettings, UpstreamServer, UpstreamSettings
from kvproxy.settings.urls import read_url


class Settings(BaseSettings):
    """Everything that can be configured."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_prefix="KVPROXY_",
        # `KVPROXY_ADMIN_TOKEN=$UNSET` in a script must not become a token that everybody knows.
        env_ignore_empty=True,
        env_nested_delimiter="__",
        nested_model_default_partial_update=True,
    )

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8484, ge=0, le=65_535, description="Port to listen on; 0 picks a free one.")
    model: str = Field("demo", description="Model of the embedded engine: demo, a folder, or a Hugging Face id.")
    upstream: str | None = Field(None, description="Forward to this OpenAI-compatible server instead of a model.")
    upstreams: tuple[UpstreamServer, ...] = Field(
        (),
        description="Forward to several: a list of URLs, or of tables with url, api_key, authorization, weight, kv_events,"
        " kv_replay, kv_topic, hash_algorithm and hash_seed, see [routing](routing.md).",
    )
    embedder: str = Field("default", description="Embedder: default, a folder, or a sentence-transformers id.")
    data: Path = Field(
        default_factory=lambda: Path(platformdirs.user_data_dir("kvproxy")), description="Folder for all state."
    )
    store: str | None = Field(
        None,
        # A URL may hold a password.
        repr=False,
        description="File of stored responses, or postgresql://USER@HOST/DATABASE; responses.db in the data folder if unset.",
    )
    admin_token: PlainKey = Field(
        None, repr=False, description="Bearer token of the admin routes; needed beyond loopback."
    )
    cache: CacheSettings = CacheSettings()
    engine: EngineSettings = EngineSettings()
    tiers: TierSettings = TierSettings()
    forward: UpstreamSettings = UpstreamSettings()
    routing: RoutingSettings = RoutingSettings()
    slots: SlotSettings = SlotSettings()
    access: AccessSettings = AccessSettings()
    clients: tuple[ClientSettings, ...] = Field(
        (),
        description="Who may use the proxy, beside those of `kvproxy keys`: tables with name, key_sha256,"
        " requests_per_minute, tokens_per_minute, concurrent_requests and stored_bytes. With any, nobody else may.",
    )
    limits: LimitSettings = LimitSettings()
    rules: tuple[RuleSettings, ...] = Field(
        (), description="What holds for some requests only, see [rules](rules.md); read again without a restart."
    )
    edits: tuple[EditSettings, ...] = Field(
        (),
        description="Changes that make the beginnings of prompts alike: tables with name, model, action, role, pattern and"
        " lead; see [what a log tells](logs.md#changes-on-the-way). None are made by default.",
    )
    encryption: EncryptionSettings = EncryptionSettings()
    redaction: RedactionSettings = RedactionSettings()
    journal: JournalSettings = JournalSettings()
    telemetry: TelemetrySettings = TelemetrySettings()

    @field_validator("store", mode="before")
    @classmethod
    def _as_text(cls, value: object) -> object:
        return str(value) if isinstance(value, Path) else value

    @model_validator(mode="before")
    @classmethod
    def _one_of_several(cls, values: dict[str, Any]) -> dict[str, Any]:
        """`upstream` is short for a list of one."""
        one = values.get("upstream")
        return (
            values | {"upstreams": (one,)} if isinstance(one, str) and one and not values.get("upstreams") else values
        )

    @field_validator("upstream")
    @classmethod
    def _clean_url(cls, value: str | None) -> str | None:
        return read_url(value).url if value else None

    @model_validator(mode="after")
    def _rules_fit(self) -> "Settings":
        """A rule can only name what there is."""
        edits = {edit.name for edit in self.edits}
        for place, rule in enumerate(self.rules):

            def unfit(name: str, why: str, place: int = place, rule: RuleSettings = rule) -> Misplaced:
                return Misplaced(f"the rule {rule.name}: {why}", ("rules", place, name))

            if unknown := set(rule.edits or ()) - edits:
                raise unfit("edits", f"there is no edit {min(unknown)!r}")
            if rule.policy == "learned" and self.cache.policy != "learned":
                raise unfit("policy", 'learned needs cache.policy = "learned", under which the policy learns')
            if rule.policy == "checked" and self.cache.verifier == "none":
                raise unfit("policy", "checked needs a verifier, and cache.verifier is none")
        return self

    @model_validator(mode="after")
    def _nothing_in_clear(self) -> "Settings":
        """Chunks hold the tokens of prompts, which redaction cannot change; the journal's file is not encrypted."""
        if self.encryption.enabled and self.journal.enabled:
            why = 'would keep the words of requests in clear beside an encrypted store: set it to "none"'
            if self.journal.text != "none" and "text" in self.journal.model_fields_set:
                raise ValueError(f"journal.text {why}")
            for place, rule in enumerate(self.rules):
                if rule.journal_text not in (None, "none"):
                    raise Misplaced(f"journal_text of the rule {rule.name} {why}", ("rules", place, "journal_text"))
        kept = [name for name in ("disk", "redis") if getattr(self.tiers, name) is not None]
        if kept and self.redaction.enabled and not self.encryption.enabled:
            raise ValueError(
                f"tiers.{kept[0]} would keep the tokens of prompts, unredacted and in clear: set encryption.key_file too, or"
                " leave the tier out"
            )
        return self

    @property
    def store_where(self) -> str:
        """Where the responses are: a path, or a URL."""
        return self.store or str(self.data / "responses.db")

    @property
    def store_path(self) -> Path:
        """The file of stored responses, where it is one."""
        return Path(self.store_where)

    @property
    def servers(self) -> tuple[UpstreamServer, ...]:
        """The upstreams, each with the key that it is sent; none where the embedded engine computes."""
        shared = self.forward.api_key
        if not shared:
            return self.upstreams
        key = {"api_key": SecretStr(shared)}
        return tuple(
            each if each.api_key or each.authorization else each.model_copy(update=key) for each in self.upstreams
        )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        data = init_settings.init_kwargs.get("data") if isinstance(init_settings, InitSettingsSource) else None
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, _config_file(data))


def _config_file(data: Path | str | None) -> Path:
    """The TOML file for a data folder that a flag names, or for the one of the environment or the default."""
    named = os.environ.get("KVPROXY_CONFIG")
    folder = data or os.environ.get("KVPROXY_DATA") or platformdirs.user_data_dir("kvproxy")
    return Path(named) if named else Path(folder) / "kvproxy.toml"


def load_settings(**flags: Any) -> Settings:
    """Settings from every source; flags that are None count as not given.

    Raises:
        SettingsError: a value is impossible, or the TOML file cannot be read; the message names the setting.
    """
    named = os.environ.get("KVPROXY_CONFIG")
    if named and not Path(named).is_file():
        raise SettingsError(f"KVPROXY_CONFIG names {named}, which is not a file: create it or unset the variable")
    try:
        return Settings(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        given = {name for name, value in flags.items() if value is not None}
        raise _explained(error, _config_file(flags.get("data")), given) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"cannot read {_config_file(flags.get('data'))}: {error}") from None
    except ValueError as error:
        # An environment variable that must hold JSON.
        raise SettingsError(f"an environment variable must hold JSON: {error} ({error.__cause__})") from None


def _explained(error: ValidationError, file: Path, flags: Set[str]) -> SettingsError:
    """What is wrong with the first setting that is wrong, and where in the file it stands, unless it was set elsewhere."""
    first = error.errors()[0]
    told, place = _told(first), _place(first)
    elsewhere = not place or place[0] in flags or "KVPROXY_" + "__".join(map(str, place)).upper() in os.environ
    line = None if elsewhere or not file.is_file() else line_of(file.read_text(), place)
    return told if line is None else SettingsError(f"{told.message} ({file}, line {line})", param=told.param)


def _place(first: Mapping[str, Any]) -> tuple[str | int, ...]:
    """Where the setting stands that is wrong."""
    cause = first.get("ctx", {}).get("error")
    return cause.place if isinstance(cause, Misplaced) else first["loc"]


def _told(first: Mapping[str, Any]) -> SettingsError:
    path = ".".join(map(str, _place(first))) or "settings"
    # What is given may be a secret: our own messages show what may be shown, and an unknown setting is told by its name.
    if first["type"] == "value_error":
        return SettingsError(f"setting {path}: {first['msg'].removeprefix('Value error, ')}", param=path)
    if first["type"] == "extra_forbidden":
        return SettingsError(f"setting {path}: there is no such setting, see docs/configuration.md", param=path)
    return SettingsError(f"setting {path}: {first['msg']} (given {first['input']!r})", param=path)
