"""What --help lists of each command is a whole sentence: one that does not fit its line is cut, and ends in "..."."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner


def groups(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words that lead to each command with commands of its own, the program's own first."""
    if hasattr(command, "commands"):
        yield words
        for name, inner in command.commands.items():
            yield from groups(inner, (*words, name))


@pytest.mark.parametrize(
    ("program", "expected"),
    [("gate", {(), ("oracle",), ("recipe",), ("model",)}), ("engine", {(), ("bench",)}), ("oracle", {()})],
)
def test_no_command_is_listed_by_half_a_sentence(program: str, expected: set[tuple[str, ...]]) -> None:
    app: typer.Typer = importlib.import_module(f"{program}.cli").app
    found = set(groups(typer.main.get_command(app)))
    assert found == expected
    for words in sorted(found):
        shown = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "80"}).output
        listed = shown.split("Commands:")[1].split("\n\n")[0].strip().splitlines()
        assert listed
        assert [line for line in listed if not line.endswith(".") or line.endswith("...")] == [], words
