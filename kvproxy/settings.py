"""One frozen tree of settings. Later sources win: defaults, a TOML file, the environment, flags.

Environment variables are `KVPROXY_` plus the path joined by two underscores: `KVPROXY_PORT`, `KVPROXY_CACHE__TTL`.
The TOML file is `kvproxy.toml` in the data folder unless `KVPROXY_CONFIG` names another one.
"""

import os
from pathlib import Path
from typing import Any, Literal

import platformdirs
from pydantic import BaseModel, ByteSize, ConfigDict, Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from kvproxy.errors import SettingsError

PolicyName = Literal["threshold", "checked", "verified"]
# The cosine alone has to be high; where a verifier has the last word, the cosine only finds what to ask it about.
LEAST_SIMILARITY: dict[PolicyName, float] = {"threshold": 0.95, "checked": 0.6, "verified": 0.6}


class CacheSettings(BaseModel):
    """The response cache."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    enabled: bool = Field(True, description="Answer from stored responses at all.")
    semantic: bool = Field(True, description="Look for similar questions when the exact key misses.")
    policy: PolicyName = Field(
        "checked", description="What decides over similar questions; see docs/semantic-cache.md."
    )
    threshold: float | None = Field(
        None,
        ge=0.0,
        le=1.0,
        description="Least cosine similarity of a semantic hit; by default 0.95 for the policy threshold, and 0.6 for the"
        " others, which ask a verifier too.",
    )
    guards: bool = Field(True, description="Let guards veto before the policy is asked.")
    verifier: str = Field(
        "built-in",
        description="Reads both questions: built-in, a folder or id of a CrossEncoder, or none (verified only).",
    )
    level: float = Field(0.9, ge=0.0, le=1.0, description="Least probability of the verifier, for the policy checked.")
    max_error: float = Field(
        0.01, gt=0.0, lt=1.0, description="Largest share of wrong answers among those served, for the policy verified."
    )
    shadow: bool = Field(
        False, description="Serve no similar question's answer, but count what would have been served."
    )
    judge: Literal["similarity", "equality", "model", "none"] = Field(
        "similarity", description="How a fresh answer is compared with the cached one that was not served."
    )
    judge_similarity: float = Field(
        0.9, ge=0.0, le=1.0, description="Least cosine similarity of two answers that count as the same."
    )
    ttl: float = Field(86_400.0, gt=0, description="Seconds that a stored response may be served.")
    max_ttl: float | None = Field(
        None, gt=0, description="Most seconds that a request may ask for with x-kvproxy-ttl; as many as ttl if unset."
    )
    max_response_bytes: int = Field(
        8 * 2**20, ge=1, description="Largest response that is stored, or shared between identical requests under way."
    )
    shared: bool = Field(
        False, description="Answer every API key from all responses; otherwise each has its own, hashed as its tenant."
    )
    max_entries: int | None = Field(None, ge=1, description="Most stored responses; beyond it the least useful go.")
    max_bytes: int | None = Field(
        None, ge=1, description="Most bytes of requests, responses and vectors; beyond it the least useful go."
    )
    vectors: Literal["float32", "fp16", "int8"] = Field(
        "float32", description="How vectors are kept in memory; fp16 takes half, int8 a quarter."
    )

    @property
    def least_similarity(self) -> float:
        """The threshold, or the default of the policy."""
        if self.threshold is not None:
            return self.threshold
        return LEAST_SIMILARITY[self.policy]


class EngineSettings(BaseModel):
    """The embedded engine and its block pool."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    block_size: int = Field(16, ge=1, description="Tokens in one KV block.")
    num_blocks: int | None = Field(None, ge=2, description="Blocks in the pool; by default sized from kv_memory.")
    kv_memory: float = Field(
        0.5, gt=0, description="Memory of the pool: a share of the free device memory up to 1, as 0.9, or else bytes."
    )
    max_batch_tokens: int = Field(2048, ge=1, description="Tokens computed in one scheduler step.")
    max_sequences: int = Field(64, ge=1, description="Sequences computed in one scheduler step.")
    max_model_len: int | None = Field(None, ge=1, description="Longest sequence; by default the model's own limit.")
    device: str = Field("auto", description="auto, cpu, cuda or cuda:N.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="Weights and KV; auto is float32 on CPU and bfloat16 on CUDA."
    )
    prefill_attention: Literal["auto", "sdpa", "varlen"] = Field(
        "auto", description="What computes prompts: sdpa anywhere, varlen (FlashAttention) in 16 bits on CUDA."
    )
    decode_attention: Literal["auto", "sdpa", "triton"] = Field(
        "auto", description="What computes the tokens after: sdpa anywhere, triton (our kernels) on CUDA."
    )
    cuda_graphs: bool = Field(
        True,
        description="Replay steps without prompts as CUDA graphs, where Triton computes them; captured at the start.",
    )
    threads: int | None = Field(None, ge=1, description="CPU threads of a forward pass; by default the cores.")
    speculate: int = Field(
        0,
        ge=0,
        le=32,
        description="Guesses at the next tokens, looked up in the request's own text; 0 is off, and so is strict.",
    )
    strict: bool = Field(
        False,
        description="Compute each sequence alone and in whole batches, so that a hit's logits equal an uncached run's bit for"
        " bit, whatever else runs; slow.",
    )
    policy: Literal["lru", "lfu", "s3fifo", "arc"] = Field("lru", description="Which idle cached block goes first.")
    hash_algorithm: Literal["sha256_cbor", "xxhash_cbor", "sha256", "xxhash"] = Field(
        "sha256_cbor", description="How block hashes are computed; named as in vLLM."
    )
    kv_events: str | None = Field(
        None, description="Publish KV events here, as tcp://127.0.0.1:5557. They hold the tokens of prompts."
    )
    kv_replay: str | None = Field(None, description="Answer requests for missed events here, as tcp://127.0.0.1:5558.")
    kv_topic: str = Field("", description="Topic of the published events.")
    kv_buffer: int = Field(10_000, ge=1, le=100_000, description="Batches of events kept for replay.")


class TierSettings(BaseModel):
    """Keys and values kept outside the pool"""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: ByteSize | None = Field(None, description='Host memory for chunks, in bytes or as "4GiB"; none by default.')
    disk: Path | None = Field(None, description="Folder of chunks on disk, which a restart finds; none by default.")
    disk_size: ByteSize = Field(ByteSize(20 << 30), description="Most bytes of chunks on disk.")
    redis: str | None = Field(None, description="URL of a Redis or Valkey server for chunks; none by default.")
    redis_timeout: float = Field(0.5, gt=0, description="Seconds for an answer of Redis.")
    redis_ttl: float | None = Field(86_400.0, gt=0, description="Seconds after which Redis drops a chunk.")
    chunk_tokens: int = Field(256, ge=1, description="Tokens in a chunk, a multiple of engine.block_size.")
    load_timeout: float = Field(
        5.0, gt=0, description="Seconds without progress after which a request computes what it waits for."
    )

    @property
    def enabled(self) -> bool:
        """Whether there is any tier."""
        return self.host is not None or self.disk is not None or self.redis is not None


class UpstreamSettings(BaseModel):
    """Forwarding to an OpenAI-compatible server."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    connect_timeout: float = Field(5.0, gt=0, description="Seconds to wait for a connection.")
    read_timeout: float = Field(600.0, gt=0, description="Seconds between two parts of an answer.")
    max_connections: int = Field(512, ge=1, description="Open connections to the upstream.")
    retries: int = Field(1, ge=0, description="Further tries when no connection could be made.")
    api_key: str | None = Field(None, description="Sent in place of the client's own key.")
    chain: bool = Field(
        False, description="The upstream is a kvproxy too: send it the client's Cache-Control and x-kvproxy-* headers."
    )
    tokenizer: str = Field(
        "upstream",
        description="What turns prompts into tokens, to compare them with mirrored pools: upstream (its /tokenize), a"
        " folder, or a Hugging Face id.",
    )


class UpstreamServer(BaseModel):
    """One server of several."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str = Field(description="With or without /v1.")
    weight: float = Field(1.0, gt=0, description="How fast it is, next to the others.")
    kv_events: str | None = Field(None, description="Where it publishes KV events: tcp://host:5557, or :5557-5560.")
    kv_replay: str | None = Field(None, description="Where it answers requests for missed events, likewise.")
    kv_topic: str = Field("", description="Beginning of the topics to follow.")
    hash_algorithm: Literal["sha256_cbor", "xxhash_cbor", "sha256", "xxhash"] = Field(
        "sha256_cbor", description="Its prefix-caching-hash-algo."
    )
    hash_seed: str | None = Field(None, description="Its PYTHONHASHSEED; by default ours, or vLLM's fixed seed.")


class RoutingSettings(BaseModel):
    """Several upstreams."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    health_interval: float = Field(5.0, gt=0, description="Seconds between two probes of an upstream.")
    health_timeout: float = Field(5.0, gt=0, description="Seconds within which a probe is to be answered.")
    eject_after: int = Field(3, ge=1, description="Failures in a row after which an upstream gets no requests.")
    name: str | None = Field(
        None,
        description="Name of the whole in cache keys; by default all URLs, so that other upstreams share no answers.",
    )


class Settings(BaseSettings):
    """Everything that can be configured."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_prefix="KVPROXY_",
        env_nested_delimiter="__",
        nested_model_default_partial_update=True,
    )

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8484, ge=0, le=65_535, description="Port to listen on; 0 picks a free one.")
    model: str = Field("demo", description="Model of the embedded engine: demo, a folder, or a Hugging Face id.")
    upstream: str | None = Field(None, description="Forward to this OpenAI-compatible server instead of a model.")
    upstreams: tuple[UpstreamServer, ...] = Field(
        (),
        description="Forward to several: a list of tables with url, weight, kv_events, kv_replay, kv_topic, hash_algorithm"
        " and hash_seed, see [routing](routing.md).",
    )
    embedder: str = Field("default", description="Embedder: default, a folder, or a sentence-transformers id.")
    data: Path = Field(
        default_factory=lambda: Path(platformdirs.user_data_dir("kvproxy")), description="Folder for all state."
    )
    store: str | None = Field(
        None,
        description="File of stored responses, or postgresql://USER@HOST/DATABASE; responses.db in the data folder if unset.",
    )
    admin_token: str | None = Field(None, description="Bearer token of the admin routes; needed beyond loopback.")
    cache: CacheSettings = CacheSettings()
    engine: EngineSettings = EngineSettings()
    tiers: TierSettings = TierSettings()
    forward: UpstreamSettings = UpstreamSettings()
    routing: RoutingSettings = RoutingSettings()

    @field_validator("store", mode="before")
    @classmethod
    def _as_text(cls, value: object) -> object:
        return str(value) if isinstance(value, Path) else value

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
        """The upstreams, none where the embedded engine computes."""
        return self.upstreams or ((UpstreamServer(url=self.upstream),) if self.upstream else ())

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, _config_file())


def _config_file() -> Path:
    named = os.environ.get("KVPROXY_CONFIG")
    folder = os.environ.get("KVPROXY_DATA") or platformdirs.user_data_dir("kvproxy")
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
        first = error.errors()[0]
        path = ".".join(str(part) for part in first["loc"]) or "settings"
        raise SettingsError(f"setting {path}: {first['msg']} (given {first['input']!r})", param=path) from None
    except ValueError as error:
        raise SettingsError(f"cannot read {_config_file()}: {error}") from None
