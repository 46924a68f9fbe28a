"""Declared dependencies equal imported ones."""

import re
import sys
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.metadata import packages_distributions

from tests.structure.test_imports import ROOT, imported, sources

# Not imported by kvproxy: uvicorn uses uvloop.
INDIRECT = {"uvloop"}
# Installed by torch (for a GPU), by the extra `pool` of psycopg, and in the namespace of protobuf.
TRANSITIVE = {"triton": "torch", "psycopg-pool": "psycopg", "googleapis-common-protos": "protobuf"}
# Distributions that share one module.
TELEMETRY = "opentelemetry-"


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def names(requirements: Iterable[str]) -> set[str]:
    return {plain(re.split(r"[^\w.-]", line)[0]) for line in requirements}


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ALWAYS = names(PROJECT["dependencies"])
EXTRAS = {
    extra: names(lines) for extra, lines in PROJECT["optional-dependencies"].items() if extra not in ("all", "dev")
}


@cache
def imported_distributions() -> frozenset[str]:
    """Return the distributions that the package imports, also within functions."""
    by_module = packages_distributions()
    modules = {name.split(".")[0] for path in sources() for name in imported(path)}
    # Only type checkers have `_typeshed`.
    foreign = modules - set(sys.stdlib_module_names) - {"kvproxy", "_typeshed", ""}
    unknown = foreign - by_module.keys()
    assert unknown <= {"triton"}, f"not installed here: {unknown}"
    found = {plain(name) for module in foreign for name in by_module.get(module, [module])}
    found -= {name for name in found if name.startswith(TELEMETRY)} - EXTRAS["telemetry"]
    return frozenset(TRANSITIVE.get(name, name) for name in found)


def test_imported_distributions_are_declared() -> None:
    assert imported_distributions() - ALWAYS - set().union(*EXTRAS.values()) == set()


def test_required_dependencies_are_imported() -> None:
    assert ALWAYS - imported_distributions() == INDIRECT


def test_the_extras_of_error_messages_exist() -> None:
    text = "".join(path.read_text() for path in sources())
    named = set(re.findall(r"pip install 'kvproxy\[(\w+)\]'", text))
    assert {"redis", "postgres"} <= named <= EXTRAS.keys()


def test_every_dependency_of_the_tests_is_pinned_for_a_fresh_clone() -> None:
    pinned = names((ROOT / "constraints.txt").read_text().splitlines())
    wanted = ALWAYS.union(names(PROJECT["optional-dependencies"]["dev"]), *EXTRAS.values())
    assert wanted - pinned - {"kvproxy", "faiss-gpu-cu12", "accelerate", "gguf"} == set()
