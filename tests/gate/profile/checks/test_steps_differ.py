"""steps-differ: a server that marks its steps ran another number of them."""

from __future__ import annotations

import pytest

from gate.profile import checks
from gate.profile.checks.evidence import Evidence
from gate.profile.rows import Window
from tests.gate.profile.checks.conftest import evidence


def marked(extra: int) -> Evidence:
    """The engine marks every decode step: the first token of a request comes from its prefill."""

    def change(window: Window) -> dict[str, object]:
        if window.arm != "candidate":
            return {}
        return {"decode_steps": window.output_tokens - 1 + (extra if window.output_tokens == 136 else 0)}

    return evidence(change)


def test_as_many_steps_as_tokens() -> None:
    assert checks.findings(marked(0)) == ()


def test_one_step_more() -> None:
    (found,) = checks.findings(marked(1))
    assert (found.code, found.arm) == ("steps-differ", "candidate")
    assert "differ by 129 decode steps; expected 128" in found.message
    assert "steps-differ" in checks.REFUSING
    assert found.beyond == pytest.approx(1 / 128)


@pytest.mark.parametrize("tokens", [8, 136])
def test_a_window_whose_steps_nobody_marked_says_nothing(tokens: int) -> None:
    """One of the two was traced without ranges."""
    assert checks.findings(evidence(lambda w: {} if w.output_tokens == tokens else {"decode_steps": 7})) == ()
