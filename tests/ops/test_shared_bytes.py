"""No launch asks for more shared memory than a block of sm_121a has: what nvcc cannot see, as it is asked at run time.

What a kernel declares itself (`__shared__`) nvcc refuses beyond 48 KB.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from engine.kernels.build import ENGINE, TARGETS
from tests.ops import emulator
from tests.ops.emulator import BLACKWELL

CONSTANT = {
    "SHARED_BYTES": ("attention", "kernel"),
    "sizeof(ChunkShared)": ("gdn", "chunks"),
    "GROUPED_SHARED_BYTES<W>": ("moe", "kernel"),
    "MANY_SHARED_BYTES<W>": ("moe", "many"),
}
"""Asked for by a kernel that every architecture has -> whose."""
UNITS = ("W4A16", "W8A8")
"""What the W of a constant stands for."""
ELSEWHERE = {
    "0": "declared, if at all",
    "shared": "skinny.cuh: as deep a ring as fits, and test_skinny_plan.py plans for either architecture",
    "W::SHARED_BYTES": "launched under FITS alone",
    "Experts::SHARED_BYTES": "launched under FITS alone",
    "SCAN_SHARED_BYTES": "launched under FITS alone",
}
"""Why the other launches need no look here."""
LAUNCH = re.compile(
    r"\breturn launch\(.*?, ([\w:()<>]+), (?:dependent|true|false), stream|= launch\(.*?, ([\w:()<>]+), dep"
)


def asked(path: Path) -> set[str]:
    text = path.read_text()
    found = [one or other for one, other in LAUNCH.findall(text)]
    assert len(found) == len(re.findall(r"(?:return|=) launch\(", text)), f"{path.name} has a launch that is not read"
    return set(found)


def test_every_launch_is_looked_at_here_or_elsewhere() -> None:
    paths = [*ENGINE.glob("ops/*/*.cu"), *ENGINE.glob("kernels/*.cuh")]
    assert set().union(*map(asked, paths)) == {*CONSTANT, *ELSEWHERE}
    for name, (op, source) in CONSTANT.items():
        assert name in asked(ENGINE / "ops" / op / f"{source}.cu")


@pytest.mark.skipif(emulator.compiler() is None, reason="needs g++")
@pytest.mark.parametrize(
    ("name", "unit"), [(name, unit) for name in CONSTANT for unit in (UNITS if name.endswith("<W>") else ("",))]
)
def test_what_is_asked_for_fits_a_block_of_sm_121a(name: str, unit: str) -> None:
    assert TARGETS["121a"].max_shared_bytes == BLACKWELL == 99 * 1024
    op, source = CONSTANT[name]
    name = name.replace("<W>", f"<{unit}>")
    fits = '\nnamespace engine {{ static_assert({} <= {}, "does not fit"); }}\n'
    assert emulator.complaints(op, source, fits.format(name, BLACKWELL), max_shared_bytes=BLACKWELL) == ""
    assert "does not fit" in emulator.complaints(op, source, fits.format(name, 1024), max_shared_bytes=BLACKWELL)
