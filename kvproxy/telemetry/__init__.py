"""Traces and metrics for OpenTelemetry: read spans.py first. Only export.py imports OpenTelemetry."""
