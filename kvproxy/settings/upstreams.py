"""Settings of the servers that requests are forwarded to."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kvproxy.settings.keys import Key, PlainKey
from kvproxy.settings.urls import read_url


class UpstreamSettings(BaseModel):
    """Forwarding to an OpenAI-compatible server."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    connect_timeout: float = Field(5.0, gt=0, description="Seconds to wait for a connection.")
    read_timeout: float = Field(600.0, gt=0, description="Seconds to wait for the next part of an answer.")
    max_connections: int = Field(512, ge=1, description="Most open connections to an upstream.")
    retries: int = Field(1, ge=0, description="How often to try again when a request could not leave.")
    api_key: PlainKey = Field(None, repr=False, description="Sent in place of the client's own key.")
    chain: bool = Field(
        False, description="The upstream is a kvproxy too: send it the client's Cache-Control and x-kvproxy-* headers."
    )
    tokenizer: str = Field(
        "upstream",
        description="What turns prompts into tokens, to compare them with mirrored pools: upstream (its /tokenize), a"
        " folder, or a Hugging Face id.",
    )


class UpstreamServer(BaseModel):
    """One server that requests are forwarded to.

    Credentials in the URL become `authorization` (`user:password@`) or `api_key` (`key@`), so that the URL can be shown.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str = Field(description="Its address, as http://127.0.0.1:8000; with or without /v1.")
    api_key: Key = Field(None, description="Sent to it in place of the client's own key; forward.api_key by default.")
    authorization: Key = Field(
        None, description="A whole Authorization header, sent to it in place of the client's own key."
    )
    weight: float = Field(1.0, gt=0, description="Its speed, compared with the others.")
    kv_events: str | None = Field(None, description="Where it publishes KV events: tcp://host:5557, or :5557-5560.")
    kv_replay: str | None = Field(None, description="Where it answers requests for missed events, in the same form.")
    kv_topic: str = Field("", description="What the topics to follow begin with.")
    hash_algorithm: Literal["sha256_cbor", "xxhash_cbor", "sha256", "xxhash"] = Field(
        "sha256_cbor", description="The value of its --prefix-caching-hash-algo."
    )
    hash_seed: str | None = Field(None, description="Its PYTHONHASHSEED; by default ours, or vLLM's fixed seed.")

    @model_validator(mode="before")
    @classmethod
    def _clean_url(cls, values: Any) -> Any:
        """Move credentials out of the URL; a text alone is a URL."""
        if isinstance(values, str):
            values = {"url": values}
        if not isinstance(values, dict) or not isinstance(values.get("url"), str):
            return values
        read = read_url(values["url"])
        keys = {"api_key": read.api_key, "authorization": read.authorization}
        taken = {name: key for name, key in keys.items() if key is not None}
        if taken and any(values.get(name) for name in keys):
            raise ValueError(f"{read.url} has credentials in its URL and a key beside it: give one of them")
        return values | {"url": read.url} | taken


class RoutingSettings(BaseModel):
    """Several upstreams."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    health_interval: float = Field(5.0, gt=0, description="Seconds between two probes of an upstream.")
    health_timeout: float = Field(5.0, gt=0, description="Seconds to wait for the answer to a probe.")
    figures_interval: float = Field(
        5.0, gt=0, description="Seconds between two looks at the figures that an upstream publishes at /metrics."
    )
    eject_after: int = Field(3, ge=1, description="Failures in a row after which an upstream gets no requests.")
    pinned_tokens_per_minute: int = Field(
        20_000,
        ge=1,
        description="Prompt tokens that upstreams may compute a minute for pinned chains that they gave up.",
    )
    predicted_share: float = Field(
        0.0625,
        ge=0,
        le=1,
        description="Share of the requests to a single mirrored upstream whose reuse is predicted, to check its mirror. With"
        " several, all are.",
    )
    name: str | None = Field(
        None,
        description="Name of all upstreams together in cache keys; by default their URLs, so that others share no answers.",
    )
