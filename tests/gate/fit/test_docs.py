"""docs/fit.md shows what the commands print."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gate import cli, interrupt
from tests.gate.headers.sparse import synthetic

PAGE = Path(__file__).parents[3] / "docs" / "fit.md"
COMMANDS = (
    "fit --model nvidia-27b --gpu-memory 24GiB --context 32768 --max-num-seqs 4",
    "model diff nvidia-27b unsloth-27b",
)


def test_the_examples_are_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    synthetic(tmp_path / "nvidia-27b", "27b", vision=True, mtp=True)
    synthetic(tmp_path / "unsloth-27b", "27b", "compressed-tensors", vision=True, mtp=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(interrupt, "install", lambda: None)
    shown = PAGE.read_text().split("```\n")[1::2]
    assert len(shown) == len(COMMANDS)
    for command, text in zip(COMMANDS, shown, strict=True):
        monkeypatch.setattr(sys, "argv", ["gate", *command.split()])
        with pytest.raises(SystemExit):
            cli.main()
        printed = capsys.readouterr().out
        assert printed == text
