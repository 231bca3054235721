"""What tools/mutations.py changes in a source text, and what it leaves alone."""

from __future__ import annotations

import pytest
from mutations import mutants

ALTERED = ("True", "False", "(not (b))")


def afters(source: str, kind: str, path: str = "gate/stats/made_up.py") -> list[str]:
    return [mutant.after for mutant in mutants(path, source) if mutant.kind == kind]


@pytest.mark.parametrize(
    ("source", "kind", "expected"),
    [
        ("x = a < b\n", "comparison", ["x = (a <= b)", "x = (a >= b)"]),
        ("x = a <= b < c\n", "comparison", [f"x = (a {new} c)" for new in ("< b <", "> b <", "<= b <=", "<= b >=")]),
        ("x = a and b\n", "and/or", ["x = (a or b)"]),
        ("x = a and b\n", "operand", ["x = (b)", "x = (a)"]),
        ("LIMIT = 0.5\n", "constant", ["LIMIT = 0.55", "LIMIT = 0.45"]),
        ("LIMIT = 3\n", "constant", ["LIMIT = 4", "LIMIT = 2"]),
        ("NS = 1_000_000\n", "constant", ["NS = 1100000", "NS = 900000"]),
        ("ON = True\n", "constant", ["ON = False"]),
        ('CODE = "a-b"\n', "constant", ["CODE = 'mutant'"]),
        ("x = -a + b\n", "sign", ["x = (a) + b"]),
        ("x = a - b\n", "arithmetic", ["x = (a + b)"]),
        ("x = min(a)\n", "call", ["x = max(a)"]),
        ("x = f(a, b=c)\n", "keyword", ["x = f(a)"]),
        ("x = a if b else c\n", "condition", [f"x = a if {new} else c" for new in ALTERED]),
        ("x = [a for a in c if b]\n", "condition", [f"x = [a for a in c if {new}]" for new in ALTERED]),
        ("def f():\n    return 1\n", "return", ["    return None"]),
        ("def f():\n    yield g\n", "yield", ["    if 0: yield"]),
        ("for a in b:\n    f(a)\n", "loop", ["for a in ():"]),
        ("for a in b:\n    continue\n", "statement", ["    pass"]),
    ],
)  # fmt: skip
def test_a_change_of_each_kind(source: str, kind: str, expected: list[str]) -> None:
    assert afters(source, kind) == expected


def test_a_checks_predicate_is_made_constant_both_ways() -> None:
    source = 'def check(evidence):\n    if evidence:\n        yield 1\n    yield 2\n\n\nCODE = "a"\n'
    found = [m for m in mutants("gate/checks/made_up.py", source) if m.kind in ("never", "always")]
    never, always = ({"CODE": "a"} for _ in range(2))
    exec(found[0].source, never)
    exec(found[1].source, always)
    assert list(never["check"](True)) == []
    assert [finding.code for finding in always["check"](False)] == ["a"]
    assert afters(source, "never", "gate/stats/made_up.py") == []


@pytest.mark.parametrize(
    "source",
    [
        '"""Text."""\n',
        'x: Literal["higher"]\n',
        'x = f"{a}: b"\n',
        'message = "late"\n',
        'HINT = "wait"\n',
        'x = "a sentence, for people"\n',
        "x = zip(a, b, strict=True)\n",
        "from a import b\n",
        "@dataclass(frozen=True)\nclass A: ...\n",
    ],
)
def test_what_only_people_or_the_type_checker_read_is_left_alone(source: str) -> None:
    assert mutants("gate/stats/made_up.py", source) == []


def test_lines_say_where_and_what_reaches_it() -> None:
    source = 'LIMIT = 1\n\n\ndef f(a, b=2):\n    if (\n        a\n        < b\n    ):\n        return "é" + a\n'
    found = {(m.kind, m.line, m.statement, m.at_import) for m in mutants("gate/stats/made_up.py", source)}
    assert ("constant", 1, (1, 1), True) in found
    assert ("constant", 4, (4, 4), True) in found
    assert ("comparison", 6, (5, 8), False) in found
    assert ("arithmetic", 9, (9, 9), False) in found
    assert "        return ('é' - a)" in afters(source, "arithmetic")
