from typing import Any, Literal

from pydantic import Field, model_validator

from kvproxy.settings.credentials import PlainKey, SecretKey, parse_upstream_url
from kvproxy.settings.section import Bytes, Seconds, Section


class UpstreamSettings(Section):
    """Connections to upstreams."""

    connect_timeout: Seconds = Field(5.0, gt=0, description="Connect timeout.")
    read_timeout: Seconds = Field(600.0, gt=0, description="Timeout between chunks of a response.")
    max_connections: int = Field(512, ge=1, description="Maximum connections to an upstream.")
    retries: int = Field(1, ge=0, description="Retries of requests that could not be sent.")
    api_key: PlainKey = Field(None, repr=False, description="API key that replaces the client's key.")
    chain: bool = Field(
        False,
        description="Forward the client's Cache-Control and x-kvproxy-* headers, because the upstream is a kvproxy, too.",
    )
    tokenizer: str = Field(
        "upstream",
        description="Tokenizer of prompts, to compare them with mirrored pools: upstream (its /tokenize), a folder,"
        " or a Hugging Face id.",
    )


class UpstreamServer(Section):
    """An upstream. Credentials in its URL set `authorization` (`user:password@`) or `api_key` (`key@`)."""

    url: str = Field(description="URL such as http://127.0.0.1:8000, with or without /v1.")
    api_key: SecretKey = Field(None, description="API key that replaces the client's key; by default forward.api_key.")
    authorization: SecretKey = Field(None, description="Authorization header that replaces the client's key.")
    weight: float = Field(1.0, gt=0, description="Relative speed.")
    kv_events: str | None = Field(None, description="Address of its KV events: tcp://host:5557, or :5557-5560.")
    kv_replay: str | None = Field(None, description="Address to replay missed KV events, in the same form.")
    kv_topic: str = Field("", description="Prefix of the topics.")
    hash_algorithm: Literal["sha256_cbor", "xxhash_cbor", "sha256", "xxhash"] = Field(
        "sha256_cbor", description="Value of its --prefix-caching-hash-algo."
    )
    hash_seed: str | None = Field(
        None, description="Its PYTHONHASHSEED; by default that of kvproxy, or vLLM's fixed seed."
    )

    @model_validator(mode="before")
    @classmethod
    def _clean_url(cls, values: Any) -> Any:
        if isinstance(values, str):
            values = {"url": values}
        if not isinstance(values, dict) or not isinstance(values.get("url"), str):
            return values
        parsed = parse_upstream_url(values["url"])
        if len(parsed) > 1 and (values.get("api_key") or values.get("authorization")):
            raise ValueError(f"{parsed['url']} has credentials in its URL and a separate key: remove one of them")
        return values | parsed


class RoutingSettings(Section):
    """Health checks and routing."""

    health_interval: Seconds = Field(2.0, gt=0, description="Time between health probes.")
    health_timeout: Seconds = Field(5.0, gt=0, description="Timeout of a health probe.")
    metrics_interval: Seconds = Field(5.0, gt=0, description="Time between reads of an upstream's /metrics.")
    eject_after: int = Field(3, ge=1, description="Consecutive failures until an upstream is ejected.")
    prediction_sample_rate: float = Field(
        0.0625,
        ge=0,
        le=1,
        description="Share of requests to a single mirrored upstream whose reuse is predicted, to check the mirror."
        " With several upstreams, all requests are predicted.",
    )
    name: str | None = Field(None, description="Name of the group of upstreams in cache keys; by default their URLs.")


class SlotSettings(Section):
    """Slots of llama.cpp upstreams."""

    disk_size: Bytes = Field(
        8 * 2**30, description="Maximum size of slots in the --slot-save-path of each server; 0 disables saving."
    )
    min_tokens: int = Field(32, ge=1, description="Minimum tokens of a slot to save or restore.")
    save_after: Seconds = Field(2.0, ge=0, description="Time without a request until a slot is saved.")
    queue_timeout: Seconds = Field(
        30.0, ge=0, description="Maximum time to wait for a free slot before forwarding a request."
    )
