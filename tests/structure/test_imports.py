"""Import directions and sizes, as docs/structure.md describes them; and declared dependencies equal imported ones."""

import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Set
from functools import cache
from graphlib import TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Package: our packages that it may import, besides itself. The longest name that matches a module counts.
ALLOWED_IMPORTS = """
index errors units:
# The library's names are imported at their first use.
kvproxy: analyse blocks commands errors index library settings
layers:
doors: index
optional_packages: errors
settings: doors errors index units
apis: errors index settings units
demo: apis blocks errors
blocks: doors errors
providers: apis errors settings
privacy: errors index optional_packages settings
clients: errors index settings units
tiers: blocks doors errors optional_packages privacy settings
backends: apis blocks errors tiers
library: errors index optional_packages privacy settings units
exchange: apis backends clients index layers settings
engine: apis backends blocks demo errors optional_packages privacy settings tiers
journal: apis blocks errors exchange index layers optional_packages providers settings units
telemetry: apis errors exchange index journal settings
flow: apis backends clients doors errors exchange index journal layers library providers settings telemetry
upstreams: apis backends blocks demo doors engine errors index optional_packages privacy settings tiers
installation: blocks clients demo doors engine errors index journal optional_packages privacy providers settings tiers
    units upstreams
# Replays request logs through the flow, with the tokenizer of mirrored upstreams.
analyse: apis backends blocks demo doors errors exchange flow index journal library providers settings units upstreams
http: apis backends blocks clients engine errors exchange flow index installation journal library operations
    optional_packages privacy providers settings telemetry tiers units upstreams
# Access to a proxy for its operator: over HTTP, or through its files.
operations: analyse apis backends blocks clients errors flow index installation journal layers privacy providers
    settings tiers units upstreams
commands: analyse apis backends blocks clients demo doors errors flow http index installation journal operations
    optional_packages settings telemetry tiers units upstreams
"""


def _read(table: str) -> Iterator[tuple[str, set[str]]]:
    lines = re.sub(r"^#.*\n", "", table.strip(), flags=re.MULTILINE).replace("\n    ", " ").splitlines()
    for line in lines:
        packages, _, allowed = line.partition(":")
        for package in packages.split():
            name = package if package == "kvproxy" else f"kvproxy.{package}"
            yield name, {f"kvproxy.{each}" for each in allowed.split()}


ALLOWED = dict(_read(ALLOWED_IMPORTS))
NO_TORCH = tuple(
    f"kvproxy.{package}."
    for package in """
    analyse apis backends blocks clients demo flow http journal operations telemetry tiers upstreams.mirror
    upstreams.routing
    """.split()
)
MAX_LINES = 450
MAX_FILES = 25
TYPED = ("apis", "flow", "backends", "upstreams", "http")
MAX_ANY = 52


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
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(parsed(path)))


@cache
def imported(path: Path) -> tuple[str, ...]:
    """Return every name that a file imports, also within functions."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    package = module_name(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    for node in nodes(path):
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


def imported_modules(path: Path, modules: Set[str]) -> set[str]:
    """Return our modules that a file imports, also within functions and for type checkers."""
    names = set(imported(path)) & modules
    # `from package import module` names the package, too.
    of_submodules = {
        node.module
        for node in nodes(path)
        if isinstance(node, ast.ImportFrom) and all(f"{node.module}.{alias.name}" in modules for alias in node.names)
    }
    return names - of_submodules


def test_modules_have_no_import_cycle() -> None:
    """Not even a deferred one: parts that depend on each other are one part."""
    paths = {module_name(path): path for path in sources()}
    # Its imports happen at the first use of a name.
    del paths["kvproxy"]
    graph = {name: imported_modules(path, paths.keys()) - {name} for name, path in paths.items()}
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


def test_every_module_has_an_opening_sentence() -> None:
    paths = [*sources(), *(ROOT / "tests").rglob("*.py")]
    texts = {path: path.read_text() for path in paths}
    assert [str(path) for path, text in texts.items() if text and not text.startswith(('"""', 'r"""'))] == []


def test_folders_have_few_files() -> None:
    files = Counter(str(path.parent.relative_to(ROOT)) for path in sources() if path.name != "__init__.py")
    assert {folder: count for folder, count in files.items() if count > MAX_FILES} == {}


def test_class_names_are_unique() -> None:
    names = [node.name for path in sources() for node in nodes(path) if isinstance(node, ast.ClassDef)]
    assert [name for name, count in Counter(names).items() if count > 1] == []


def test_the_http_side_is_typed() -> None:
    """`Any` is for JSON from outside without a common type."""
    texts = [path.read_text() for package in TYPED for path in (ROOT / "kvproxy" / package).rglob("*.py")]
    assert sum(len(re.findall(r"\bAny\b", text)) for text in texts) <= MAX_ANY


# Not imported by kvproxy: uvicorn uses uvloop.
INDIRECT = {"uvloop"}
# Installed by torch (for a GPU), by the extra `pool` of psycopg, in the namespace of protobuf, and by the exporter.
TRANSITIVE = {"triton": "torch", "psycopg-pool": "psycopg", "googleapis-common-protos": "protobuf"} | {
    "requests": "opentelemetry-exporter-otlp-proto-http"
}
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
    named = set(re.findall(r"""(?:kvproxy\[|install_command\(["'])(\w+)""", text))
    assert {"redis", "postgres"} <= named <= EXTRAS.keys()


def test_every_dependency_of_the_tests_is_pinned_for_a_fresh_clone() -> None:
    pinned = names((ROOT / "constraints.txt").read_text().splitlines())
    wanted = ALWAYS.union(names(PROJECT["optional-dependencies"]["dev"]), *EXTRAS.values())
    assert wanted - pinned - {"kvproxy", "faiss-gpu", "accelerate", "gguf"} == set()
