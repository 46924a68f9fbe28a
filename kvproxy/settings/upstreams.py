"""Settings of the servers that requests are forwarded to."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


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
