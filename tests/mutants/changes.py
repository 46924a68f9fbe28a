"""Small changes to a program, each of which some test should notice."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_OPPOSITES: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.Mod: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
    ast.Break: ast.Continue, ast.Continue: ast.Break,
}  # fmt: skip
_SKIPPED = (ast.Raise, ast.Assert, ast.Import, ast.ImportFrom, ast.JoinedStr, ast.AnnAssign)


@dataclass(frozen=True, slots=True)
class Change:
    """A changed program, and a description of the change."""

    line: int
    description: str
    text: str


def count_changes(text: str) -> int:
    """Count the possible changes. Log calls, error messages, annotations, and protocols stay."""
    changer = _Changer(None)
    changer.visit(ast.parse(text))
    return changer.count


def change(text: str, index: int) -> Change:
    """Make one of the possible changes."""
    changer = _Changer(index)
    tree = changer.visit(ast.parse(text))
    assert changer.line is not None
    return Change(changer.line, changer.description, ast.unparse(ast.fix_missing_locations(tree)))


class _Changer(ast.NodeTransformer):
    """Counts the changes, and applies the change with a given index."""

    def __init__(self, index: int | None) -> None:
        self.line: int | None = None
        self.description = ""
        self.count = 0
        self._index = index
        self._position = 0

    def visit(self, node: ast.AST) -> ast.AST:
        if self.line is not None or _is_skipped(node):
            return node
        self._position = getattr(node, "lineno", self._position)
        for replacement in _replacements(node):
            if self.count == self._index:
                self.line = self._position
                self.description = f"{_describe(node)}  ->  {_describe(replacement)}"
                return replacement
            self.count += 1
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_params"):
                continue
            if isinstance(value, list):
                value[:] = [self.visit(child) if isinstance(child, ast.AST) else child for child in value]
            elif isinstance(value, ast.AST):
                setattr(node, name, self.visit(value))
        return node


def _replacements(node: ast.AST) -> Iterator[ast.AST]:
    if type(node) in _OPPOSITES:
        yield _OPPOSITES[type(node)]()
    match node:
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
        case ast.Constant(value=float(value)):
            yield ast.Constant(value * 2 + 1)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.If(test=test, body=body, orelse=orelse) if not isinstance(test, ast.UnaryOp):
            yield ast.If(ast.UnaryOp(ast.Not(), test), body, orelse)
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield ast.Pass()
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield ast.Return(ast.Constant(None))


def _is_skipped(node: ast.AST) -> bool:
    match node:
        case ast.ClassDef(bases=bases):
            return any(isinstance(base, ast.Name) and base.id == "Protocol" for base in bases)
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="_log" | "logging" | "warnings")))):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.FunctionDef(name="__repr__"):
            return True
    return isinstance(node, _SKIPPED)


def _describe(node: ast.AST) -> str:
    """Return the first line of a statement or expression, or the name of an operator."""
    if not isinstance(node, ast.stmt | ast.expr):
        return type(node).__name__
    return ast.unparse(ast.fix_missing_locations(node)).splitlines()[0]
