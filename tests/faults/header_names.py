"""The headers of requests that the proxy reads, collected from its code."""

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache
from types import ModuleType

from tests.structure.test_imports import module_name, parsed, sources

_HEADERS = ("headers", "request_headers", "values", "control", "directives", "names", "name")
"""Names of variables that hold headers, or the name of a header."""
_READERS = (
    "http/",
    "apis/request_directives",
    "apis/api_request",
    "flow/cache_keys",
    "flow/quota",
    "trace_context",
    "rules",
    "settings/access",
)
_NAME = re.compile(r"[a-z][a-z0-9-]*")


@cache
def request_headers() -> frozenset[str]:
    """Return the names, in lower case, that occur in comparisons with headers, in look-ups, and in constants used there."""
    found: set[str] = set()
    for path in sources():
        name = str(path).rpartition("kvproxy/")[2]
        if name.startswith(_READERS):
            module = importlib.import_module(module_name(path))
            for constant, value in vars(module).items():
                if constant.endswith(("_HEADER", "_HEADERS")):
                    found.update((value,) if isinstance(value, str) else map(str, value))
            for node in ast.walk(parsed(path)):
                for used in _names_in(node):
                    found.update(_texts(used, module))
    return frozenset(each for each in found if _NAME.fullmatch(each))


def _names_in(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions whose value is the name of a header, or a group of names."""
    match node:
        case ast.Call(func=ast.Attribute(attr="get" | "getlist", value=value), args=[first, *_]) if _holds_headers(
            value
        ):
            yield first
        case ast.Call(func=ast.Attribute(attr="startswith"), args=[ast.Constant(value=str(prefix))]) if (
            prefix[-1:] == "-"
        ):
            # A group of headers.
            yield ast.Constant(f"{prefix}for")
        case ast.Call(args=args):
            yield from (
                each for each in args if isinstance(each, ast.Name) and each.id.endswith(("_HEADER", "_HEADERS"))
            )
        case ast.Subscript(value=value, slice=first) if _holds_headers(value):
            yield first
        case ast.Compare(left=left, comparators=others) if any(map(_holds_headers, (left, *others))):
            yield from (left, *others)
        case ast.comprehension(iter=iterated) | ast.For(iter=iterated):
            yield iterated
        case ast.Attribute(attr="cookies"):
            yield ast.Constant("cookie")
        case ast.MatchValue(value=value):
            yield value


def _holds_headers(node: ast.expr) -> bool:
    text = ast.unparse(node)
    return text.rpartition(".")[2] in _HEADERS or text.startswith("Headers(")


def _texts(node: ast.expr, module: ModuleType) -> Iterator[str]:
    value: object = None
    if isinstance(node, ast.Constant):
        value = node.value
    elif isinstance(node, ast.Name):
        value = getattr(module, node.id, None)
    elif isinstance(node, ast.BinOp | ast.Call | ast.Tuple | ast.Set):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                yield from _texts(child, module)
    for each in value if isinstance(value, tuple | list | set | frozenset | dict) else (value,):
        if isinstance(each, bytes):
            each = each.decode("latin-1")
        if isinstance(each, str):
            yield each
