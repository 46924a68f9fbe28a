"""Traces and metrics for OpenTelemetry: read telemetry.py first, then spans.py. Only export.py imports OpenTelemetry."""
