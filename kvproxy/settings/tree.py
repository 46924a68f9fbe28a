"""All settings. Later sources override earlier sources: defaults, TOML file, environment, flags."""

import functools
import itertools
import os
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import platformdirs
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

from kvproxy.errors import InvalidSettingsFile, NotFound, SettingsError
from kvproxy.index.store_location import location_error
from kvproxy.settings.access import AccessSettings, ClientSettings
from kvproxy.settings.cache import CacheSettings
from kvproxy.settings.engine import EngineSettings, TierSettings
from kvproxy.settings.environment import merged, override_by_environment
from kvproxy.settings.errors import SettingConflict, SettingConflicts, explain_invalid_settings, unknown_variables
from kvproxy.settings.journal import PRICE_FILE, JournalSettings
from kvproxy.settings.limits import LimitSettings
from kvproxy.settings.models import model_conflicts
from kvproxy.settings.path import PathSettings
from kvproxy.settings.privacy import EncryptionSettings, RedactionSettings
from kvproxy.settings.rules import EditSettings, RuleSettings
from kvproxy.settings.telemetry import LogSettings, TelemetrySettings
from kvproxy.settings.upstreams import (
    PlainKey,
    RoutingSettings,
    SlotSettings,
    UpstreamServer,
    UpstreamSettings,
    missing_keys,
    parse_upstream_url,
)

_OTHER_VARIABLES = "KVPROXY_CONFIG", "KVPROXY_DEBUG", "KVPROXY_URL"


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=8484, ge=0, le=65_535, description="Port to listen on; 0 selects a free port.")
    shared_port: int | None = Field(
        default=None,
        ge=1,
        le=65_535,
        description="Second port, on which several proxies of this machine listen; they need one store in PostgreSQL.",
    )
    model: str = Field(
        default="demo", description="Model of the embedded engine: demo, a folder, or a Hugging Face id."
    )
    upstream: str | None = Field(default=None, description="OpenAI-compatible server, instead of the embedded engine.")
    upstreams: tuple[UpstreamServer, ...] = Field(
        default=(),
        description="Upstreams as URLs, or as tables with url, models, aliases, api_key, api_key_env, api_key_file,"
        " authorization, first_byte_timeout, read_timeout, weight, kind, kv_events, kv_replay, hash_algorithm and hash_seed, see"
        " [routing](routing.md).",
    )
    embedder: str = Field(
        default="default", description="default, multilingual, a plugin's, a folder, or a sentence-transformers id."
    )
    data: Path = Field(
        default_factory=lambda: Path(platformdirs.user_data_dir("kvproxy")), description="Data folder for all state."
    )
    # A URL may contain a password.
    store: str | None = Field(
        default=None,
        repr=False,
        description="File of stored responses, or postgresql://USER@HOST/DATABASE; by default responses.db in the data folder.",
    )
    admin_token: PlainKey = Field(
        default=None,
        repr=False,
        description="Bearer token of the admin routes; without it, they answer only requests from this machine.",
    )
    metrics_token: PlainKey = Field(
        default=None,
        repr=False,
        description="Bearer token that opens only `/metrics`, for Prometheus; the admin token opens it, too.",
    )
    cache: CacheSettings = CacheSettings()
    path: PathSettings = PathSettings()
    engine: EngineSettings = EngineSettings()
    tiers: TierSettings = TierSettings()
    forward: UpstreamSettings = UpstreamSettings()
    routing: RoutingSettings = RoutingSettings()
    slots: SlotSettings = SlotSettings()
    access: AccessSettings = AccessSettings()
    clients: tuple[ClientSettings, ...] = Field(
        default=(),
        description="Further clients besides the list of `kvproxy keys ls`: tables with name, key_sha256, requests_per_minute,"
        " tokens_per_minute, concurrent_requests, budget_per_day, budget_per_month, stored_bytes, models, expires and disabled.",
    )
    limits: LimitSettings = LimitSettings()
    rules: tuple[RuleSettings, ...] = Field(
        default=(), description="Settings for some requests, see [rules](rules.md)."
    )
    edits: tuple[EditSettings, ...] = Field(
        default=(), description="Edits that let prompts share their beginning, see [logs](logs.md#changes-on-the-way)."
    )
    encryption: EncryptionSettings = EncryptionSettings()
    redaction: RedactionSettings = RedactionSettings()
    journal: JournalSettings = JournalSettings()
    log: LogSettings = LogSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    _flags: dict[str, Any] = PrivateAttr(default_factory=dict)

    def reloaded(self) -> "Settings":
        """Load the settings from all sources again, with the same flags. Raises SettingsError."""
        return load_settings(**{"data": self.data} | self._flags)

    def changed_names(self, after: "Settings") -> list[str]:
        """Return the names of settings that differ."""
        return _changed_names(self, after)

    @field_validator("data")
    @classmethod
    def _absolute_path(cls, value: Path) -> Path:
        # Commands in another working folder compare it.
        return value.absolute()

    @field_validator("store", mode="before")
    @classmethod
    def _path_to_text(cls, value: object) -> object:
        return str(value) if isinstance(value, Path) else value

    @field_validator("store")
    @classmethod
    def _check_store(cls, value: str | None) -> str | None:
        if value is not None and (error := location_error(value)) is not None:
            raise ValueError(error)
        return value

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
    def _check_conflicts(self) -> "Settings":
        models = model_conflicts(self.upstreams, self.routing.fallbacks)
        own_conflicts = (
            self._port_conflicts(),
            self._upstream_conflicts(),
            self._rule_conflicts(),
            self._privacy_conflicts(),
            self._journal_conflicts(),
            self._client_conflicts(),
            self._tenant_conflicts(),
        )
        if conflicts := [*itertools.chain(*own_conflicts, models)]:
            raise SettingConflicts(conflicts)
        return self

    def _upstream_conflicts(self) -> Iterator[SettingConflict]:
        if self.upstream is not None and [server.url for server in self.upstreams] != [self.upstream]:
            yield SettingConflict(
                "upstream and [[upstreams]] are both set: remove upstream, or list its server in [[upstreams]]",
                ("upstream",),
            )

    def _client_conflicts(self) -> Iterator[SettingConflict]:
        names = Counter(client.name for client in self.clients)
        for index, client in enumerate(self.clients):
            if names[client.name] > 1:
                yield SettingConflict(
                    f"{names[client.name]} clients have the name {client.name}", ("clients", index, "name")
                )

    def _tenant_conflicts(self) -> Iterator[SettingConflict]:
        if self.access.tenant_claim is None:
            return
        replaced = self.forward.api_key or any(upstream.has_key for upstream in self.upstreams)
        if replaced or not self.upstreams:
            yield SettingConflict(
                "nobody verifies the tokens of clients: access.tenant_claim requires an upstream that receives them, so remove"
                " the API key of the upstream, or use kvproxy keys",
                ("access", "tenant_claim"),
            )

    def _rule_conflicts(self) -> Iterator[SettingConflict]:
        edits = {edit.name for edit in self.edits}
        names = Counter(rule.name for rule in self.rules)
        for index, rule in enumerate(self.rules):
            if names[rule.name] > 1:
                yield SettingConflict(f"{names[rule.name]} rules have the name {rule.name}", ("rules", index, "name"))
            for unknown in sorted(set(rule.edits or ()) - edits):
                yield SettingConflict(f"the rule {rule.name}: there is no edit {unknown!r}", ("rules", index, "edits"))
            reason = None
            if rule.policy == "learned" and self.cache.policy != "learned":
                reason = 'learned requires cache.policy = "learned"'
            elif rule.policy == "checked" and self.cache.verifier == "none":
                reason = "checked requires a verifier: set cache.verifier"
            if reason is not None:
                yield SettingConflict(f"the rule {rule.name}: {reason}", ("rules", index, "policy"))

    def _privacy_conflicts(self) -> Iterator[SettingConflict]:
        if self.encryption.enabled and self.journal.enabled:
            reason = 'would store plain text beside an encrypted store: set it to "none"'
            if self.journal.text != "none" and "text" in self.journal.model_fields_set:
                yield SettingConflict(f"journal.text {reason}", ("journal", "text"))
            for index, rule in enumerate(self.rules):
                if rule.journal_text not in (None, "none"):
                    path = ("rules", index, "journal_text")
                    yield SettingConflict(f"journal_text of the rule {rule.name} {reason}", path)
        plain = [name for name in ("disk", "redis") if getattr(self.tiers, name) is not None]
        if plain and self.redaction.enabled and not self.encryption.enabled:
            yield SettingConflict(
                f"tiers.{plain[0]} would store unredacted prompt tokens in plain text: set encryption.key_file, or remove"
                " the tier",
                ("tiers", plain[0]),
            )

    def _port_conflicts(self) -> Iterator[SettingConflict]:
        if self.shared_port is None:
            return
        if not self._is_store_in_postgres:
            yield SettingConflict(
                "requires a store in PostgreSQL, which the proxies share: set store", ("shared_port",)
            )
        if self.shared_port == self.port:
            yield SettingConflict("must differ from port, which each proxy has alone", ("shared_port",))

    def _journal_conflicts(self) -> Iterator[SettingConflict]:
        if self.journal.store == "postgres" and not self._is_store_in_postgres:
            yield SettingConflict('journal.store = "postgres" requires a store in PostgreSQL', ("journal", "store"))

    @property
    def _is_store_in_postgres(self) -> bool:
        return self.store_location.startswith(("postgresql://", "postgres://"))

    @property
    def journal_file(self) -> str | None:
        """File of the journal; None if there is no journal, or if it is in a database server."""
        return str(self._journal_path) if self.journal.enabled and not self._is_journal_shared else None

    @property
    def journal_location(self) -> str:
        return self.store_location if self._is_journal_shared else str(self._journal_path)

    @property
    def _is_journal_shared(self) -> bool:
        return self._is_store_in_postgres and self.journal.store != "file"

    @property
    def _journal_path(self) -> Path:
        return self.data / "journal.db"

    @property
    def store_location(self) -> str:
        return self.store or str(self.data / "responses.db")

    @property
    def store_path(self) -> Path:
        """The file of the store. It does not exist if the store is in PostgreSQL."""
        return Path(self.store_location)

    @property
    def servers(self) -> tuple[UpstreamServer, ...]:
        """The upstreams, with `forward.api_key` as the default key; empty for the embedded engine."""
        shared = self.forward.api_key
        if not shared:
            return self.upstreams
        key = {"api_key": SecretStr(shared)}
        return tuple(upstream if upstream.has_key else upstream.model_copy(update=key) for upstream in self.upstreams)


def config_file(data: Path | str | None) -> Path:
    """Return the path of kvproxy.toml for a data folder, which may be missing."""
    named = os.environ.get("KVPROXY_CONFIG")
    folder = data or os.environ.get("KVPROXY_DATA") or platformdirs.user_data_dir("kvproxy")
    return Path(named) if named else Path(folder) / "kvproxy.toml"


def unread_settings(data: Path) -> str | None:
    """Return a note about a file in the data folder that looks like settings, but has another format than TOML."""
    others = (data / f"kvproxy.{suffix}" for suffix in ("yaml", "yml", "json"))
    found = next((file for file in others if file.is_file()), None)
    if found is None:
        return None
    return f"{found} is not read: the settings are in kvproxy.toml, of which kvproxy init writes a template"


def load_settings(*, file: Path | None = None, **flags: Any) -> Settings:
    """Load settings from all sources; a flag that is None is not set. Raises SettingsError with one line per problem.

    `file` replaces kvproxy.toml of the data folder, and `KVPROXY_CONFIG`. Raises NotFound if it does not exist.
    """
    if file is not None and not file.exists():
        raise NotFound(f"no file {file}: check the path")
    if file is not None and not file.is_file():
        raise SettingsError(f"{file} is not a file: name a file with settings")
    named = os.environ.get("KVPROXY_CONFIG")
    if file is None and named not in (None, "", os.devnull) and not Path(named).is_file():
        raise SettingsError(f"KVPROXY_CONFIG is {named}, which is not a file: create it, or unset the variable")
    given = {name: value for name, value in flags.items() if value is not None}
    file, names = file or config_file(given.get("data")), _setting_names()
    problems, others, values = list[str](), list[str](), dict[str, Any]()
    try:
        values = merged(override_by_environment(_read_toml(file), Settings), given)
        settings = Settings.model_validate(values)
        others = [settings.encryption.key_env or "", *(server.api_key_env or "" for server in settings.upstreams)]
    except ValidationError as error:
        problems += explain_invalid_settings(error, names, given, file)
        problems += missing_keys(values.get("upstreams"))
    except tomllib.TOMLDecodeError as error:
        problems.append(f"cannot read {file} as TOML, the only format of settings: {error}")
    except (OSError, UnicodeDecodeError) as error:
        problems.append(f"cannot read {file}: {error}")
    except SettingsError as error:
        problems.append(error.message)
    problems += unknown_variables([*names, *Settings.model_fields], [*_OTHER_VARIABLES, *others])
    if problems:
        kind = InvalidSettingsFile if file.is_file() else SettingsError
        raise kind("\n".join(problems)) from None
    settings = _with_price_list(settings)
    settings._flags.update(given)
    return settings


def _changed_names(before: BaseModel, after: BaseModel) -> list[str]:
    names = []
    for name in sorted(type(before).model_fields):
        old, new = getattr(before, name), getattr(after, name)
        if old == new:
            continue
        is_section = isinstance(old, BaseModel) and isinstance(new, BaseModel)
        names += [f"{name}.{inner}" for inner in _changed_names(old, new)] if is_section else [name]
    return names


def _read_toml(file: Path) -> dict[str, Any]:
    return tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def _with_price_list(settings: Settings) -> Settings:
    """Return the settings with the downloaded list prices of the data folder, unless they name a list."""
    file = settings.data / PRICE_FILE
    if settings.journal.price_list is not None or not file.is_file():
        return settings
    journal = settings.journal.model_copy(update={"price_list": file})
    return settings.model_copy(update={"journal": journal})


@functools.cache
def _setting_names() -> tuple[str, ...]:
    return tuple(_names_of(Settings))


def _names_of(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in section.model_fields.items():
        kinds = [kind for kind in (field.annotation, *get_args(field.annotation)) if isinstance(kind, type)]
        nested = next((kind for kind in kinds if issubclass(kind, BaseModel)), None)
        yield from [f"{prefix}{name}"] if nested is None else _names_of(nested, f"{prefix}{name}.")
