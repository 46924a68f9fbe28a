"""Import directions and sizes, as docs/structure.md describes them."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Package -> our packages that it may import, besides itself. The longest name that matches a module counts.
ALLOWED: dict[str, set[str]] = {
    "kvproxy.index": set(),
    # The library's names are imported at their first use.
    "kvproxy": {"kvproxy.index", *(f"kvproxy.{package}" for package in ("blocks", "library", "settings", "offline.simulate"))},
    "kvproxy.responses": {"kvproxy.index", *(
        f"kvproxy.{package}" for package in ("errors", "settings", "encryption", "redaction")
    )},
    "kvproxy.library": {"kvproxy.index", "kvproxy.responses", "kvproxy.settings"},
    "kvproxy.errors": set(),
    "kvproxy.clients": {"kvproxy.errors", "kvproxy.settings"},
    "kvproxy.units": set(),
    "kvproxy.charts": set(),
    "kvproxy.data_folder": {"kvproxy.errors"},
    "kvproxy.backup": {"kvproxy", "kvproxy.data_folder", "kvproxy.errors", "kvproxy.settings"},
    "kvproxy.generation": set(),
    "kvproxy.token_bucket": set(),
    "kvproxy.extras": {"kvproxy.errors"},
    "kvproxy.exchange": {"kvproxy.index", *(f"kvproxy.{package}" for package in ("apis", "quotas", "settings", "trace"))},
    "kvproxy.quotas": {"kvproxy.errors", "kvproxy.settings", "kvproxy.token_bucket"},
    "kvproxy.trace": set(),
    "kvproxy.rules": {"kvproxy.index", "kvproxy.apis", "kvproxy.errors", "kvproxy.settings"},
    "kvproxy.encryption": {"kvproxy.errors", "kvproxy.settings"},
    "kvproxy.redaction": {"kvproxy.index", "kvproxy.errors", "kvproxy.settings"},
    "kvproxy.settings": {"kvproxy.errors", "kvproxy.units"},
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
    "kvproxy.apis": {"kvproxy.index", *(f"kvproxy.{package}" for package in (
        "errors", "generation", "settings", "units",
    ))},
    # The flow uses only these two modules of the backends.
    "kvproxy.backends.protocol": {f"kvproxy.{package}" for package in ("errors", "generation", "apis")},
    "kvproxy.backends.prefix_cache": {f"kvproxy.{package}" for package in ("errors", "apis", "blocks", "mirror", "tiers")},
    "kvproxy.journal": {"kvproxy.index", *(f"kvproxy.{package}" for package in ("errors", "settings", "apis", "exchange"))},
    "kvproxy.telemetry": {"kvproxy.index", *(
        f"kvproxy.{package}" for package in ("errors", "settings", "apis", "exchange", "journal", "trace")
    )},
    "kvproxy.flow": {"kvproxy.index", "kvproxy.backends.protocol", "kvproxy.backends.prefix_cache", *(
        f"kvproxy.{package}" for package in (
            "errors", "generation", "settings", "apis", "exchange", "responses", "journal", "quotas",
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
    "kvproxy.offline.simulate": {"kvproxy.charts", "kvproxy.errors", "kvproxy.blocks", "kvproxy.upstreams.routing"},
    # Replays request logs through the flow, with the tokenizer of mirrored upstreams.
    "kvproxy.offline": {"kvproxy.index", "kvproxy.backends.protocol", "kvproxy.offline.simulate", *(
        f"kvproxy.{package}" for package in (
            "upstreams", "generation", "errors", "settings", "blocks", "mirror", "apis", "exchange", "flow", "responses",
            "charts",
    ))},
    "kvproxy.http": {"kvproxy.index", *(f"kvproxy.{package}" for package in (
        "backends.protocol", "backends.prefix_cache", "backends", "upstreams",
        "errors", "generation", "settings", "blocks", "apis", "exchange", "flow", "tiers", "responses", "clients", "journal",
        "data_folder", "redaction", "rules", "quotas", "telemetry", "trace", "units",
    ))},
    # Access to a proxy for its operator: over HTTP, or through its files.
    "kvproxy.proxy_client": {"kvproxy.index", *(f"kvproxy.{package}" for package in (
        "errors", "settings", "checks", "apis", "flow", "journal", "offline", "redaction",
    ))},
    "kvproxy.commands": {"kvproxy.index", "kvproxy", *(f"kvproxy.{package}" for package in (
        "errors", "extras", "settings", "checks", "apis", "upstreams", "http", "clients", "journal", "offline",
        "offline.simulate", "proxy_client", "units", "backup", "charts",
    ))},
}  # fmt: skip
NO_TORCH = tuple(
    f"kvproxy.{package}."
    for package in (
        "apis blocks flow http journal mirror offline proxy_client telemetry tiers upstreams.routing".split()
    )
)
MAX_LINES = 400
MAX_FILES = 20
TYPED = ("apis", "flow", "backends", "upstreams", "http")
MAX_ANY = 40


def package_of(module: str) -> str | None:
    """Return the longest package of ALLOWED that contains a module."""
    parts = module.split(".")
    names = (".".join(parts[:length]) for length in (3, 2, 1))
    return next((name for name in names if name in ALLOWED), None)


def sources() -> Iterator[Path]:
    for package in ("kvproxy", "commands", "index"):
        yield from sorted((ROOT / package).rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    # The package contains links to commands/ and index/.
    parts = parts if parts[0] == "kvproxy" else ("kvproxy", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imported(path: Path) -> tuple[str, ...]:
    """Return every name that a file imports, also within functions."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    package = module_name(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def package_imports(path: Path) -> set[str]:
    """Return the other packages that a file imports; the parent `kvproxy` has no code to depend on."""
    packages = {package for name in imported(path) if (package := package_of(name)) is not None}
    return packages - {package_of(module_name(path)), "kvproxy"}


def test_imports_follow_the_design() -> None:
    wrong = {}
    for path in sources():
        package = package_of(module_name(path))
        assert package is not None, f"{path} is in no package of ALLOWED: add it"
        if others := package_imports(path) - ALLOWED[package]:
            wrong[str(path.relative_to(ROOT))] = sorted(others)
    assert wrong == {}


def test_packages_have_no_import_cycle() -> None:
    graph: dict[str, set[str]] = {}
    for path in sources():
        package = package_of(module_name(path))
        assert package is not None
        graph.setdefault(package, set()).update(package_imports(path))
    # Its imports happen at the first use of a name.
    del graph["kvproxy"]
    assert list(TopologicalSorter(graph).static_order())


def _modules_at_import(nodes: list[ast.stmt], known: set[str]) -> Iterator[str]:
    """Modules of the product that statements import at once: neither within functions nor for type checkers only."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in known else str(node.module) for name in names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from _modules_at_import(node.orelse, known)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _modules_at_import(
                [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.stmt)], known
            )


def test_modules_have_no_import_cycle() -> None:
    paths = {module_name(path): path for path in sources()}
    # Its imports happen at the first use of a name.
    del paths["kvproxy"]
    known = set(paths)
    graph = {name: (set(_modules_at_import(parsed(path).body, known)) & known) - {name} for name, path in paths.items()}
    assert len(list(TopologicalSorter(graph).static_order())) == len(graph)


def test_the_product_imports_neither_training_nor_tests() -> None:
    found = {f"{path}: {name}" for path in sources() for name in imported(path)}
    assert {line for line in found if re.search(r": (training|tests)\b", line)} == set()


def test_only_the_engine_imports_torch() -> None:
    wrong = {
        str(path.relative_to(ROOT))
        for path in sources()
        if f"{module_name(path)}.".startswith(NO_TORCH)
        and {name.split(".")[0] for name in imported(path)} & {"torch", "transformers"}
    }
    assert wrong == set()


def test_files_are_short() -> None:
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in sources()}
    assert {path: length for path, length in lines.items() if length > MAX_LINES} == {}


def test_folders_have_few_files() -> None:
    files = Counter(str(path.parent.relative_to(ROOT)) for path in sources() if path.name != "__init__.py")
    assert {folder: count for folder, count in files.items() if count > MAX_FILES} == {}


def test_class_names_are_unique() -> None:
    names = [node.name for path in sources() for node in ast.walk(parsed(path)) if isinstance(node, ast.ClassDef)]
    assert [name for name, count in Counter(names).items() if count > 1] == []


def test_the_http_side_is_typed() -> None:
    """`Any` is for JSON from outside without a common type."""
    texts = [path.read_text() for package in TYPED for path in (ROOT / "kvproxy" / package).rglob("*.py")]
    assert sum(len(re.findall(r"\bAny\b", text)) for text in texts) <= MAX_ANY
