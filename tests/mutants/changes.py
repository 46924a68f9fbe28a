"""Small changes to a program's text, each of which some test should notice."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARED: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is",
}  # fmt: skip
_COMPUTED: dict[type[ast.operator], str] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "//", ast.FloorDiv: "*", ast.Div: "*", ast.Mod: "*",
    ast.BitAnd: "|", ast.BitOr: "&", ast.LShift: ">>", ast.RShift: "<<",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Change:
    """Characters `start` to `end` of a text are replaced by `new`; `line` is where."""

    line: int
    start: int
    end: int
    new: str

    def apply(self, text: str) -> str:
        return text[: self.start] + self.new + text[self.end :]

    def told(self, text: str) -> str:
        """The old and the new line's beginning, for a report."""
        begin = text.rfind("\n", 0, self.start) + 1
        old, new = text[begin:].splitlines()[0], self.apply(text)[begin:].splitlines()[0]
        return f"{old.strip()}  ->  {new.strip()}"


def changes(text: str) -> list[Change]:
    """Every change that is tried. What is logged, said, annotated or abstract is left alone."""
    return sorted({*_Finder(text).found(ast.parse(text))}, key=lambda change: (change.start, change.new))


class _Finder:
    def __init__(self, text: str) -> None:
        self._text = text
        self._starts = [0]
        for line in text.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._lines = text.splitlines()

    def _at(self, line: int, column: int) -> int:
        # The columns of `ast` count bytes.
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._at(node.lineno, node.col_offset), self._at(node.end_lineno, node.end_col_offset)

    def _made(self, node: ast.expr | ast.stmt, new: str) -> Change:
        return Change(node.lineno, *self._span(node), new)

    def _between(self, left: ast.expr, right: ast.expr, old: str, new: str) -> Iterator[Change]:
        start, end = self._span(left)[1], self._span(right)[0]
        place = self._text.find(old, start, end)
        if place >= 0:
            line = self._text.count("\n", 0, place) + 1
            yield Change(line, place, place + len(old), new)

    def found(self, node: ast.AST) -> Iterator[Change]:
        if _left_alone(node):
            return
        yield from self._of(node)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_params"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from self.found(child)

    def _of(self, node: ast.AST) -> Iterator[Change]:
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                yield from self._between(left, right, _SIGNS[type(op)], _COMPARED[type(op)])
            case ast.BoolOp(op=op, values=values):
                old, new = ("and", "or") if isinstance(op, ast.And) else ("or", "and")
                yield from self._between(values[0], values[1], old, new)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _COMPUTED and not _is_text(left, right):
                yield from self._between(left, right, _OPERATORS[type(op)], _COMPUTED[type(op)])
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield self._made(node, f"({ast.unparse(operand)})")
            case ast.Constant(value=bool(value)):
                yield self._made(node, str(not value))
            case ast.Constant(value=int(value)):
                yield self._made(node, str(value + 1))
            case ast.Constant(value=float(value)):
                yield self._made(node, repr(value * 2 + 1))
            case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
                yield self._made(test, f"(not ({ast.unparse(test)}))")
            case ast.Expr(value=ast.Call() | ast.Await()):
                yield self._made(node, "pass")
            case ast.AugAssign(target=target, op=op, value=value) if type(op) in _COMPUTED:
                yield from self._between(target, value, f"{_OPERATORS[type(op)]}=", f"{_COMPUTED[type(op)]}=")
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
                yield self._made(value, "None")
            case ast.Break():
                yield self._made(node, "continue")
            case ast.Continue():
                yield self._made(node, "break")


_SIGNS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
    ast.In: "in", ast.NotIn: "not in", ast.Is: "is", ast.IsNot: "is not",
}  # fmt: skip
_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Div: "/", ast.Mod: "%",
    ast.BitAnd: "&", ast.BitOr: "|", ast.LShift: "<<", ast.RShift: ">>",
}  # fmt: skip


def _is_text(*sides: ast.expr) -> bool:
    """Whether a side is visibly a text, a list or a type; without its operator it would only be an error."""
    kinds = (ast.JoinedStr, ast.List, ast.Tuple, ast.Dict, ast.Set)
    return any(isinstance(side, kinds) or (isinstance(side, ast.Constant) and not _is_number(side)) for side in sides)


def _is_number(side: ast.Constant) -> bool:
    return isinstance(side.value, int | float)


def _left_alone(node: ast.AST) -> bool:
    match node:
        case ast.Raise() | ast.Assert() | ast.Import() | ast.ImportFrom() | ast.JoinedStr():
            return True
        case ast.ClassDef(bases=bases):
            return any(isinstance(base, ast.Name) and base.id == "Protocol" for base in bases)
        case ast.FunctionDef(name="__repr__"):
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=("_log" | "logging" | "warnings"))))):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.Assign(targets=[ast.Name(id=("__all__" | "__slots__"))]):
            return True
    return False
