"""The closing table: plain where nobody colours, harmless whatever servers say, silent about void ratios."""

from __future__ import annotations

import re
from types import ModuleType

import pytest

from gate.report import terminal


def test_plain_text_has_no_escape_codes(golden: ModuleType) -> None:
    text = terminal.render(golden.report())
    assert "\x1b" not in text
    assert all(character == "\n" or character.isprintable() for character in text)


def test_colour_is_the_only_escape_code(golden: ModuleType) -> None:
    """A server's error text cannot bring its own: every sequence is one of ours, and the words stay."""
    text = terminal.render(golden.report(), colour=True)
    assert set(re.findall(r"\x1b[^m]*m", text)) <= {
        f"\x1b[{code}m" for code in ("0", "1", "2", "31", "1;31", "32", "33", "35")
    }
    assert "\x1b[31m<b>boom" not in text
    assert "boom" in text


@pytest.mark.parametrize("all_cells", [False, True])
def test_a_void_row_has_a_reason_and_no_number(golden: ModuleType, all_cells: bool) -> None:
    lines = [line for line in terminal.render(golden.report(), all_cells=all_cells).splitlines() if "VOID" in line]
    rows = [line for line in lines if re.match(r" +4 ", line)]
    assert rows
    for row in rows:
        assert "error-after-tokens VOID" in row
        assert not re.search(r"\d\.\d", row)


def test_lines_keep_to_the_width_they_are_given(golden: ModuleType) -> None:
    assert max(map(len, terminal.render(golden.report(), width=80).splitlines())) <= 80


def test_where_the_report_is(golden: ModuleType) -> None:
    assert terminal.render(golden.report(), where="results/x").splitlines()[-1].split() == ["report", "results/x"]


def test_a_report_without_cells_still_prints(golden: ModuleType) -> None:
    empty = golden.report().model_copy(update={"cells": (), "tokens": (), "concurrencies": (), "counts": {}})
    text = terminal.render(empty)
    assert "0 primary cells; 0 token cells; 0 observations" in text
    assert "not compared" in text
