"""Messages for invalid settings: the setting, the fix, and the flag, variable, or line that sets it."""

import difflib
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

PREFIX = "KVPROXY_"
SettingPath = tuple[str | int, ...]
"""Path of a setting, such as `("rules", 0, "ttl")`."""
_TABLE = re.compile(r"\s*(\[{1,2})\s*([^\[\]]+?)\s*\]")
_KEY = re.compile(r"""\s*([\w."'-]+)\s*=""")
_FLAGS = {("upstreams",): "--upstream", ("tiers", "chunk_tokens"): "--chunk-tokens"}
_MAX_PROBLEMS = 50
_KINDS = {str: "text", bool: "true or false", int: "an integer", float: "a number", dict: "a table", list: "a list"}
_REQUIRED = {
    **dict.fromkeys(("tuple_type", "list_type", "set_type", "frozen_set_type"), "must be a list"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "must be a table"),
    **{"string_type": "must be text", "int_type": "must be an integer", "float_type": "must be a number"},
    **dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false"),
}
_WITHOUT_SECRETS = re.compile("(literal|float|bool)_(error|parsing)|(greater|less)_than.*|finite_number|.*_from_float")
"""Types of errors in settings that cannot be keys or tokens, so that the message may show the value."""
_SECTIONS_IN_FLAGS = ("tiers", "log")


class SettingConflict(NamedTuple):
    message: str
    path: SettingPath


class SettingConflicts(ValueError):
    def __init__(self, conflicts: Sequence[SettingConflict]) -> None:
        super().__init__("; ".join(conflict.message for conflict in conflicts))
        self.conflicts = conflicts


def explain_invalid_settings(
    error: ValidationError, settings: Sequence[str], flags: Mapping[str, Any], file: Path
) -> list[str]:
    """Return one line per invalid setting. `settings` are the names of all settings, such as `cache.ttl`.

    `flags` are values of command-line flags, nested by section. The file is kvproxy.toml, which may be missing.
    """
    numbers = line_numbers(file.read_text() if file.is_file() else "")
    lines = []
    for path, reason in islice(_find_problems(error, settings), _MAX_PROBLEMS):
        origin = _find_flag(path, flags) or find_variable(path)
        if origin is None and (line := _find_line(numbers, path)) is not None:
            origin = f"{file}, line {line}"
        # A field may be missing in an item that variables add.
        origin = origin or _find_variable_within(path[:-1])
        lines.append(f"setting {'.'.join(map(str, path))}: {reason}{f' ({origin})' if origin else ''}")
    if error.error_count() > len(lines) >= _MAX_PROBLEMS:
        lines.append(f"and {error.error_count() - len(lines):,} more errors: correct these first")
    return lines


def line_of(text: str, path: Sequence[str | int]) -> int | None:
    """Return the line number, from 1, of a setting in a TOML text, or else of its table; None if both are missing."""
    return _find_line(line_numbers(text), path)


def line_numbers(text: str) -> dict[SettingPath, int]:
    """Return the line numbers, from 1, of the settings and tables in a TOML text."""
    table: SettingPath = ()
    counts: Counter[str] = Counter()
    lines: dict[SettingPath, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if (header := _TABLE.match(line)) is not None:
            name = header[2]
            table = _split_name(name)
            if header[1] == "[[":
                lines.setdefault(table, number)
                table = (*table, counts[name])
                counts[name] += 1
            lines.setdefault(table, number)
        elif (key := _KEY.match(line)) is not None:
            lines.setdefault((*table, *_split_name(key[1])), number)
    return lines


def _find_line(lines: Mapping[SettingPath, int], path: Sequence[str | int]) -> int | None:
    prefix = tuple(path)
    while prefix:
        if prefix in lines:
            return lines[prefix]
        prefix = prefix[:-1]
    return None


def _split_name(dotted: str) -> SettingPath:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))


def _find_problems(error: ValidationError, settings: Sequence[str]) -> Iterator[tuple[SettingPath, str]]:
    # A value may be a secret: own validators and unknown settings do not show it.
    for detail in error.errors():
        path, cause = detail["loc"], detail.get("ctx", {}).get("error")
        if isinstance(cause, SettingConflicts):
            yield from ((conflict.path, conflict.message) for conflict in cause.conflicts)
        elif detail["type"] == "value_error":
            yield path, detail["msg"].removeprefix("Value error, ")
        elif detail["type"] == "extra_forbidden":
            yield path, f"there is no such setting; {_suggest(path, detail['input'], settings)}"
        elif detail["type"] == "missing":
            yield path, "this field is required"
        elif detail["type"] == "int_parsing":
            yield path, f"{str(detail['input'])[:40]!r} is not an integer: use digits only, such as 4096"
        else:
            yield path, _explain_type(path, detail["type"], detail["msg"], detail["input"])


def _explain_type(path: SettingPath, error_type: str, message: str, value: Any) -> str:
    reason = _REQUIRED.get(error_type) or re.sub(r"\b(Input|String) should\b", "must", message)
    if reason == "must be a list" and isinstance(value, dict) and len(path) == 1:
        return f"{reason}: write [[{path[0]}]] above each table"
    given = _describe(error_type, value)
    return f"{reason}, not {given}" if given else reason


def _describe(error_type: str, value: Any) -> str | None:
    """Return a value that cannot be a secret, or else its kind; None if the error is not about its kind."""
    if isinstance(value, str | int | float) and _WITHOUT_SECRETS.fullmatch(error_type):
        return repr(value)
    return None if isinstance(value, str) and error_type.startswith("string_") else _KINDS.get(type(value))


def _suggest(path: SettingPath, value: Any, settings: Sequence[str]) -> str:
    section = ".".join(part for part in path[:-1] if isinstance(part, str))
    # A table such as rules.match may group settings of its section.
    if isinstance(value, dict) and (inner := [each for key in value if (each := f"{section}.{key}") in settings]):
        return f"set {' and '.join(inner)} instead"
    name = _closest_name(path, settings)
    return f"did you mean {name}?" if name else "docs/configuration.md lists all settings"


def _closest_name(path: SettingPath, settings: Sequence[str]) -> str | None:
    names = sorted({*settings, *(name.rpartition(".")[0] for name in settings)} - {""})
    wanted = ".".join(part for part in path if isinstance(part, str))
    section, _, last = wanted.rpartition(".")
    separated_otherwise = [name for name in names if name.replace(".", "_") == wanted.replace(".", "_")]
    siblings = {name.rpartition(".")[2]: name for name in names if section and name.rpartition(".")[0] == section}
    nearest = [siblings[name] for name in difflib.get_close_matches(last, siblings, n=1, cutoff=0.8)]
    near = [siblings[name] for name in difflib.get_close_matches(last, siblings, n=1)]
    # A setting of another section has the same last name.
    elsewhere = [name for name in names if name.rpartition(".")[2] == last]
    # The names of a section have the same beginning.
    rest = [] if siblings else difflib.get_close_matches(wanted, names, n=1)
    return next(iter(separated_otherwise or nearest or elsewhere or near or rest), None)


def _find_flag(path: SettingPath, flags: Mapping[str, Any]) -> str | None:
    given: Any = flags
    for name in path[:2]:
        if isinstance(given, Mapping):
            if name not in given:
                return None
            given = given[name]
    known_flag = next((flag for start, flag in _FLAGS.items() if path[: len(start)] == start), None)
    names = path[:2] if path[0] in _SECTIONS_IN_FLAGS else path[1:2] or path
    return known_flag or "--" + "-".join(map(str, names)).replace("_", "-")


def find_variable(path: SettingPath) -> str | None:
    """Return the name of the environment variable that sets a setting, a part of it, or its section; None if there is none.

    The variable may name a file with the value.
    """
    given = {name.upper() for name in os.environ}
    names = (variable_name(path[:end]) for end in range(len(path), 0, -1))
    forms = (form for name in names for form in (name, f"{name}_FILE"))
    return next((form for form in forms if form in given), None) or _find_variable_within(path)


def _find_variable_within(path: SettingPath) -> str | None:
    """Return the first variable that sets a part of a table or a list; None if there is none."""
    start = f"{variable_name(path)}__"
    return min((name.upper() for name in os.environ if path and name.upper().startswith(start)), default=None)


def variable_name(path: SettingPath) -> str:
    return PREFIX + "__".join(map(str, path)).upper()


def unknown_variables(settings: Sequence[str], other_variables: Sequence[str]) -> list[str]:
    """Return a message for each variable `KVPROXY_NAME` or `KVPROXY_NAME__SETTING` whose name is no setting or section.

    `other_variables` have another use. pydantic reports variables such as `KVPROXY_CACHE__NAME`.
    """
    lines, known = [], {name for name in settings if "." not in name}
    sections = {name.partition(".")[0] for name in settings if "." in name}
    known |= {f"{name}_file" for name in known - sections}
    for variable in sorted(os.environ):
        path = tuple(variable.removeprefix(PREFIX).lower().split("__"))
        if variable.startswith(PREFIX) and path[0] not in known and variable not in other_variables:
            name = _closest_name(path, settings)
            meant = f"did you mean {PREFIX}{name.upper().replace('.', '__')}?" if name else "unset it"
            lines.append(f"there is no setting for {variable}: {meant}")
    return lines
