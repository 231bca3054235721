"""Why a run ended early: written down once, forgotten when it is resumed, and never in the way of what ended it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gate.errors import ArmError, StorageError
from gate.observe import ended
from gate.observe.store import Store


def cut(place: Store, error: BaseException) -> None:
    with pytest.raises(type(error)), ended.noted(place):
        raise error


def test_it_says_what_the_command_ended_with_until_the_run_goes_on(tmp_path: Path) -> None:
    place = Store(tmp_path)
    assert ended.why(tmp_path) is None
    cut(place, ArmError("the oracle died", hint="its log is x"))
    assert ended.why(tmp_path) == "the oracle died; its log is x"
    cut(place, KeyboardInterrupt())
    assert ended.why(tmp_path) == "the run was interrupted"
    with ended.noted(place):
        assert ended.why(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_a_fault_of_the_gate_itself_is_no_reason(tmp_path: Path) -> None:
    cut(Store(tmp_path), ZeroDivisionError())
    assert ended.why(tmp_path) is None


def test_a_full_disk_is_still_what_it_ended_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: object) -> None:
        raise StorageError("no space for failed.json either")

    monkeypatch.setattr(Store, "write_text", full)
    with pytest.raises(StorageError, match="no space for a leg"), ended.noted(Store(tmp_path)):
        raise StorageError("no space for a leg")


DAMAGED = ("", "{", "[]", "3", "{}", '{"why": null}', '{"why": ""}', '{"why": 3}', '{"why": {"a": 1}}', '{"why": NaN}')


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_one_says_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "failed.json").write_text(content)
    assert ended.why(tmp_path) is None


def test_it_can_be_written_into_any_report(tmp_path: Path) -> None:
    """JSON may hold half of a character, and so does a path that is no UTF-8: no report could be written with it."""
    cut(Store(tmp_path), ArmError("its log is n\udcff/oracle.log"))
    assert ended.why(tmp_path) == "its log is n?/oracle.log"
