"""Settings of telemetry."""

from pydantic import BaseModel, ConfigDict, Field, field_validator


class TelemetrySettings(BaseModel):
    """Traces and metrics for OpenTelemetry."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    endpoint: str | None = Field(
        None,
        description="Collector that takes OTLP over HTTP, as http://127.0.0.1:4318; nothing is sent without. Headers for it"
        " come from the variable OTEL_EXPORTER_OTLP_HEADERS.",
    )
    service: str = Field("kvproxy", description="Name of this proxy in traces and metrics (service.name).")
    share: float = Field(
        1.0,
        ge=0,
        le=1,
        description="Share of the traces that are sent, of those that begin here; a client decides of its own.",
    )
    interval: float = Field(5.0, gt=0, description="Seconds between two batches.")

    @field_validator("endpoint")
    @classmethod
    def _is_http(cls, value: str | None) -> str | None:
        if value and not value.startswith(("http://", "https://")):
            raise ValueError(f"{value[:80]!r} is no http:// or https:// URL: give one such as http://127.0.0.1:4318")
        return value or None
