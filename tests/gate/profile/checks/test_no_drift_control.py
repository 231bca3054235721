"""no-drift-control: nothing says how far equal kernels move."""

from __future__ import annotations

from dataclasses import replace

from gate.profile import checks
from gate.profile.checks.evidence import Evidence
from gate.profile.levers import Drift


def test_no_equal_kernel(good: Evidence) -> None:
    found = checks.findings(replace(good, drift=Drift(None, "both arms: no kernel is equal")))
    assert [(f.code, f.arm) for f in found] == [("no-drift-control", None)]
    assert "no kernel is equal" in found[0].message


def test_one_arm_alone_has_nothing_to_drift_from(good: Evidence) -> None:
    alone = replace(good, tables={"oracle": good.tables["oracle"]}, drift=Drift(None, "one arm alone"))
    assert checks.findings(alone) == ()
