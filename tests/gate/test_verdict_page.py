"""docs/verdict.md's tables: thresholds and exit codes are the code's, a host's A/A history is the recorded one."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Any

import pytest

from gate import errors, verdict
from gate.calibration.record import BandRecord
from gate.checks import spread
from gate.metrics import summary
from gate.recipe import ROOT, Protocol
from gate.report.table import axis_title
from gate.stats import band, interval, looks
from gate.tokens import marks, noise
from gate.units import percent
from oracle import capture

PAGE = (ROOT / "docs" / "verdict.md").read_text(encoding="utf-8")


def table(heading: str) -> dict[str, str]:
    """The first table below a heading: first column -> second."""
    section = PAGE.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return {row[0]: row[1] for row in rows[2:]}


def declared(key: str) -> Any:
    """What a recipe has that says nothing of it."""
    return Protocol.model_fields[key].default


def share(value: float) -> str:
    return f"{100 * value:g} %"


first, second = looks.CONFIDENCES[2]
THRESHOLDS = {
    "floor": f"{declared('floor'):.2f}",
    "band": share(declared("band")),
    "prior s0, d0 of a host": f"s0 measured, d0 at most {band.MOST_PRIOR_DF:g}",
    "prior s0, d0 while assumed": f"band / {band.ASSUMED_BAND_IN_SD:g}, {band.ASSUMED_PRIOR_DF:g}",
    "τ believed from": f"p < {share(band.BETWEEN_GATES_P)}",
    "gates of a history": f"{band.MIN_GATES}, with {band.MIN_PAIRS} pairs",
    "confidence": f"{share(interval.CONFIDENCE)} two-sided",
    "confidence of two looks": f"{share(first)}, then {share(second)}",
    "agreement of estimates": {0.5: "½ band"}[verdict.AGREEMENT_IN_BANDS],
    "family-wise α": share(verdict.FAMILY_ALPHA),
    "max_spread": f"{share(declared('max_spread'))}, tails {share(spread.TAIL_FACTOR * declared('max_spread'))}",
    "near_tie_nats, the bound's floor": f"{declared('near_tie_nats'):g} nats",
    "own gap ×, floor ×": f"{marks.SPREAD_FACTOR:g}",
    "noise that passes": {math.sqrt(2): "√2"}[noise.ALLOWED],
    "noise that fails": f"{noise.FAULT:g}",
    "`second_look_s`": f"{declared('second_look_s'):g} s",
    "ceiling of a widened bound": f"{marks.CEILING_NATS:g} nats",
    "oracle's top": f"{capture.TOP}",
    "p99 from": f"{summary.MIN_REQUESTS_FOR_P99} requests",
}
"""Every row of the page, in its order, written from the code."""


def test_every_threshold_of_the_page_has_a_constant() -> None:
    assert list(table("Thresholds")) == list(THRESHOLDS)


@pytest.mark.parametrize("name", THRESHOLDS)
def test_a_threshold_is_the_one_that_decides(name: str) -> None:
    assert table("Thresholds")[name] == THRESHOLDS[name]


def test_the_exit_codes_are_those_of_the_program() -> None:
    told = table("Exit codes")
    verdicts = {str(code): kind.value for kind, code in verdict.EXIT_CODES.items()}
    assert {code: meaning for code, meaning in told.items() if code in verdicts} == verdicts
    others = (errors.USAGE, errors.UNAVAILABLE, errors.INTERNAL, errors.LOCKED, errors.INTERRUPTED)
    assert [int(code) for code in told if code not in verdicts] == list(others)


def test_the_rates_of_a_host_are_those_of_its_history() -> None:
    """The first table of the section, of the band that the section names."""
    section = PAGE.split("\n## What a host really does\n", 1)[1]
    named = re.search(r"`(results/\S+\.json)`", section)
    assert named is not None
    band_file = BandRecord.model_validate_json((ROOT / named[1]).read_bytes())
    first = section[section.index("\n| ") :].strip().split("\n\n")[0]
    head, _, *told = first.splitlines()
    verdicts = head.split(" | ")[-3:]
    expected, all_verdicts = [], Counter[str]()
    for cell in (one for one in band_file.cells if one.primary):
        counts = Counter(cell.verdicts)
        all_verdicts += counts
        worst = max(abs(ratio - 1) for ratio in cell.ratios)
        name = f"c{cell.concurrency} {axis_title(cell.axis, '').strip()}"
        row = (name, percent(cell.sd), percent(worst), *(str(counts[one.strip(" |")]) for one in verdicts))
        expected.append(f"| {' | '.join(row)} |")
    assert sorted(told) == sorted(expected)
    assert f"{all_verdicts['FAIL']} false FAIL in {all_verdicts.total()} cells" in section
    assert f"{all_verdicts['INCONCLUSIVE']} cells stayed INCONCLUSIVE" in section
    assert "FAIL" not in {gate.verdict for gate in band_file.gates}
    assert sum(cell.void for cell in band_file.cells if cell.primary) == 0
