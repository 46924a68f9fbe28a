"""Traces and metrics for OpenTelemetry, and the log of the process."""
