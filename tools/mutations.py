"""One source text -> its mutants: small changes of behaviour, each of which some test must notice.

Text for people is left alone (f-strings, sentences, `message` and `hint`), and so is what only the type checker reads.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

PROSE = {"message", "hint", "HINT", "shown", "said", "span"}
"""Names that hold text for people, here and as keywords."""
WORD = re.compile(r"^[\w.:/-]*$")
"""A string that code compares or looks up; anything with a space is a sentence."""
ASSERTIONS = {"strict"}
"""Keywords that check the program itself: zip(strict=True) fails where the data is already wrong."""
BIG = 10_000
"""From here an integer is a unit or a size, changed by a tenth; below it is a count or an index, changed by one."""

FLIPS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
"""The boundary moved, and the whole comparison turned round."""
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
OPPOSITES = {"min": "max", "max": "min", "any": "all", "all": "any"}
ALWAYS = (
    'from gate.observe.rows import Finding as Mutated\n    yield Mutated(code=CODE, message="mutant", hint="mutant")'
)


@dataclass(frozen=True, slots=True)
class Mutant:
    path: str
    line: int
    statement: tuple[int, int]
    """First and last line of the statement that holds it: of a compound one, its head."""
    kind: str
    before: str
    after: str
    """The changed lines, whole."""
    source: str
    """The whole mutated file."""
    at_import: bool
    """Outside every function: runs when the module is imported, so that any test may notice."""


def mutants(path: str, source: str) -> list[Mutant]:
    """In order of the file; no two have the same text."""
    raw = source.encode()
    starts = [0]
    for line in raw.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found: dict[str, Mutant] = {}
    for node, kind, text, place in _module(ast.parse(source), path):
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        mutated = (raw[:begin] + text.encode() + raw[end:]).decode()
        if mutated == source or mutated in found:
            continue
        compile(mutated, path, "exec")
        head, tail = starts[node.lineno - 1], starts[node.end_lineno]
        after = raw[head:begin] + text.encode() + raw[end:tail]
        found[mutated] = Mutant(
            path=path,
            line=node.lineno,
            statement=place.lines,
            kind=kind,
            before=raw[head:tail].decode().rstrip("\n"),
            after=after.decode().rstrip("\n"),
            source=mutated,
            at_import=not place.in_function,
        )
    return sorted(found.values(), key=lambda mutant: mutant.line)


@dataclass(frozen=True, slots=True)
class Place:
    lines: tuple[int, int] = (1, 1)
    in_function: bool = False

    def at(self, statement: ast.stmt) -> Place:
        body = getattr(statement, "body", None)
        last = max(statement.lineno, body[0].lineno - 1) if body else statement.end_lineno or statement.lineno
        return replace(self, lines=(statement.lineno, last))


Edit = tuple[ast.AST, str, str, Place]
"""(what is replaced, kind, its new text, where)."""


def _module(tree: ast.Module, path: str) -> Iterator[Edit]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "check" and "/checks/" in path:
            yield from _predicate(node)
        yield from _walk(node, Place())


def _predicate(check: ast.FunctionDef) -> Iterator[Edit]:
    """A check that never finds anything, and one that always does."""
    first, last = check.body[0], check.body[-1]
    whole = ast.copy_location(ast.Pass(), first)
    whole.end_lineno, whole.end_col_offset = last.end_lineno, last.end_col_offset
    place = Place((first.lineno, last.end_lineno or last.lineno), in_function=True)
    yield whole, "never", "return\n    yield", place
    yield whole, "always", ALWAYS, place


def _walk(node: ast.AST, place: Place) -> Iterator[Edit]:
    if isinstance(node, ast.JoinedStr | ast.Import | ast.ImportFrom):
        return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    if isinstance(node, ast.stmt):
        place = place.at(node)
    for target, kind, text in _edits(node):
        yield target, kind, text, place
    within = replace(place, in_function=True) if isinstance(node, FUNCTIONS) else place
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list") or _is_prose(node, name):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):  # defaults of arguments are made where the function is
                yield from _walk(child, place if name == "args" else within)


FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def _is_prose(node: ast.AST, field: str) -> bool:
    if field != "value":
        return field == "slice" and isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Literal"
    if isinstance(node, ast.keyword):
        return node.arg in PROSE | ASSERTIONS
    targets = node.targets if isinstance(node, ast.Assign) else []
    return any(isinstance(target, ast.Name) and target.id in PROSE for target in targets)


def _edits(node: ast.AST) -> Iterator[tuple[ast.AST, str, str]]:
    match node:
        case ast.Compare():
            for k, op in enumerate(node.ops):
                for new in FLIPS[type(op)]:
                    ops = [new() if i == k else other for i, other in enumerate(node.ops)]
                    yield node, "comparison", _text(ast.Compare(node.left, ops, node.comparators))
        case ast.BoolOp():
            other = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
            yield node, "and/or", _text(ast.BoolOp(other, node.values))
            for k in range(len(node.values)):
                yield node, "operand", _text(ast.BoolOp(node.op, node.values[:k] + node.values[k + 1 :]))
        case ast.If() | ast.While() | ast.IfExp():
            yield from _condition(node.test)
        case ast.comprehension():
            for test in node.ifs:
                yield from _condition(test)
        case ast.For():
            yield node.iter, "loop", "()"
        case ast.UnaryOp(op=ast.USub() | ast.Not()):
            yield node, "sign", _text(node.operand)
        case ast.BinOp() if type(node.op) in ARITHMETIC:
            yield node, "arithmetic", _text(ast.BinOp(node.left, ARITHMETIC[type(node.op)](), node.right))
        case ast.AugAssign():
            yield node, "statement", "pass"
            if type(node.op) in ARITHMETIC:
                yield (
                    node,
                    "arithmetic",
                    ast.unparse(ast.AugAssign(node.target, ARITHMETIC[type(node.op)](), node.value)),
                )
        case ast.Call():
            yield from _call(node)
        case ast.Constant():
            for new in _constants(node.value):
                yield node, "constant", f"({new!r})" if isinstance(new, int | float) and new < 0 else repr(new)
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield value, "return", "None"
        case ast.Expr(value=ast.Yield() | ast.YieldFrom()):
            yield node, "yield", "if 0: yield"
        case ast.Continue() | ast.Break() | ast.Raise() | ast.Expr(value=ast.Call()):
            yield node, "statement", "pass"


def _condition(test: ast.expr) -> Iterator[tuple[ast.AST, str, str]]:
    yield test, "condition", "True"
    yield test, "condition", "False"
    if not isinstance(test, ast.Compare | ast.UnaryOp):  # those have an opposite of their own
        yield test, "condition", f"(not {_text(test)})"


def _call(call: ast.Call) -> Iterator[tuple[ast.AST, str, str]]:
    if isinstance(call.func, ast.Name) and call.func.id in OPPOSITES:
        yield call.func, "call", OPPOSITES[call.func.id]
    for k, keyword in enumerate(call.keywords):
        if keyword.arg is not None and keyword.arg not in PROSE | ASSERTIONS:
            rest = call.keywords[:k] + call.keywords[k + 1 :]
            yield call, "keyword", ast.unparse(ast.Call(call.func, call.args, rest))


def _constants(value: object) -> Iterator[object]:
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        step = 1 if abs(value) < BIG else value // 10
        yield from (value + step, value - step)
    elif isinstance(value, float):
        yield from (float(f"{value * share:.12g}") for share in (1.1, 0.9)) if value else (1.0,)
    elif isinstance(value, str) and WORD.match(value):
        yield "mutant"


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.BoolOp) and len(node.values) == 1:
        node = node.values[0]
    return f"({ast.unparse(node)})"
