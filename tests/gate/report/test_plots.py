"""The plots: SVG that parses, the same bytes each time, and no point for a void cell."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from types import ModuleType

import pytest

from gate.observe.rows import Verdict
from gate.report import plots

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
    assert texts(drawn["ratio.svg"]).count("VOID") == 1
    assert "c4" not in texts(drawn["latency.svg"])
    assert texts(drawn["latency.svg"]).count("c1") == 2


def test_an_all_void_grid_and_an_empty_one_still_draw(golden: ModuleType) -> None:
    report = golden.report()
    void = tuple(c for c in report.cells if c.verdict is Verdict.VOID)
    for cells, concurrencies in ((void, (4,)), ((), ())):
        made = plots.render(report.model_copy(update={"cells": cells, "concurrencies": concurrencies}))
        assert ET.fromstring(made["ratio.svg"]).tag == f"{SVG}svg"
        assert "no concurrency has both figures" in texts(made["latency.svg"])
