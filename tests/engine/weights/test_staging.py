"""engine/weights/staging: whatever the pieces and the buffer, the bytes arrive in order; a file that ends is told."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.weights.staging import Direct, Sink, Staged, fill

CPU = torch.device("cpu")
SINKS = [
    pytest.param(Direct, CPU, id="direct"),
    pytest.param(lambda: Staged(CPU, 8), CPU, id="staged"),
    pytest.param(lambda: Staged(torch.device("cuda"), 8), torch.device("cuda"), id="cuda", marks=pytest.mark.gpu),
]


def content(salt: int) -> bytes:
    return bytes((i * 37 + salt) % 256 for i in range(100))


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    made = [tmp_path / "a", tmp_path / "b"]
    for salt, path in enumerate(made):
        path.write_bytes(content(salt))
    return made


@pytest.mark.parametrize(("make", "device"), SINKS)
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.lists(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 60), st.integers(0, 40)), max_size=6), max_size=3))
def test_pieces_arrive_in_order(files: list[Path], make: type[Sink], device: torch.device, reads: list) -> None:
    """One sink for several tensors, pieces of both files in any order, empty ones among them."""
    sink = make()
    for pieces in reads:
        out = torch.full((sum(n for _, _, n in pieces),), 255, dtype=torch.uint8, device=device)
        assert fill(sink, out, [(files[which], offset, n) for which, offset, n in pieces]) is None
        assert bytes(out.tolist()) == b"".join(content(which)[offset : offset + n] for which, offset, n in pieces)


@pytest.mark.parametrize(("make", "device"), SINKS)
def test_the_piece_in_which_a_file_ends_is_told(files: list[Path], make: type[Sink], device: torch.device) -> None:
    out = torch.empty(60, dtype=torch.uint8, device=device)
    sink = make()
    assert fill(sink, out, [(files[0], 0, 20), (files[1], 70, 40)]) == 1
    assert fill(sink, out[:20], [(files[1], 30, 20)]) is None  # and the sink is good for the next tensor
    assert bytes(out[:20].tolist()) == content(1)[30:50]


def test_pieces_share_a_buffer_before_it_is_copied(files: list[Path]) -> None:
    copies = []

    class Counted(Staged):
        def _flush(self) -> None:
            copies.append(self._filled)
            super()._flush()

    out = torch.empty(50, dtype=torch.uint8)
    assert fill(Counted(CPU, 32), out, [(files[0], i, 1) for i in range(50)]) is None
    assert copies == [32, 18]
