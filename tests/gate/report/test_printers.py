"""Judged runs of every kind through every printer."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from gate.judge import judge
from gate.report import html, jsonfile, markdown, plots, terminal


def good(build: Any) -> Any:
    return build.run()


def void(build: Any) -> Any:
    run = build.run()
    return build.alter_leg(run, build.leg_id(run), lock_held=False)


def unfinished(build: Any) -> Any:
    run = build.run()
    return dataclasses.replace(build.without_legs(run, build.leg_id(run)), finished_at=None)


def empty(build: Any) -> Any:
    return dataclasses.replace(build.run(), legs=(), requests=(), identities=(), client=None, finished_at=None)


@pytest.mark.parametrize("kind", [good, void, unfinished, empty])
def test_every_kind_of_run_renders(build: Any, kind: Any) -> None:
    report = judge(kind(build))
    pages = [html.render(report), jsonfile.render(report), markdown.render(report)]
    for text in (*pages, *plots.render(report).values(), terminal.render(report, all_cells=True)):
        assert text
        assert not re.search(r"\b(nan|NaN|None|inf)\b", text)
