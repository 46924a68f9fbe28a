"""Finds the transcripts of agents and the logs of requests in files and folders, and reads several logs as one."""

import math
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from kvproxy.analyse.bills.reported_costs import CostReport
from kvproxy.analyse.log_formats.batch_outputs import BATCH_OUTPUTS, is_output, join_outputs
from kvproxy.analyse.log_formats.log_format import LoggedRequest, WithoutPrompts
from kvproxy.analyse.log_formats.rows import PLACED_CAUSES
from kvproxy.analyse.request_log import LineError, RequestLog
from kvproxy.analyse.simulate.trace_reader import TraceError
from kvproxy.analyse.transcripts import SUFFIXES, is_transcript
from kvproxy.errors import InvalidRequest, NotFound
from kvproxy.units import first_names, plural

_LOG_SUFFIXES = tuple(
    f".{name}{packed}"
    for name in ("jsonl", "json", "ndjson", "csv", "tsv", "log", "har", "txt")
    for packed in ("", ".gz", ".zst")
)
_SHOWN_NAMES = 3
_DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class LogFile:
    """A log of requests, with its name for people.

    The user named the file itself if `is_given`; a file of a folder may be of any kind.
    """

    path: Path
    name: Path
    is_given: bool


@dataclass(slots=True)
class LogFiles:
    """The files of a command.

    Attributes:
        transcripts: transcripts and agent traces.
        names: names for people of the transcripts in folders.
        left_out: unread files of folders by cause.
    """

    transcripts: list[Path] = field(default_factory=list)
    logs: list[LogFile] = field(default_factory=list)
    names: dict[Path, Path] = field(default_factory=dict)
    left_out: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def leave_out(self, name: Path, cause: str) -> None:
        self.left_out[cause].append(str(name))

    def leave_out_transcript(self, file: Path, error: TraceError) -> None:
        """Leave out an unreadable transcript of a folder. Raises the error for a file that the user named."""
        if file not in self.names:
            raise error
        self.leave_out(self.names[file], _without_name(error.message, file))

    def describe_left_out(self) -> Iterator[str]:
        for cause, names in self.left_out.items():
            yield f"left out {first_names(names, _SHOWN_NAMES)}: {cause}"


def find_log_files(paths: Mapping[Path, Path], *, with_transcripts: bool = True) -> LogFiles:
    """Return the files at paths, which may be folders. Raises NotFound for a missing path, and for folders without any file.

    Args:
        paths: names for people by path.
        with_transcripts: False if each file is a log.
    """
    files = LogFiles()
    # A file may also be in a folder that is given.
    known = set[Path]()
    for path, name in paths.items():
        if not path.exists():
            raise NotFound(f"no file {name}: check the path, or try docs/examples/shop.jsonl of the clone")
        for file in _files_below(path) if path.is_dir() else [path]:
            if file.resolve() in known:
                continue
            known.add(file.resolve())
            if path.is_dir():
                relative = file.relative_to(path)
                shown = relative if len(paths) == 1 else name / relative
                _add_file(files, file, shown, with_transcripts=with_transcripts)
            elif with_transcripts and file.is_file() and is_transcript(file):
                files.transcripts.append(file)
            else:
                files.logs.append(LogFile(file, name, is_given=True))
    if not files.transcripts and not files.logs:
        names = ", ".join(map(str, paths.values()))
        raise NotFound(
            f"{names} has no transcripts of Claude Code, Codex, or opencode, no agent traces, and no logs of requests"
        )
    return files


def _files_below(folder: Path) -> list[Path]:
    """Return the files in a folder and its folders, without those that another program removes meanwhile."""
    files = (Path(parent, name) for parent, _, names in os.walk(folder) for name in names)
    return sorted(file for file in files if file.is_file())


def _add_file(files: LogFiles, file: Path, name: Path, *, with_transcripts: bool) -> None:
    try:
        if with_transcripts and file.name.endswith(SUFFIXES) and is_transcript(file):
            files.transcripts.append(file)
            files.names[file] = name
            return
    except TraceError as error:
        files.leave_out(name, _without_name(error.message, file))
        return
    if file.name.endswith(_LOG_SUFFIXES):
        files.logs.append(LogFile(file, name, is_given=False))
    else:
        files.leave_out(name, "not the name of a log")


def read_logs(files: LogFiles, read: Callable[[LogFile], RequestLog], *, for_bill: bool = False) -> RequestLog:
    """Return the requests of all logs, in order of time if each has one. Requests of batches have the responses of its output.

    Files of folders without a request are left out. Raises InvalidRequest for another one, and if no log has a request.
    Raises WithoutPrompts if a bill can be made of such files. `for_bill`: an output of a batch without its input counts, too.
    """
    logs: dict[str, RequestLog] = {}
    unread: dict[Path, str] = {}
    has_bill = False
    for file in files.logs:
        try:
            log = read(file)
            if (copied := _copied_report(log, logs)) is not None:
                unread[file.name] = f"the same report as {copied}"
                continue
            logs[str(file.name)] = log
        except (InvalidRequest, NotFound) as error:
            if file.is_given:
                raise
            has_bill = has_bill or isinstance(error, WithoutPrompts)
            unread[file.name] = _without_name(error.message, file.name)
    if not logs and has_bill:
        raise WithoutPrompts("no file of the folder has prompts")
    for name, cause in unread.items():
        files.leave_out(name, cause)
    if not logs:
        raise InvalidRequest(f"no file of the folder has requests: {'; '.join(files.describe_left_out())}")
    log = next(iter(logs.values())) if len(logs) == 1 else _merge(logs)
    log.requests = join_outputs(log.requests)
    if not for_bill and (outputs := [request for request in log.requests if is_output(request)]):
        log.requests = [request for request in log.requests if not is_output(request)]
        log.skipped[BATCH_OUTPUTS] += [request.line for request in outputs]
        if not log.requests:
            raise WithoutPrompts("the files are outputs of batches, which have no prompts: give the input files, too")
    return log


def _copied_report(log: RequestLog, logs: Mapping[str, RequestLog]) -> str | None:
    """Return the name of a file with the same report of usage or of costs; None without one."""
    if not log.costs and (not log.requests or not log.is_usage_report):
        return None
    return next(
        (name for name, other in logs.items() if (log.requests, log.costs) == (other.requests, other.costs)), None
    )


def _without_name(message: str, name: Path) -> str:
    return message.removeprefix(str(name)).lstrip(", ")


def _shared_days(logs: Mapping[str, RequestLog]) -> dict[str, list[str]]:
    names = defaultdict[tuple[str, ...], dict[str, None]](dict)
    for name, log in logs.items():
        for request in log.requests:
            if request.summed is not None and request.time is not None:
                for day in _days(request.time, request.summed.seconds):
                    names[day, "usage", str(request.body["model"])][name] = None
        for currency, cost in (amount for report in log.costs for amount in report.costs):
            if cost is not None and cost.time is not None:
                item = cost.provider, cost.project, cost.model, cost.line_item
                for day in _days(cost.time, cost.seconds):
                    names[day, "costs", currency, *item][name] = None
    shared = {key: list(files) for key, files in names.items() if len(files) > 1}
    return {day: files for (day, *_), files in sorted(shared.items())}


def _days(start: float, seconds: float) -> Iterator[str]:
    """Yield the UTC days of a period, such as 2026-11-21."""
    first = datetime.fromtimestamp(start, UTC).date()
    for number in range(max(1, math.ceil(seconds / _DAY))):
        yield (first + timedelta(days=number)).isoformat()


def _of_file(request: LoggedRequest, name: str) -> LoggedRequest:
    if not request.unreadable:
        return request
    return replace(request, unreadable=tuple(f"{heading} in {name}" for heading in request.unreadable))


def _of_cost_file(report: CostReport, name: str) -> CostReport:
    return replace(report, unreadable={f"{heading} in {name}": rows for heading, rows in report.unreadable.items()})


def _merge(logs: dict[str, RequestLog]) -> RequestLog:
    formats = Counter(log.format for log in logs.values())
    whole = RequestLog("; ".join(f"{format} ({plural(count, 'file')})" for format, count in formats.items()))
    for name, log in logs.items():
        whole.rows += log.rows
        whole.requests += [_of_file(request, name) for request in log.requests]
        whole.ignored_fields |= log.ignored_fields
        whole.pages += log.pages
        whole.costs += [_of_cost_file(report, name) for report in log.costs]
        whole.errors += [LineError(error.line, f"in {name}: {error.message}") for error in log.errors]
        for cause, numbers in log.skipped.items():
            whole.skipped[f"{cause} in {name}" if cause in PLACED_CAUSES else cause] += numbers
    whole.shared_days = _shared_days(logs)
    times = [request.time for request in whole.requests]
    if None not in times:
        whole.requests.sort(key=lambda request: request.time or 0.0)
    return whole
