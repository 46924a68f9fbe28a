"""The log of the process: lines of text or JSON on stderr."""

import json
import logging
from datetime import UTC, datetime

from kvproxy.settings.telemetry import LogSettings


def log_to_stderr(settings: LogSettings) -> None:
    """Print the log messages of kvproxy, and the warnings of its libraries."""
    handler = logging.StreamHandler()
    is_json = settings.format == "json"
    handler.setFormatter(_JsonFormatter() if is_json else logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    root, own = logging.getLogger(), logging.getLogger("kvproxy")
    if not root.handlers:
        root.addHandler(handler)
    own.setLevel(settings.level.upper())


class _JsonFormatter(logging.Formatter):
    """Writes `time` (RFC 3339), `level`, `logger`, `message`, and `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {
            "time": moment,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)
