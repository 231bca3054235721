"""Small checkpoints of every layout, made once, and copies of them to break."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import make_checkpoint
import pytest
from safetensors.torch import save_file
from torch import Tensor

from tests.engine.weights.stored import Make, read_all

INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    root = tmp_path_factory.mktemp("weights")
    made: dict[tuple[str, ...], Path] = {}

    def make_once(*options: str) -> Path:
        if options not in made:
            made[options] = root / str(len(made))
            make_checkpoint.main(["--layers", "4", "--device", "cpu", *options, str(made[options])])
        return made[options]

    return make_once


@pytest.fixture
def dense(make: Make, tmp_path: Path) -> Path:
    """A copy of the dense ModelOpt checkpoint, free to change."""
    return Path(shutil.copytree(make(), tmp_path / "dense"))


@pytest.fixture
def moe(make: Make, tmp_path: Path) -> Path:
    return Path(shutil.copytree(make("--shape", "tiny-moe"), tmp_path / "moe"))


@pytest.fixture
def edit() -> Callable[[Path, Callable[[dict[str, Tensor]], None]], None]:
    """Change a folder's tensors in place: all shards become one model.safetensors."""

    def apply(folder: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
        tensors = read_all(folder)
        change(tensors)
        for shard in folder.glob("*.safetensors"):
            shard.unlink()
        (folder / INDEX).unlink(missing_ok=True)
        save_file({name: t.contiguous() for name, t in tensors.items()}, folder / "model.safetensors")

    return apply


@pytest.fixture
def edit_json() -> Callable[[Path, Callable[[dict], None]], None]:
    def apply(file: Path, change: Callable[[dict], None]) -> None:
        content = json.loads(file.read_text())
        change(content)
        file.write_text(json.dumps(content))

    return apply
