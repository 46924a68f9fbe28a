"""Reads pairs of questions that are labelled as equal or different."""

import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter

from kvproxy.index.errors import ImportFailed

Record = TypeVar("Record")


@dataclass(frozen=True, slots=True)
class LabelledPair:
    """Two questions. `same` is true if one answer serves both."""

    a: str
    b: str
    same: bool


def read_pairs(path: Path) -> Iterator[LabelledPair]:
    """Read pairs from a file with lines such as `{"a": .., "b": .., "same": ..}`; see `read_json_lines`."""
    return read_json_lines(path, LabelledPair, '{"a": "..", "b": "..", "same": 1}')


def read_json_lines(path: Path, record_type: type[Record], example: str) -> Iterator[Record]:
    """Yield the records of a file of JSON lines, gzipped if its name ends in `.gz`.

    Args:
        record_type: a dataclass, whose fields each line must have.
        example: a valid line, for the error message.

    Raises:
        ImportFailed: the file cannot be read, or a line is invalid. The message names the file and the line.
    """
    adapter, number = TypeAdapter(record_type), 1
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
            for line in lines:
                if line.strip():
                    yield adapter.validate_json(line)
                number += 1
    except FileNotFoundError:
        raise ImportFailed(f"no file {path}: check the path") from None
    except (ValueError, OSError, EOFError) as error:
        # Damaged gzip files have no error number.
        if isinstance(error, OSError) and error.strerror:
            raise ImportFailed(f"cannot read {path}: {error.strerror}") from None
        raise ImportFailed(f"{path}, line {number}: expected JSON such as {example}") from None
