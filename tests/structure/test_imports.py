"""The import directions of the design, read from the source itself (see docs/structure.md)."""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Package -> the packages of ours that it may import, itself aside. A dotted package wins over its parent.
ALLOWED: dict[str, set[str]] = {
    "kvproxy.index": set(),
    # The face of the library: what it names is imported when it is used.
    "kvproxy": {"kvproxy.index", *(f"kvproxy.{package}" for package in ("blocks", "responses", "settings", "offline.simulate"))},
    "kvproxy.responses": {"kvproxy.index", *(
        f"kvproxy.{package}" for package in ("errors", "settings", "encryption", "redaction")
    )},
    "kvproxy.errors": set(),
    "kvproxy.clients": {"kvproxy.errors", "kvproxy.settings"},
    "kvproxy.generation": set(),
    "kvproxy.token_bucket": set(),
    "kvproxy.extras": {"kvproxy.errors"},
    "kvproxy.exchange": {"kvproxy.index", *(f"kvproxy.{package}" for package in ("apis", "settings", "trace"))},
    "kvproxy.trace": set(),
    "kvproxy.request_rule": {"kvproxy.index"},
    "kvproxy.rules": {"kvproxy.index", "kvproxy.apis", "kvproxy.errors", "kvproxy.request_rule", "kvproxy.settings"},
    "kvproxy.encryption": {"kvproxy.errors", "kvproxy.settings"},
    "kvproxy.redaction": {"kvproxy.index", "kvproxy.errors", "kvproxy.settings"},
    "kvproxy.settings": {"kvproxy.errors"},
    "kvproxy.checks": {
        "kvproxy.index",
        *(f"kvproxy.{package}" for package in (
            "errors", "settings", "blocks", "demo", "engine", "tiers", "reachable", "stored", "encryption",
        )),
    },
    "kvproxy.reachable": {"kvproxy.errors", "kvproxy.settings"},
    "kvproxy.stored": {"kvproxy.index", "kvproxy.errors", "kvproxy.settings"},
    "kvproxy.blocks": {"kvproxy.errors"},
    "kvproxy.demo": {"kvproxy.errors"},
    "kvproxy.engine": {f"kvproxy.{package}" for package in (
        "errors", "generation", "settings", "encryption", "blocks", "demo", "tiers",
    )},
    "kvproxy.tiers": {"kvproxy.errors", "kvproxy.settings", "kvproxy.blocks", "kvproxy.encryption"},
    "kvproxy.mirror": {"kvproxy.errors", "kvproxy.settings", "kvproxy.blocks"},
    "kvproxy.apis": {"kvproxy.index", *(f"kvproxy.{package}" for package in ("errors", "generation", "request_rule"))},
    # The typed seams between the flow and what computes answers: the flow sees nothing else of a backend.
    "kvproxy.backends.protocol": {f"kvproxy.{package}" for package in ("errors", "generation", "apis")},
    "kvproxy.backends.prefix_cache": {f"kvproxy.{package}" for package in ("errors", "apis", "blocks", "mirror", "tiers")},
    "kvproxy.journal": {"kvproxy.index", *(f"kvproxy.{package}" for package in ("errors", "settings", "apis", "exchange"))},
    "kvproxy.telemetry": {"kvproxy.index", *(
        f"kvproxy.{package}" for package in ("errors", "settings", "apis", "exchange", "journal", "trace")
    )},
    "kvproxy.flow": {"kvproxy.index", "kvproxy.backends.protocol", "kvproxy.backends.prefix_cache", *(
        f"kvproxy.{package}" for package in (
            "errors", "generation", "settings", "apis", "exchange", "responses", "journal", "request_rule",
        )
    )},
    "kvproxy.backends.admission": {"kvproxy.errors"},
    "kvproxy.upstreams.routing": set(),
    "kvproxy.upstreams": {"kvproxy.upstreams.routing", *(f"kvproxy.{package}" for package in (
        "backends.protocol", "backends.prefix_cache", "backends.admission", "token_bucket",
        "errors", "generation", "settings", "encryption", "blocks", "demo", "engine", "mirror", "apis", "tiers",
    ))},
    "kvproxy.backends": {f"kvproxy.{package}" for package in (
        "backends.protocol", "backends.prefix_cache", "backends.admission",
        "errors", "generation", "settings", "encryption", "blocks", "engine", "apis", "tiers", "upstreams",
    )},
    "kvproxy.offline.simulate": {"kvproxy.errors", "kvproxy.blocks", "kvproxy.upstreams.routing"},
    # Request logs through the proxy's own flow, with the tokenizer of mirrored upstreams.
    "kvproxy.offline": {"kvproxy.index", "kvproxy.backends.protocol", "kvproxy.offline.simulate", *(
        f"kvproxy.{package}" for package in (
            "upstreams", "generation", "errors", "settings", "blocks", "mirror", "apis", "exchange", "flow", "responses",
    ))},
    "kvproxy.http": {"kvproxy.index", *(f"kvproxy.{package}" for package in (
        "backends.protocol", "backends.prefix_cache", "backends", "upstreams",
        "errors", "generation", "settings", "blocks", "apis", "exchange", "flow", "tiers", "responses", "clients", "journal",
        "redaction", "rules", "telemetry", "token_bucket", "trace",
    ))},
    # Access to a proxy for its operator: over HTTP, or through its files.
    "kvproxy.proxy_client": {"kvproxy.index", *(f"kvproxy.{package}" for package in (
        "errors", "settings", "checks", "apis", "flow", "journal", "offline", "redaction",
    ))},
    "kvproxy.commands": {"kvproxy.index", "kvproxy", *(f"kvproxy.{package}" for package in (
        "errors", "extras", "settings", "checks", "apis", "upstreams", "http", "clients", "journal", "offline",
        "offline.simulate", "proxy_client",
    ))},
}  # fmt: skip
NO_TORCH = tuple(
    f"kvproxy.{package}."
    for package in (
        "blocks",
        "tiers",
        "mirror",
        "upstreams.routing",
        "apis",
        "flow",
        "journal",
        "telemetry",
        "offline",
        "offline.simulate",
        "proxy_client",
        "http",
    )
)
MOST_LINES = 400
MOST_FILES = 20
HTTP_SIDE = ("apis", "flow", "backends", "upstreams", "http")
MOST_ANY = 40


def package_of(module: str) -> str | None:
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


@cache
def imported(path: Path) -> tuple[str, ...]:
    """Every name that a file imports anywhere in it."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[str]:
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


def test_imports_follow_the_design() -> None:
    wrong = {}
    for path in sources():
        own = package_of(module_name(path))
        assert own is not None, f"{path} is in no package of ALLOWED: add it"
        packages = {package for name in imported(path) if (package := package_of(name)) is not None}
        # `from kvproxy import errors` names the parent too; the parent package holds nothing to depend on.
        if strange := packages - ALLOWED[own] - {own, "kvproxy"}:
            wrong[str(path.relative_to(ROOT))] = sorted(strange)
    assert wrong == {}


def test_no_arrow_leads_back() -> None:
    arrows: dict[str, set[str]] = {}
    for path in sources():
        own = package_of(module_name(path))
        assert own is not None
        packages = {package for name in imported(path) if (package := package_of(name)) is not None}
        arrows.setdefault(own, set()).update(packages - {own, "kvproxy"})
    # What it names is imported when it is used; everything else may import the package that it is in.
    del arrows["kvproxy"]
    assert list(TopologicalSorter(arrows).static_order())


def test_the_product_imports_neither_training_nor_tests() -> None:
    """The wheel holds neither."""
    wrong = {
        f"{path}: {name}"
        for path in sources()
        for name in imported(path)
        if name.split(".")[0] in ("training", "tests")
    }
    assert wrong == set()


def test_the_caches_and_the_http_side_never_import_torch() -> None:
    wrong = {
        str(path.relative_to(ROOT))
        for path in sources()
        if f"{module_name(path)}.".startswith(NO_TORCH)
        and {name.split(".")[0] for name in imported(path)} & {"torch", "transformers"}
    }
    assert wrong == set()


def test_files_are_read_in_one_sitting() -> None:
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in sources()}
    assert {path: length for path, length in lines.items() if length > MOST_LINES} == {}, "split them by noun"


def test_folders_are_seen_at_a_glance() -> None:
    files = Counter(str(path.parent.relative_to(ROOT)) for path in sources() if path.name != "__init__.py")
    assert {folder: count for folder, count in files.items() if count > MOST_FILES} == {}


def test_the_http_side_is_typed() -> None:
    """`Any` is for JSON from outside that has no common type."""
    texts = [path.read_text() for package in HTTP_SIDE for path in (ROOT / "kvproxy" / package).rglob("*.py")]
    assert sum(len(re.findall(r"\bAny\b", text)) for text in texts) <= MOST_ANY


def test_help_needs_no_heavy_import() -> None:
    heavy = {"torch", "faiss", "transformers", "pydantic", "redis"}
    code = f"import sys, kvproxy.commands; print(*sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == ""
