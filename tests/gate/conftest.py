"""`build`: the good run of gate/selftest, and ways to break it."""

from __future__ import annotations

import pytest

from gate.selftest.good_run import Build


@pytest.fixture
def build() -> type[Build]:
    return Build
