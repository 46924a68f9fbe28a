"""Disables the usage reports of libraries."""

import os

_SWITCHES = ("ORT_DISABLE_TELEMETRY", "HF_HUB_DISABLE_TELEMETRY", "DO_NOT_TRACK")


def disable_usage_reports() -> None:
    """Disable the telemetry of ONNX Runtime and Hugging Face's libraries. Call this before importing them.

    `onnxruntime.disable_telemetry_events()` is too late: importing onnxruntime writes a device id and an event database.
    """
    os.environ.update(dict.fromkeys(_SWITCHES, "1"))
