"""Traces and metrics for OpenTelemetry: read traced.py first, then spans.py. Only export.py imports OpenTelemetry."""
