"""docs/architecture.md names functions and files; a name that moved away is an error here, not a reader's puzzle."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
LINK = re.compile(r"\[`([\w.]+)`\]\(([^)#]+\.py)\)")


def test_every_linked_name_is_defined_in_the_file_it_links_to() -> None:
    text = " ".join((DOCS / "architecture.md").read_text().split())
    links = LINK.findall(text)
    lost = []
    for name, target in links:
        file = DOCS / target
        stem = name.split(".")[-1]
        defined = rf"^\s*(?:async )?(?:def|class) {stem}\b|^{stem}\b.*="
        if not file.is_file() or not re.search(defined, file.read_text(), re.MULTILINE):
            lost.append(f"{name} in {target}")
    assert len(links) >= 20
    assert not lost
