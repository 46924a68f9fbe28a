"""The import directions of the design, read from the source itself (see docs/structure.md)."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Room -> the rooms of ours that it may import, itself aside. A dotted room wins over its parent.
ALLOWED: dict[str, set[str]] = {
    "kvproxy.index": set(),
    "kvproxy": set(),
    "kvproxy.errors": set(),
    "kvproxy.generation": set(),
    "kvproxy.settings": {"kvproxy.errors"},
    "kvproxy.checks": {
        "kvproxy.index",
        *(f"kvproxy.{room}" for room in ("errors", "settings", "blocks", "demo", "engine", "tiers")),
    },
    "kvproxy.blocks": {"kvproxy.errors"},
    "kvproxy.demo": {"kvproxy.errors"},
    # What trains models: neither is in the wheel, and no other room may import them.
    "kvproxy.demo.training": {"kvproxy.demo"},
    "kvproxy.index.training": {"kvproxy.index"},
    "kvproxy.engine": {f"kvproxy.{room}" for room in ("errors", "generation", "settings", "blocks", "demo", "tiers")},
    "kvproxy.tiers": {"kvproxy.errors", "kvproxy.settings", "kvproxy.blocks"},
    "kvproxy.mirror": {"kvproxy.errors", "kvproxy.settings", "kvproxy.blocks"},
    "kvproxy.routing": set(),
    "kvproxy.simulate": {"kvproxy.errors", "kvproxy.blocks", "kvproxy.routing"},
    "kvproxy.proxy": {
        "kvproxy.index",
        "kvproxy",
        "kvproxy.errors",
        "kvproxy.generation",
        "kvproxy.settings",
        "kvproxy.blocks",
        "kvproxy.engine",
        "kvproxy.mirror",
        "kvproxy.routing",
        "kvproxy.demo",
    },
    "kvproxy.commands": {"kvproxy.index", "kvproxy", *(f"kvproxy.{room}" for room in (
        "errors", "settings", "checks", "blocks", "demo", "engine", "tiers", "mirror", "routing", "simulate", "proxy"
    ))},
}  # fmt: skip
NO_TORCH = ("kvproxy/blocks", "kvproxy/simulate", "kvproxy/tiers", "kvproxy/mirror", "kvproxy/routing")


def room_of(module: str) -> str | None:
    parts = module.split(".")
    for length in (3, 2, 1):
        if ".".join(parts[:length]) in ALLOWED:
            return ".".join(parts[:length])
    return None


def sources() -> Iterator[Path]:
    for package in ("kvproxy", "commands", "index"):
        yield from sorted((ROOT / package).rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    # commands/ and index/ lie at the top and are linked into the package, which is where they are imported from.
    parts = parts if parts[0] == "kvproxy" else ("kvproxy", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path) -> Iterator[str]:
    package = module_name(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", list(sources()), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_follow_the_design(path: Path) -> None:
    own = room_of(module_name(path))
    assert own is not None, f"{path} is in no room: add the room to ALLOWED on purpose"
    rooms = {room for name in imported(path) if (room := room_of(name)) is not None}
    # `from kvproxy import errors` names the parent too; the parent package holds nothing to depend on.
    wrong = rooms - ALLOWED[own] - {own, "kvproxy"}
    assert not wrong, f"{path.relative_to(ROOT)} imports {sorted(wrong)}"


@pytest.mark.parametrize("path", list(sources()), ids=lambda path: str(path.relative_to(ROOT)))
def test_block_cache_never_imports_torch(path: Path) -> None:
    if not str(path.relative_to(ROOT)).startswith(NO_TORCH):
        return
    assert not {name.split(".")[0] for name in imported(path)} & {"torch", "transformers"}


@pytest.mark.parametrize("path", list(sources()), ids=lambda path: str(path.relative_to(ROOT)))
def test_files_are_read_in_one_sitting(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 300, "split it by noun"


def test_help_needs_no_heavy_import() -> None:
    heavy = {"torch", "faiss", "transformers", "pydantic", "redis"}
    code = f"import sys, kvproxy.commands; print(*sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == ""
