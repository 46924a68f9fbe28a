"""Traces and metrics for OpenTelemetry; start with spans.py."""
