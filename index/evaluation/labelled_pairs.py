import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

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
    return read_json_lines(path, _parse_pair, '{"a": "..", "b": "..", "same": 1}')


def read_json_lines(path: Path, parse: Callable[[dict[str, Any]], Record], example: str) -> Iterator[Record]:
    """Yield the records of a file of JSON lines, gzipped if its name ends in `.gz`.

    Args:
        parse: converts the object of a line; raises a ValueError, KeyError, or TypeError if it is invalid.
        example: a valid line, for the error message.

    Raises:
        ImportFailed: a line is invalid. The message names the file and the line.
    """
    number = 1
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
            for line in lines:
                if line.strip():
                    yield parse(json.loads(line))
                number += 1
    except (ValueError, KeyError, TypeError, OSError, EOFError):
        raise ImportFailed(f"{path}, line {number}: expected JSON such as {example}") from None


def _parse_pair(record: dict[str, Any]) -> LabelledPair:
    a, b, same = record["a"], record["b"], record["same"]
    if not (isinstance(a, str) and isinstance(b, str) and same in (0, 1)):
        raise ValueError
    return LabelledPair(a, b, bool(same))
