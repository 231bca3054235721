"""names-unpaired: time that belongs to no family is named, with its share."""

from __future__ import annotations

from gate.profile import checks
from gate.profile.checks.evidence import Evidence
from gate.profile.families import OTHER
from tests.gate.profile.checks.conftest import with_tables


def test_an_unknown_kernel_is_named_with_its_share(good: Evidence) -> None:
    def unknown(kernels: tuple) -> tuple:  # type: ignore[type-arg]
        return tuple(k.model_copy(update={"family": OTHER}) if k.family == "gdn_step" else k for k in kernels)

    found = checks.findings(with_tables(good, lambda t: {"kernels": unknown(t.kernels)}))
    assert {f.code for f in found} == {"names-unpaired"}
    assert "1 of candidate's kernels (266 µs a step, 3.0 %) are in no family, first fused_recurrent" in found[0].message
    assert "names-unpaired" not in checks.REFUSING
