"""Random inputs from a seed that the test's own name decides, and poisoned allocations for kernels."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import pytest
import torch

from tests.ops.poison import Poison


@pytest.fixture
def generator(request: pytest.FixtureRequest) -> torch.Generator:
    return torch.Generator().manual_seed(zlib.crc32(request.node.name.encode()))


@pytest.fixture
def cuda_generator(request: pytest.FixtureRequest) -> torch.Generator:
    return torch.Generator(device="cuda").manual_seed(zlib.crc32(request.node.name.encode()))


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> Iterator[Poison]:
    """Every output the code under test allocates is NaN between guards, which are checked when the test ends."""
    made = Poison()
    monkeypatch.setattr(torch, "empty", made.empty)
    monkeypatch.setattr(
        torch, "empty_like", lambda x, dtype=None, **_: made.empty(*x.shape, dtype=dtype or x.dtype, device=x.device)
    )
    monkeypatch.setattr(
        torch.Tensor,
        "new_empty",
        lambda self, *size, dtype=None, **_: made.empty(*size, dtype=dtype or self.dtype, device=self.device),
    )
    yield made
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    made.check()
