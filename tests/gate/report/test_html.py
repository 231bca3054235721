"""The page: one file, escaped, well formed, and no ratio where there is none."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from types import ModuleType

import pytest

from gate.report import html

NEVER_CLOSED = {"meta", "br"}


class Nesting(HTMLParser):
    """Collects the tags, their addresses, and what was closed in the wrong order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.tags: set[str] = set()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag not in NEVER_CLOSED:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.remove(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


@pytest.fixture(scope="module")
def page(golden: ModuleType) -> str:
    return html.render(golden.report())


@pytest.fixture(scope="module")
def nesting(page: str) -> Nesting:
    parser = Nesting()
    parser.feed(page)
    parser.close()
    return parser


def test_every_tag_is_closed_in_order(nesting: Nesting) -> None:
    assert nesting.wrong == []
    assert nesting.open == []


def test_nothing_is_loaded_or_run(nesting: Nesting, page: str) -> None:
    assert not nesting.tags & {"script", "link", "img", "iframe", "object"}
    assert all(address.startswith("#") for address in nesting.addresses)
    assert not re.search(r"url\((?!#)", page)
    assert "default-src 'none'" in page


def test_text_of_servers_and_users_is_escaped(page: str) -> None:
    assert "<script>" not in page
    assert "0.1.0 &lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "&lt;b&gt;boom&lt;/b&gt;" in page
    assert "&#39;it&#39;&#34;&#39;&#34;&#39;s here&#39;" in page
    assert "\x1b" not in page


def test_a_void_cell_has_its_reason_and_no_number(page: str) -> None:
    cells = re.findall(r'<td class="VOID">(.*?)</td>', page, re.DOTALL)
    primary = [cell for cell in cells if "error-after-tokens" in cell]
    assert len(primary) == 2
    for cell in cells:
        assert not re.search(r"\d\.\d", cell)


def test_ids_of_the_two_plots_do_not_collide(page: str) -> None:
    ids = re.findall(r'\bid="([^"]+)"', page)
    figure_parts = [i for i in ids if re.match(r"(m|C|p)[0-9a-f_]{8,}", i)]
    assert figure_parts
    assert len(set(figure_parts)) == len(figure_parts)


def test_the_same_report_gives_the_same_page(golden: ModuleType, page: str) -> None:
    assert html.render(golden.report()) == page


def test_a_report_without_cells_still_renders(golden: ModuleType) -> None:
    empty = golden.report().model_copy(
        update={"cells": (), "tokens": (), "concurrencies": (), "counts": {}, "client": None, "finished_at": None}
    )
    assert "not finished" in html.render(empty)
