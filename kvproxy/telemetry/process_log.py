"""Writes the log of the process and of its requests to stderr, as text or as JSON."""

import logging
import time
from datetime import UTC, datetime
from functools import lru_cache

import orjson

from kvproxy.exchange import Exchange
from kvproxy.journal.exchange_record import (
    layer_of,
    model_of,
    reason_of,
    reason_of_unexplained_miss,
    total_milliseconds,
)
from kvproxy.journal.record import MAX_REQUEST_ID, client_name
from kvproxy.settings.telemetry import LogSettings
from kvproxy.telemetry.printable_text import escape_json_controls, escape_lines

_access = logging.getLogger("kvproxy.access")


def log_to_stderr(settings: LogSettings) -> None:
    """Print kvproxy's messages and its libraries' warnings to stderr, in the format and with the level of the settings."""
    handler = logging.StreamHandler()
    is_json = settings.format == "json"
    handler.setFormatter(JsonFormatter() if is_json else TextFormatter())
    root, own = logging.getLogger(), logging.getLogger("kvproxy")
    if not root.handlers:
        root.addHandler(handler)
    # The store logs a failure once; the pool, each attempt.
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)
    own.setLevel(settings.level.upper())
    _access.setLevel(logging.NOTSET if settings.access else logging.CRITICAL)


def log_access(exchange: Exchange) -> None:
    """Log a finished request. Unlike the journal, the log does not search earlier requests for the reason of a miss."""
    if not exchange.method or not _access.isEnabledFor(logging.INFO):
        return
    layer = reason = "-"
    if exchange.api is not None:
        reason = reason_of(exchange)
        layer = layer_of(exchange, reason)
    if reason == "miss-new":
        reason = reason_of_unexplained_miss(exchange, asked_before=False, computed_before=False)
    _access.handle(_AccessRecord(exchange, layer, reason))


@lru_cache(maxsize=1)
def _common_attributes() -> dict[str, object]:
    return vars(logging.LogRecord(_access.name, logging.INFO, "", 0, "", None, None))


class _AccessRecord(logging.LogRecord):
    """A finished request. `LogRecord` would look up thread and process each time; this copies them from the first record."""

    def __init__(self, exchange: Exchange, layer: str, reason: str) -> None:
        self.__dict__.update(_common_attributes())
        # The path is decoded, and could contain escape sequences.
        path = exchange.path if exchange.path.isprintable() else ascii(exchange.path)[1:-1]
        milliseconds = round(total_milliseconds(exchange) or 0.0, 1)
        self.created = time.time()
        self.msecs = self.created % 1 * 1000
        self.msg = (
            f"{exchange.method} {path} {exchange.status} {layer} {reason} {milliseconds} ms"
            f" {exchange.tenant} {exchange.request_id[:MAX_REQUEST_ID]}"
        )
        # A handler may keep the record; it must not keep the request.
        self.fields = {
            "method": exchange.method,
            "path": path,
            "status": exchange.status,
            "layer": layer,
            "reason": reason,
            "ms": milliseconds,
            "tenant": exchange.tenant,
            "client": client_name(exchange.tenant),
            "model": model_of(exchange) or None,
            "request_id": exchange.request_id[:MAX_REQUEST_ID],
        }


@lru_cache(maxsize=1)
def _local_time(seconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


class TextFormatter(logging.Formatter):
    """Formats a record as `TIME LEVEL MESSAGE`; a message may contain texts of clients and upstreams.

    The formatter of `logging` would take twice as long.
    """

    def format(self, record: logging.LogRecord) -> str:
        moment = f"{_local_time(int(record.created))},{int(record.msecs):03d}"
        lines = [f"{moment} {record.levelname} {escape_lines(record.getMessage())}"]
        if record.exc_info:
            lines.append(self.formatException(record.exc_info))
        if record.stack_info:
            lines.append(self.formatStack(record.stack_info))
        return "\n".join(lines)


class JsonFormatter(logging.Formatter):
    """Formats a record as JSON: `time` (RFC 3339), `level`, `logger`, `message`, fields of a request, and `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {
            "time": moment,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **{name: value for name, value in getattr(record, "fields", {}).items() if value not in (None, "-")},
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return escape_json_controls(orjson.dumps(line, default=str).decode())
