"""The sections `[log]` and `[telemetry]`."""

from typing import Literal

from pydantic import Field, field_validator

from kvproxy.settings.section import Seconds, Section
from kvproxy.settings.upstreams import url_without_secrets


class LogSettings(Section):
    """The log of the process, on stderr."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least severe messages to print."
    )
    format: Literal["text", "json"] = Field(default="text", description="Lines of text, or one JSON object per line.")
    access: bool = Field(default=True, description="Log a line for each request of a client, at the level info.")


class TelemetrySettings(Section):
    """Export of traces and metrics to OpenTelemetry."""

    endpoint: str | None = Field(
        default=None,
        description="OTLP collector, such as http://127.0.0.1:4318; OTEL_EXPORTER_OTLP_HEADERS sets its headers.",
    )
    service: str = Field(default="kvproxy", description="Name of this proxy (service.name).")
    sample_rate: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="Sampled share of traces that begin here; others keep the client's decision.",
    )
    interval: Seconds = Field(default=5.0, gt=0, description="Time between batches.")

    @field_validator("endpoint")
    @classmethod
    def _is_http(cls, value: str | None) -> str | None:
        if value and not value.startswith(("http://", "https://")):
            raise ValueError(
                f"{url_without_secrets(value)!r} is not an http:// or https:// URL: use a form such as http://127.0.0.1:4318"
            )
        if value and url_without_secrets(value) != value:
            raise ValueError(
                f"{url_without_secrets(value)} has credentials: give them as a header in OTEL_EXPORTER_OTLP_HEADERS"
            )
        return value or None
