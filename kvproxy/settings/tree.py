"""The tree of settings. Later sources override earlier ones: defaults, TOML file, environment, flags.

Environment variables have the form `KVPROXY_PORT`, `KVPROXY_CACHE__TTL`; an empty variable counts as unset. The TOML file is
`KVPROXY_CONFIG`, or `kvproxy.toml` in the data folder of the flag, of `KVPROXY_DATA`, or of the platform.
"""

import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any, get_args

import platformdirs
from pydantic import BaseModel, Field, SecretStr, ValidationError, field_validator, model_validator
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
from kvproxy.settings.credentials import PlainKey, parse_upstream_url
from kvproxy.settings.edits import EditSettings
from kvproxy.settings.engine import EngineSettings
from kvproxy.settings.journal import JournalSettings
from kvproxy.settings.limits import LimitSettings
from kvproxy.settings.privacy import EncryptionSettings, RedactionSettings
from kvproxy.settings.rules import RuleSettings
from kvproxy.settings.telemetry import LogSettings, TelemetrySettings
from kvproxy.settings.tiers import TierSettings
from kvproxy.settings.toml_lines import SettingConflict, SettingPath, line_of
from kvproxy.settings.upstreams import RoutingSettings, SlotSettings, UpstreamServer, UpstreamSettings


class Settings(BaseSettings):
    """All settings."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_prefix="KVPROXY_",
        # `KVPROXY_ADMIN_TOKEN=$UNSET` in a script must not set an empty token.
        env_ignore_empty=True,
        env_nested_delimiter="__",
        nested_model_default_partial_update=True,
    )

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8484, ge=0, le=65_535, description="Port to listen on; 0 selects a free port.")
    model: str = Field("demo", description="Model of the embedded engine: demo, a folder, or a Hugging Face id.")
    upstream: str | None = Field(
        None, description="Forward to this OpenAI-compatible server instead of the embedded engine."
    )
    upstreams: tuple[UpstreamServer, ...] = Field(
        (),
        description="Upstreams as URLs, or as tables with url, api_key, authorization, weight, kv_events, kv_replay, kv_topic,"
        " hash_algorithm and hash_seed, see [routing](routing.md).",
    )
    embedder: str = Field(
        "default", description="Embedder: default, multilingual, a folder, or a sentence-transformers id."
    )
    data: Path = Field(
        default_factory=lambda: Path(platformdirs.user_data_dir("kvproxy")), description="Data folder for all state."
    )
    store: str | None = Field(
        None,
        # A URL may contain a password.
        repr=False,
        description="File of stored responses, or postgresql://USER@HOST/DATABASE; by default responses.db in the data folder.",
    )
    admin_token: PlainKey = Field(
        None, repr=False, description="Bearer token of the admin routes; required beyond loopback."
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
        description="Clients in addition to those of `kvproxy keys`: tables with name, key_sha256, requests_per_minute,"
        " tokens_per_minute, concurrent_requests and stored_bytes. With a client, the proxy requires API keys.",
    )
    limits: LimitSettings = LimitSettings()
    rules: tuple[RuleSettings, ...] = Field(
        (), description="Settings for some requests, see [rules](rules.md); reloaded without a restart."
    )
    edits: tuple[EditSettings, ...] = Field(
        (),
        description="Edits that let prompts share their beginning: tables with name, model, action, role, pattern and lead, see"
        " [logs](logs.md#changes-on-the-way).",
    )
    encryption: EncryptionSettings = EncryptionSettings()
    redaction: RedactionSettings = RedactionSettings()
    journal: JournalSettings = JournalSettings()
    log: LogSettings = LogSettings()
    telemetry: TelemetrySettings = TelemetrySettings()

    @field_validator("store", mode="before")
    @classmethod
    def _as_text(cls, value: object) -> object:
        return str(value) if isinstance(value, Path) else value

    @model_validator(mode="before")
    @classmethod
    def _expand_upstream(cls, values: dict[str, Any]) -> dict[str, Any]:
        url = values.get("upstream")
        is_single = isinstance(url, str) and url and not values.get("upstreams")
        return values | {"upstreams": (url,)} if is_single else values

    @field_validator("upstream")
    @classmethod
    def _clean_url(cls, value: str | None) -> str | None:
        return parse_upstream_url(value)["url"] if value else None

    @model_validator(mode="after")
    def _check_rules(self) -> "Settings":
        edits = {edit.name for edit in self.edits}
        for index, rule in enumerate(self.rules):
            if unknown := set(rule.edits or ()) - edits:
                raise SettingConflict(
                    f"the rule {rule.name}: there is no edit {min(unknown)!r}", ("rules", index, "edits")
                )
            if rule.policy == "learned" and self.cache.policy != "learned":
                reason = 'learned requires cache.policy = "learned"'
            elif rule.policy == "checked" and self.cache.verifier == "none":
                reason = "checked requires a verifier: set cache.verifier"
            else:
                continue
            raise SettingConflict(f"the rule {rule.name}: {reason}", ("rules", index, "policy"))
        return self

    @model_validator(mode="after")
    def _check_privacy(self) -> "Settings":
        if self.encryption.enabled and self.journal.enabled:
            reason = 'would store plain text beside an encrypted store: set it to "none"'
            if self.journal.text != "none" and "text" in self.journal.model_fields_set:
                raise ValueError(f"journal.text {reason}")
            for index, rule in enumerate(self.rules):
                if rule.journal_text not in (None, "none"):
                    path = ("rules", index, "journal_text")
                    raise SettingConflict(f"journal_text of the rule {rule.name} {reason}", path)
        plain = [name for name in ("disk", "redis") if getattr(self.tiers, name) is not None]
        if plain and self.redaction.enabled and not self.encryption.enabled:
            raise ValueError(
                f"tiers.{plain[0]} would store unredacted prompt tokens in plain text: set encryption.key_file, or remove"
                " the tier"
            )
        return self

    @property
    def store_where(self) -> str:
        return self.store or str(self.data / "responses.db")

    @property
    def store_path(self) -> Path:
        """Return the file of the stored responses, if they are in a file."""
        return Path(self.store_where)

    @property
    def servers(self) -> tuple[UpstreamServer, ...]:
        """Return the upstreams with their keys; empty with the embedded engine."""
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
    named = os.environ.get("KVPROXY_CONFIG")
    folder = data or os.environ.get("KVPROXY_DATA") or platformdirs.user_data_dir("kvproxy")
    return Path(named) if named else Path(folder) / "kvproxy.toml"


def load_settings(**flags: Any) -> Settings:
    """Load settings from all sources; flags of None are ignored. Raises SettingsError."""
    named = os.environ.get("KVPROXY_CONFIG")
    if named and not Path(named).is_file():
        raise SettingsError(f"KVPROXY_CONFIG is {named}, which is not a file: create it, or unset the variable")
    _check_variables()
    try:
        return Settings(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        given = {name for name, value in flags.items() if value is not None}
        raise _explained(error, _config_file(flags.get("data")), given) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"cannot read {_config_file(flags.get('data'))}: {error}") from None
    except ValueError as error:
        # An environment variable does not contain the JSON of its setting.
        raise SettingsError(f"an environment variable must contain JSON: {error} ({error.__cause__})") from None


def _check_variables() -> None:
    """Reject a misspelt variable of a setting outside the sections; pydantic ignores it."""
    settings = [name for name in _setting_names(Settings) if "." not in name]
    known = {*Settings.model_fields, "config", "debug", "url"}
    for variable in os.environ:
        name = variable.removeprefix("KVPROXY_").lower()
        if variable.startswith("KVPROXY_") and "__" not in name and name not in known:
            for near in difflib.get_close_matches(name, settings, n=1, cutoff=0.7):
                raise SettingsError(f"there is no setting for {variable}: did you mean KVPROXY_{near.upper()}?")


def _explained(error: ValidationError, file: Path, flags: Set[str]) -> SettingsError:
    first = error.errors()[0]
    explained, path = _settings_error(first), _path(first)
    is_elsewhere = not path or path[0] in flags or "KVPROXY_" + "__".join(map(str, path)).upper() in os.environ
    line = None if is_elsewhere or not file.is_file() else line_of(file.read_text(), path)
    return (
        explained
        if line is None
        else SettingsError(f"{explained.message} ({file}, line {line})", param=explained.param)
    )


def _path(first: Mapping[str, Any]) -> SettingPath:
    cause = first.get("ctx", {}).get("error")
    return cause.path if isinstance(cause, SettingConflict) else first["loc"]


def _settings_error(first: Mapping[str, Any]) -> SettingsError:
    path = ".".join(map(str, _path(first))) or "settings"
    # The value may be a secret: own validators and unknown settings do not show it.
    if first["type"] == "value_error":
        return SettingsError(f"setting {path}: {first['msg'].removeprefix('Value error, ')}", param=path)
    if first["type"] == "extra_forbidden":
        hint = _similar(_path(first))
        return SettingsError(f"setting {path}: there is no such setting; {hint}", param=path)
    return SettingsError(f"setting {path}: {first['msg']} (given {first['input']!r})", param=path)


def _similar(path: SettingPath) -> str:
    settings = set(_setting_names(Settings))
    names = sorted(settings | {name.rpartition(".")[0] for name in settings} - {""})
    wanted = ".".join(part for part in path if isinstance(part, str))
    section = wanted.rpartition(".")[0]
    # A setting of another section has the same last name.
    elsewhere = [name for name in names if name.rpartition(".")[2] == wanted.rpartition(".")[2]]
    near = difflib.get_close_matches(wanted, [name for name in names if name.rpartition(".")[0] == section], n=1)
    found = elsewhere[:1] or near or difflib.get_close_matches(wanted, names, n=1)
    return f"did you mean {found[0]}?" if found else "docs/configuration.md lists all settings"


def _setting_names(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in section.model_fields.items():
        kinds = [kind for kind in (field.annotation, *get_args(field.annotation)) if isinstance(kind, type)]
        nested = next((kind for kind in kinds if issubclass(kind, BaseModel)), None)
        yield from [f"{prefix}{name}"] if nested is None else _setting_names(nested, f"{prefix}{name}.")
