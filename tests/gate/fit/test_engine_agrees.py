"""gate fit may not import the engine, so that what it says of it is held against the engine here."""

from __future__ import annotations

from pathlib import Path

import make_checkpoint
import pytest
import torch

from engine.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from engine.models.caches import Caches
from engine.models.config import ARCHITECTURES, load_text_config
from engine.runner import POOL_SHARE
from engine.server.loading import load_runner
from engine.weights.quantization import load_quant_config
from gate.fit.flow import CONTEXT, ENGINE_ARCHITECTURES
from gate.fit.need import ENGINE_BLOCK, ENGINE_TOKENS, Limits, caches, need, weights
from gate.fit.sizes import asked_kv_dtype, sizes
from gate.headers.read import read
from gate.headers.schemes import modules
from tests.gate.headers.sparse import recorded, synthetic

CASES = [("tiny", "modelopt"), ("tiny-moe", "modelopt"), ("tiny", "compressed-tensors"), ("tiny", "bf16")]


@pytest.mark.parametrize(("shape", "layout"), CASES)
@pytest.mark.parametrize(("kv_bytes", "dtype"), [(1, torch.float8_e4m3fn), (2, torch.bfloat16)])
def test_the_caches_are_as_large_as_the_engine_makes_them(
    shape: str, layout: str, kv_bytes: int, dtype: torch.dtype, tmp_path: Path
) -> None:
    folder = synthetic(tmp_path / "c", shape, layout)
    limits = Limits(context=100, max_num_seqs=3, kv_bytes=kv_bytes)
    kv, state, _ = caches("engine", sizes(read(folder)), limits)
    config, block = load_text_config(folder), CacheConfig().block_tokens
    made = Caches(config, 3 * -(-100 // block), block, 3, torch.bfloat16, dtype, torch.device("cpu"))
    assert kv == made.kv.nbytes
    assert state == made.conv.nbytes + made.recurrent.nbytes


@pytest.mark.parametrize(("shape", "layout"), CASES)
def test_the_weights_are_those_of_the_engines_census(shape: str, layout: str, tmp_path: Path) -> None:
    folder = tmp_path / "c"
    options = ["--shape", shape, "--layout", layout, "--layers", "4", "--device", "cpu"]
    make_checkpoint.main([*options, str(folder)])
    limits = SchedulerConfig(max_num_seqs=1, max_model_len=48)
    census = load_runner(EngineConfig(ModelConfig(folder, device="cpu"), scheduler=limits)).census()
    headers = read(folder)
    asked = Limits(context=48, max_num_seqs=1, kv_bytes=2)
    assert need("engine", sizes(headers), weights(modules(headers)), asked).weights == census.resident_bytes


@pytest.mark.parametrize(("shape", "layout"), CASES)
def test_auto_means_the_same(shape: str, layout: str, tmp_path: Path) -> None:
    folder = synthetic(tmp_path / "c", shape, layout)
    assert (asked_kv_dtype(read(folder))[0] == "fp8") is load_quant_config(folder).kv_cache_fp8


@pytest.mark.parametrize("name", ["modelopt_mixed_dense", "modelopt_mixed_moe"])
def test_auto_means_the_same_in_layouts_that_vllm_has_loaded(name: str, tmp_path: Path) -> None:
    folder = recorded(tmp_path / "c", name)
    assert (asked_kv_dtype(read(folder))[0] == "fp8") is load_quant_config(folder).kv_cache_fp8


def test_the_defaults_are_the_engines() -> None:
    assert CacheConfig().block_tokens == ENGINE_BLOCK
    assert SchedulerConfig().max_model_len == CONTEXT
    assert SchedulerConfig().max_num_batched_tokens == ENGINE_TOKENS
    assert set(ENGINE_ARCHITECTURES) == set(ARCHITECTURES)
    assert POOL_SHARE == 4, "gate/fit/text.py says a quarter"
