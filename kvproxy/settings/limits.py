"""Settings of how much is taken in, and of how long anything may take."""

from pydantic import BaseModel, ConfigDict, Field


class LimitSettings(BaseModel):
    """Bounds on what comes in. What meets one is counted in `kvproxy_limited_total`, under the setting's name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    body: int = Field(
        32 * 2**20, ge=1, description="Most bytes of a request's body on the cached routes; a larger one gets 413."
    )
    items: int = Field(
        500_000,
        ge=100,
        description="Most commas, braces, and brackets in a body on the cached routes; more get 413. Parsing a body blocks"
        " all other requests.",
    )
    in_flight_bytes: int = Field(
        256 * 2**20,
        ge=2**20,
        description="Bytes that the bodies of all requests in flight may hold, beyond 64 KiB each; a further one gets 503.",
    )
    in_flight_items: int = Field(
        1_000_000, ge=100, description="Items, as in limits.items, that all requests in flight may hold; more get 503."
    )
    body_seconds: float = Field(
        60.0,
        gt=0,
        description="Seconds within which a body on the cached routes must arrive, and on other routes its next part; else 408.",
    )
    header_bytes: int = Field(
        64 * 2**10, ge=1024, description="Most bytes of a request's URL and headers; more get 431."
    )
    headers: int = Field(200, ge=16, description="Most headers of a request; more get 431.")
    header_seconds: float = Field(
        20.0,
        gt=0,
        description="Seconds within which a request's headers must arrive; else 408, and the connection ends.",
    )
    idle_seconds: float = Field(
        75.0, gt=0, description="Seconds that a connection is kept open after an answer, for the next request."
    )
    stalled_seconds: float = Field(
        60.0, gt=0, description="Seconds after which a client that reads nothing of its answer is cut off."
    )
    request_seconds: float = Field(
        3600.0,
        gt=0,
        description="Seconds within which a request must be answered to the end; else 504, or the stream ends with an error."
        " A request may ask for less with x-kvproxy-timeout.",
    )
    drain_seconds: float = Field(
        25.0, ge=0, description="Seconds that requests under way get to end when the proxy is told to stop."
    )
    choices: int = Field(
        128, ge=1, description="Most answers that one request may ask for (`n`, `best_of`); more get 400."
    )
    cached_tokens: bool = Field(
        False, description="Count the tokens of the caches' answers against a client's tokens_per_minute too."
    )
    waiting: int = Field(
        256, ge=0, description="Requests that may wait for the engine or for an upstream; a further one gets 503."
    )
    waiting_seconds: float = Field(30.0, gt=0, description="Seconds that a request waits so; then it gets 503.")
    connections: int = Field(4096, ge=1, description="Open connections of clients; a further one gets 503.")
    imports: int = Field(4 * 2**30, ge=1, description="Most bytes of a file that is imported into the cache.")
