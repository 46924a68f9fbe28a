"""Requests to warm with from a file: each different one once."""

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvproxy.commands.files import read_text
from kvproxy.offline.request_log import Failure, read_log

__all__ = ["Failure", "Reading", "WarmRequest", "most_frequent", "read_requests"]


@dataclass(frozen=True, slots=True)
class WarmRequest:
    """A request to send, and the line it came from; `count` equal ones were found."""

    line: int
    path: str
    body: dict[str, Any]
    count: int = 1


@dataclass(slots=True)
class Reading:
    """What there is to warm with.

    Attributes:
        requests: each different request once, the most frequent first.
        passed_over: comments, lines of logs that are no request to warm with, and lines of other programs.
        failures: lines that were meant as a request and cannot be read.
    """

    requests: list[WarmRequest] = field(default_factory=list)
    passed_over: int = 0
    failures: list[Failure] = field(default_factory=list)


def read_requests(file: Path, model: str, system: str | None) -> Reading:
    """All different requests of a file, `-` being standard input; see `traffic.reading.read_log`.

    Raises:
        NotFound: there is no such file.
        InvalidRequest: it cannot be read, or there is nothing to warm with.
    """
    log = read_log(file, read_text(file), model, system)
    requests = [WarmRequest(each.line, each.api.path, each.body) for each in log.requests]
    return Reading(most_frequent(requests), log.passed_over, log.failures)


def most_frequent(requests: list[WarmRequest]) -> list[WarmRequest]:
    """Each different request once, the most frequent first, otherwise in the order of their lines."""
    names = [json.dumps([request.path, request.body], sort_keys=True) for request in requests]
    counts = Counter(names)
    first = dict(reversed(list(zip(names, requests, strict=True))))
    once = [WarmRequest(each.line, each.path, each.body, counts[name]) for name, each in first.items()]
    return sorted(once, key=lambda request: (-request.count, request.line))
