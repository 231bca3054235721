"""The plots: SVG that parses, the same bytes each time, and no point for a void cell."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from types import ModuleType

import pytest

from gate.observe.rows import Verdict
from gate.report import plots
from gate.report.model import Cell, Reason

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    return ["".join(element.itertext()).strip() for element in ET.fromstring(svg).iter(f"{SVG}text")]


@pytest.fixture(scope="module")
def drawn(golden: ModuleType) -> dict[str, str]:
    return plots.render(golden.report())


def test_both_are_svg(drawn: dict[str, str]) -> None:
    assert set(drawn) == {"ratio.svg", "latency.svg"}
    for svg in drawn.values():
        assert ET.fromstring(svg).tag == f"{SVG}svg"


def test_the_same_report_gives_the_same_bytes(golden: ModuleType, drawn: dict[str, str]) -> None:
    assert plots.render(golden.report()) == drawn


def test_words_are_text_and_name_the_series(drawn: dict[str, str]) -> None:
    assert {"output", "TPOT median", "band 1 %", "c1", "c2", "c4"} <= set(texts(drawn["ratio.svg"]))
    assert {"candidate", "oracle", "TPOT median, ms"} <= set(texts(drawn["latency.svg"]))


def test_a_void_concurrency_is_named_and_not_drawn(drawn: dict[str, str]) -> None:
    assert texts(drawn["ratio.svg"]).count("all VOID") == 1
    assert "c4" not in texts(drawn["latency.svg"])
    assert texts(drawn["latency.svg"]).count("c1") == 2


def test_the_label_names_the_void_axis_where_others_are_not(golden: ModuleType) -> None:
    report = golden.report()
    one = [void_at(c) if (c.axis, c.concurrency) == ("tpot_median_ms", 1) else c for c in report.cells]
    words = texts(plots.render(report.model_copy(update={"cells": tuple(one)}))["ratio.svg"])
    assert words[words.index("VOID:") + 1] == "TPOT median"


def void_at(cell: Cell) -> Cell:
    nothing = dict.fromkeys(("ratio", "ratio_low", "ratio_high", "candidate_median", "oracle_median"))
    reason = Reason(code="buffered-stream", message="m", hint="h")
    return cell.model_copy(update={**nothing, "verdict": Verdict.VOID, "reasons": (reason,)})


def test_one_axis_void_everywhere_is_said_instead_of_an_empty_frame(golden: ModuleType) -> None:
    report = golden.report()
    cells = tuple(void_at(c) if c.axis == "tpot_median_ms" else c for c in report.cells)
    made = report.model_copy(update={"cells": cells})
    assert plots.drawn(made) == ("ratio.svg",)
    (why,) = plots.missing(made)
    assert "TPOT median has none (VOID: buffered-stream" in why
    assert "output" not in why.split(": ", 1)[1]


def test_an_all_void_grid_and_an_empty_one_have_no_plots(golden: ModuleType) -> None:
    report = golden.report()
    void = tuple(c for c in report.cells if c.verdict is Verdict.VOID)
    for cells, concurrencies in ((void, (4,)), ((), ())):
        made = report.model_copy(update={"cells": cells, "concurrencies": concurrencies})
        assert plots.render(made) == {}
        assert len(plots.missing(made)) == 2
