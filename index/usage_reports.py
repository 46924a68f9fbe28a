"""Switches off usage reports of the libraries that kvproxy loads."""

import os

_SWITCHES = ("ORT_DISABLE_TELEMETRY", "HF_HUB_DISABLE_TELEMETRY", "DO_NOT_TRACK")


def disable_usage_reports() -> None:
    """Set the libraries' environment variables; they are read when a library is imported.

    `onnxruntime.disable_telemetry_events()` comes too late: the import itself writes a device id and an event database.
    """
    os.environ.update(dict.fromkeys(_SWITCHES, "1"))
