"""engine/weights/staging: whatever the piece, the bytes arrive in order; a file that ends is told."""

from __future__ import annotations

import pytest
import torch

from engine.weights.staging import Staging


@pytest.mark.parametrize("nbytes", [1, 7, 8, 9, 16, 17, 100])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_bytes_arrive_in_order(tmp_path, nbytes, device):
    content = bytes((i * 37 + 11) % 256 for i in range(nbytes + 5))
    path = tmp_path / "file"
    path.write_bytes(content)
    staging = Staging(torch.device(device), piece_bytes=8)
    with path.open("rb", buffering=0) as file:
        file.seek(3)
        first = staging.read(file, nbytes)
        rest = staging.read(file, 2)
    assert bytes(first.tolist()) == content[3 : 3 + nbytes]
    assert bytes(rest.tolist()) == content[3 + nbytes :]


def test_a_file_that_ends_is_told(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    with path.open("rb", buffering=0) as file:
        assert Staging(torch.device("cpu"), piece_bytes=4).read(file, 6) is None
