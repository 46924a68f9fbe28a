"""The section `[limits]`."""

from pydantic import Field

from kvproxy.settings.section import Bytes, Seconds, Section


class LimitSettings(Section):
    """Limits on requests."""

    body_bytes: Bytes = Field(
        default=32 * 2**20, ge=1, description="Maximum body on cached routes; excess receives 413."
    )
    items: int = Field(
        default=500_000, ge=100, description="Maximum commas, braces and brackets in such a body; else 413."
    )
    in_flight_bytes: Bytes = Field(
        default=256 * 2**20, ge=2**20, description="Maximum of all bodies in flight, beyond 64 KiB each; else 503."
    )
    in_flight_items: int = Field(
        default=1_000_000, ge=100, description="Maximum items of all bodies in flight; excess receives 503."
    )
    body_seconds: Seconds = Field(
        default=60.0, gt=0, description="Maximum time for a body on cached routes, else for its next chunk; then 408."
    )
    header_bytes: Bytes = Field(
        default=64 * 2**10, ge=1024, description="Maximum URL and headers; excess receives 431."
    )
    headers: int = Field(default=200, ge=16, description="Maximum number of headers; excess receives 431.")
    header_seconds: Seconds = Field(default=20.0, gt=0, description="Maximum time for the headers; then 408.")
    idle_seconds: Seconds = Field(default=75.0, gt=0, description="Time until an idle connection is closed.")
    stalled_seconds: Seconds = Field(
        default=60.0, gt=0, description="Time until a client that reads nothing is disconnected."
    )
    request_seconds: Seconds = Field(
        default=3600.0,
        gt=0,
        description="Maximum duration of a request; x-kvproxy-timeout lowers it. Then 504, or an error in the stream.",
    )
    drain_seconds: Seconds = Field(
        default=25.0, ge=0, description="Time in which requests in flight may finish at shutdown."
    )
    choices: int = Field(
        default=128, ge=1, description="Maximum choices of a request (`n`, `best_of`); excess receives 400."
    )
    queue_size: int = Field(
        default=256, ge=0, description="Maximum requests queued for the engine or an upstream; else 503."
    )
    queue_seconds: Seconds = Field(default=30.0, gt=0, description="Maximum time in this queue; then 503.")
    max_lag: Seconds = Field(
        default=0.1, gt=0, description="Maximum lag of the event loop; then cache misses queue, so that hits stay fast."
    )
    overload_seconds: Seconds = Field(
        default=2.0, gt=0, description="Maximum time in that queue; then further cache misses receive 503."
    )
    connections: int = Field(default=4096, ge=1, description="Maximum client connections; excess receives 503.")
    import_bytes: Bytes = Field(default=4 * 2**30, ge=1, description="Maximum size of a file imported into the cache.")
