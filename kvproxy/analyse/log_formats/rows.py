"""Splits a file into rows: JSON lines, a JSON array, one JSON object, or the text lines of an engine's log."""

import re
from ast import literal_eval
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from kvproxy.analyse.log_formats.log_format import PROMPT_FIELDS, first_of
from kvproxy.apis.json import Json, JsonObject, as_object, loads, objects
from kvproxy.errors import InvalidRequest

_CONTAINERS = ("log.entries", "results.results", "requests", "data", "logs", "observations", "items", "rows", "results")
_QUOTED = r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
_VLLM_LINE = re.compile(r"(?:Received request|Request) (\S+?)(?: details)?: prompt: " + _QUOTED)
_VLLM_WITHOUT_PROMPT = re.compile(r"Received request \S+: params: SamplingParams\(")
_VLLM_MAX_TOKENS = re.compile(r"max_tokens=(\d+)")
_SGLANG_LINE = re.compile(r"Receive: obj=GenerateReqInput\(.*?\btext=" + _QUOTED)


@dataclass(slots=True)
class FileRows:
    """The rows of a file by their number: the line, or the item of a JSON array, from 1.

    Attributes:
        skipped: numbers of the lines without a row by cause.
        invalid: numbers of the lines that begin like a JSON object and are none.
    """

    rows: list[tuple[int, JsonObject]] = field(default_factory=list)
    skipped: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    invalid: list[int] = field(default_factory=list)


def read_rows(file: Path, text: str) -> FileRows:
    """Raises InvalidRequest for a file that is not JSON, and for an engine's log without prompts."""
    start = text.lstrip()[:1]
    if start in ("{", "["):
        try:
            return _rows_of_document(loads(text.encode()))
        except ValueError:
            pass
    _refuse_other_layouts(file, text)
    found = _rows_of_lines(text)
    if not found.rows and not found.invalid:
        found = _rows_of_engine_log(file, text)
    return found


def _rows_of_document(document: Json) -> FileRows:
    if isinstance(document, dict):
        known = any(name in document for name in PROMPT_FIELDS)
        inner = None if known else first_of(document, *_CONTAINERS)
        document = inner if objects(inner) else [document]
    found = FileRows()
    for number, item in enumerate(document if isinstance(document, list) else [document], 1):
        if isinstance(item, dict):
            found.rows.append((number, item))
        else:
            found.skipped["not a JSON object"].append(number)
    return found


def _rows_of_lines(text: str) -> FileRows:
    found = FileRows()
    # str.splitlines would also split at U+2028 inside a text.
    for number, line in enumerate(text.removesuffix("\n").split("\n"), 1):
        content = line.strip()
        if not content:
            found.skipped["blank"].append(number)
        elif content.startswith("#"):
            found.skipped["comment"].append(number)
        elif not content.startswith("{"):
            found.skipped["not JSON"].append(number)
        else:
            try:
                found.rows.append((number, as_object(loads(line.encode()))))
            except ValueError:
                found.invalid.append(number)
    return found


def _refuse_other_layouts(file: Path, text: str) -> None:
    suffix = "".join(file.suffixes[-2:]).removesuffix(".gz").rpartition(".")[2].lower()
    if suffix in ("yaml", "yml"):
        raise InvalidRequest(
            f"{file} is YAML: give JSON; for promptfoo, the results of `promptfoo eval --output results.json`"
        )
    head = text.lstrip("\ufeff").partition("\n")[0].lower()
    if suffix in ("csv", "tsv"):
        is_trace = "tokens" in head and "time" in head
        hint = "kvproxy simulate reads traces" if is_trace else "convert its rows to JSON lines with model and messages"
        raise InvalidRequest(f"{file} is a table: {hint}")


def _rows_of_engine_log(file: Path, text: str) -> FileRows:
    found = FileRows()
    for number, line in enumerate(text.split("\n"), 1):
        if match := _VLLM_LINE.search(line):
            row: JsonObject = {"prompt": str(literal_eval(match[2]))}
            if limit := _VLLM_MAX_TOKENS.search(line):
                row["max_tokens"] = int(limit[1])
            found.rows.append((number, row))
        elif match := _SGLANG_LINE.search(line):
            found.rows.append((number, {"prompt": str(literal_eval(match[1]))}))
        elif _VLLM_WITHOUT_PROMPT.search(line):
            found.skipped["no prompt"].append(number)
        elif line.strip() and not line.lstrip().startswith("#"):
            found.skipped["not JSON"].append(number)
    if "no prompt" in found.skipped and not found.rows:
        raise InvalidRequest(
            f"{file} has no prompts: start vLLM with --enable-log-requests and VLLM_LOGGING_LEVEL=DEBUG"
        )
    return found
