"""Splits a file into rows: JSON lines, documents, a table, or the lines of a container's or an engine's log."""

import csv
import io
import json
import re
import warnings
from ast import literal_eval
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kvproxy.analyse.log_formats.log_format import PROMPT_FIELDS, first_of
from kvproxy.analyse.log_formats.pages import is_page
from kvproxy.analyse.simulate.trace_reader import TRACE_TABLES
from kvproxy.apis.json import Json, JsonObject, as_object, loads, objects
from kvproxy.errors import InvalidRequest

_CONTAINERS = ("log.entries", "results.results", "requests", "data", "logs", "observations", "items", "rows", "results")
_CCUSAGE = "daily", "weekly", "monthly", "sessions"
"""Lists in the JSON of ccusage, beside their totals."""
_QUOTED = r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
_VLLM_LINE = re.compile(r"(?:Received request|Request) (\S+?)(?: details)?: prompt: " + _QUOTED)
_VLLM_WITHOUT_PROMPT = re.compile(r"Received request \S+: params: SamplingParams\(")
_VLLM_MAX_TOKENS = re.compile(r"max_tokens=(\d{1,9})\b")
_SGLANG_LINE = re.compile(r"Receive: obj=GenerateReqInput\(.*?\btext=" + _QUOTED)
# Logs whose rows have a line of another log: its field, a second field of these rows, and their name.
_ENVELOPES = (
    ("log", "stream", "Docker's log"),
    ("MESSAGE", "__REALTIME_TIMESTAMP", "journald's log"),
    ("message", "ingestionTime", "CloudWatch's log"),
    ("textPayload", "insertId", "Google Cloud's log"),
)
_KUBERNETES_LINE = re.compile(r"\S+ (?:stdout|stderr) ([FP]) (.*)", re.DOTALL)
_MAX_PREFIX = 200
_COLUMN_NAME = re.compile(r"[\w .()/-]{1,60}")
_ARRAY = re.compile(r"\s*\[\s*[\[{\"\d]")
NO_JSON = "not JSON"
NO_OBJECT_LINE = "not a JSON object"
NO_OBJECT_ITEM = "not an object"
PLACED_CAUSES = NO_JSON, NO_OBJECT_LINE
"""Beginnings of the causes of skipped lines whose numbers are named."""
LOST_CAUSES = *PLACED_CAUSES, NO_OBJECT_ITEM, "damaged", "no request"
"""Beginnings of the causes of skipped rows that may have had a request."""
_Line = tuple[int, str]


@dataclass(slots=True)
class FileRows:
    """The rows of a file by their number: the line, or the item of a JSON array, from 1.

    Attributes:
        skipped: numbers of the lines without a row by cause.
        invalid: errors by the number of the line: of lines that begin like a JSON object and are none, and of rows of a table
            with more cells than its header.
        envelope: the log that has the rows in its lines, such as Docker's log; empty for none.
        is_table: the rows are those of a table, so each value is a string.
        pages: the documents around the rows, or the rows themselves, that are pages of a list.
    """

    rows: list[tuple[int, JsonObject]] = field(default_factory=list)
    skipped: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    invalid: dict[int, str] = field(default_factory=dict)
    envelope: str = ""
    is_table: bool = False
    pages: list[JsonObject] = field(default_factory=list)

    @property
    def num_rows(self) -> int:
        """Number of rows, and of lines and items without a row."""
        return len(self.rows) + len(self.invalid) + sum(map(len, self.skipped.values()))

    def add_lines_without_row(self, other: "FileRows") -> None:
        self.invalid |= other.invalid
        for cause, numbers in other.skipped.items():
            self.skipped[cause] += numbers


def read_rows(file: Path, text: str) -> FileRows:
    """Raises InvalidRequest for a file that is not JSON, and for an engine's log without prompts."""
    if (file_rows := _rows_of_documents(text)) is not None and not file_rows.rows:
        return file_rows
    file_rows = file_rows or _rows_of_table(file, text)
    lines = _numbered(text)
    if file_rows is None:
        _refuse_yaml(file, text)
        lines, envelope = _kubernetes_lines(lines)
        file_rows = _rows_of_lines(lines, envelope)
    outer = FileRows()
    for name, second, title in _ENVELOPES:
        if file_rows.rows and all(isinstance(value.get(name), str) and second in value for _, value in file_rows.rows):
            outer.add_lines_without_row(file_rows)
            lines = _joined([(number, str(value[name])) for number, value in file_rows.rows], ends_line=name == "log")
            file_rows = _rows_of_lines(lines, title)
    if not (file_rows.rows or file_rows.invalid or file_rows.is_table):
        file_rows = _rows_of_engine_log(file, lines, file_rows.envelope)
    file_rows.add_lines_without_row(outer)
    file_rows.pages += [value for _, value in file_rows.rows if is_page(value)]
    return file_rows


def _numbered(text: str) -> list[_Line]:
    # str.splitlines would also split at U+2028 inside a text.
    return list(enumerate(text.removesuffix("\n").split("\n"), 1))


def _rows_of_documents(text: str) -> FileRows | None:
    """Return the rows of one JSON document, or of several that span lines; None for other texts."""
    start = text.lstrip("\x1e \t\r\n")[:1]
    if start not in ("{", "["):
        return None
    try:
        return _rows_of_document(loads(text.encode()))
    except ValueError as cause:
        error = str(cause)
    first = text.partition("\n")[0].strip("\x1e \t\r")
    try:
        loads(first.encode())
    except ValueError:
        # The first line is no row, so each document may span lines, as in the output of jq.
        documents = list(_documents(text))
        rows = [document for document in documents if isinstance(document, dict)]
        if rows and len(rows) == len(documents):
            return FileRows(list(enumerate(rows, 1)))
        return FileRows(invalid={1: f"this is no JSON: {error}"}) if _ARRAY.match(text) else None
    return None


def _documents(text: str) -> Iterator[Json]:
    """Yield the JSON documents of a text, and at last None if the rest of the text is invalid."""
    decoder, at = json.JSONDecoder(parse_constant=_refuse_constant), 0
    gap = re.compile(r"[\x1e\s]*")
    while (at := gap.match(text, at).end()) < len(text):  # type: ignore[union-attr]
        try:
            document, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            yield None
            return
        yield document


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no value of JSON")


def _rows_of_document(document: Json) -> FileRows:
    file_rows = FileRows()
    if isinstance(document, dict):
        known = any(name in document for name in PROMPT_FIELDS)
        inner = None if known else first_of(document, *_CONTAINERS, *(_CCUSAGE if "totals" in document else ()))
        if objects(inner) and is_page(document):
            file_rows.pages.append(document)
        document = inner if objects(inner) else [document]
    for number, item in enumerate(document if isinstance(document, list) else [document], 1):
        if isinstance(item, dict):
            file_rows.rows.append((number, item))
        else:
            file_rows.skipped[NO_OBJECT_ITEM].append(number)
    return file_rows


def _rows_of_lines(lines: Sequence[_Line], envelope: str = "") -> FileRows:
    file_rows = FileRows(envelope=envelope)
    for number, line in lines:
        content = line.strip("\x1e \t\r\n")
        if content.startswith("{"):
            try:
                file_rows.rows.append((number, as_object(loads(content.encode()))))
            except ValueError as error:
                file_rows.invalid[number] = f"this is not a JSON object ({error})"
        elif (row := _row_after_prefix(content)) is not None:
            file_rows.rows.append((number, row))
            file_rows.envelope = envelope or "lines with a prefix"
        else:
            file_rows.skipped[_cause_of_skip(content)].append(number)
    return file_rows


def _cause_of_skip(line: str) -> str:
    """Return why a line that begins no JSON object has no row."""
    content = line.strip()
    if not content:
        return "blank"
    if content.startswith("#"):
        return "comment"
    try:
        loads(content.encode())
    except ValueError:
        return NO_JSON
    return NO_OBJECT_LINE


def _row_after_prefix(line: str) -> JsonObject | None:
    """Return the JSON object at the end of a line of a text log, such as `pod-1 | {"model": ...}`."""
    start = line.find('{"', 0, _MAX_PREFIX)
    if start < 0 or not line.endswith("}"):
        return None
    try:
        return as_object(loads(line[start:].encode()))
    except ValueError:
        return None


def _kubernetes_lines(lines: list[_Line]) -> tuple[list[_Line], str]:
    """Return the lines in a log of Kubernetes' container runtimes, and its name; other lines are unchanged."""
    matches = [(number, _KUBERNETES_LINE.fullmatch(line)) for number, line in lines if line.strip()]
    parts = [(number, match[2] + ("\n" if match[1] == "F" else "")) for number, match in matches if match is not None]
    return (_joined(parts, ends_line=True), "Kubernetes' log") if parts and len(parts) == len(matches) else (lines, "")


def _joined(parts: Sequence[_Line], *, ends_line: bool) -> list[_Line]:
    # A long line is split into parts, of which only the last one ends with a newline.
    lines: list[_Line] = []
    is_open = False
    for number, part in parts:
        if is_open:
            lines[-1] = (lines[-1][0], lines[-1][1] + part)
        else:
            lines.append((number, part))
        is_open = ends_line and not part.endswith("\n")
    return [(number, line.removesuffix("\n")) for number, line in lines]


def _rows_of_table(file: Path, text: str) -> FileRows | None:
    """Return the rows of a table with a line of column names; None for other texts."""
    head, _, rest = text.lstrip("\ufeff").partition("\n")
    separator = max(",;\t|", key=head.count)
    names = [name.strip().strip('"') for name in head.split(separator)]
    is_table = len(names) > 1 and all(map(_COLUMN_NAME.fullmatch, names)) and separator in rest.partition("\n")[0]
    if not is_table and _suffix(file) not in ("csv", "tsv"):
        return None
    if any(set(columns) <= set(names) for columns in TRACE_TABLES.values()):
        raise InvalidRequest(f"{file} is a trace: kvproxy simulate reads traces")
    file_rows = FileRows(is_table=True)
    limit = csv.field_size_limit(max(len(text), 1))
    try:
        # Lines of this file end at line feeds and carriage returns only.
        reader = csv.DictReader(io.StringIO(text.lstrip("\ufeff"), newline=""), delimiter=separator)
        for row in reader:
            if any(row.pop(None, ())):
                # A separator in a text without quotes: each cell could be cut.
                file_rows.invalid[reader.line_num] = (
                    f"the row has more than {len(names)} cells: put texts that contain {separator!r} into double quotes"
                )
                continue
            values: JsonObject = {name: value for name, value in row.items() if name and value not in (None, "")}
            file_rows.rows.append((reader.line_num, values))
    except csv.Error as error:
        raise InvalidRequest(f"{file} is no valid table ({error}): convert its rows to JSON lines") from None
    finally:
        csv.field_size_limit(limit)
    return file_rows


def _suffix(file: Path) -> str:
    return "".join(file.suffixes[-2:]).removesuffix(".gz").removesuffix(".zst").rpartition(".")[2].lower()


def _refuse_yaml(file: Path, text: str) -> None:
    if _suffix(file) in ("yaml", "yml") or text.startswith("---\n"):
        raise InvalidRequest(
            f"{file} is YAML: give JSON; for promptfoo, the results of `promptfoo eval --output results.json`"
        )


def _rows_of_engine_log(file: Path, lines: Sequence[_Line], envelope: str) -> FileRows:
    file_rows = FileRows(envelope=envelope)
    for number, line in lines:
        if match := _VLLM_LINE.search(line) or _SGLANG_LINE.search(line):
            prompt = _quoted_text(match[match.lastindex or 0])
            if prompt is None:
                file_rows.skipped["damaged"].append(number)
                continue
            row: JsonObject = {"prompt": prompt}
            if limit := _VLLM_MAX_TOKENS.search(line):
                row["max_tokens"] = int(limit[1])
            file_rows.rows.append((number, row))
        elif _VLLM_WITHOUT_PROMPT.search(line):
            file_rows.skipped["no prompt"].append(number)
        else:
            file_rows.skipped[_cause_of_skip(line)].append(number)
    if "no prompt" in file_rows.skipped and not file_rows.rows:
        raise InvalidRequest(
            f"{file} has no prompts: start vLLM with --enable-log-requests and VLLM_LOGGING_LEVEL=DEBUG"
        )
    return file_rows


def _quoted_text(literal: str) -> str | None:
    """Return the text of a Python literal; None if it is invalid, or has surrogates, which no request can contain."""
    try:
        with warnings.catch_warnings():
            # Of escape sequences that Python does not know.
            warnings.simplefilter("ignore")
            text = str(literal_eval(literal))
        text.encode()
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return text
