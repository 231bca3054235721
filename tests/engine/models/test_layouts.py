"""Checkpoints of every layout through load_runner, against transformers over the dequantised weights.

In float32 nothing is quantised at run time. In bfloat16 the reference's W8A8 layers quantise their inputs as the
checkpoint means it: static scale or one per token, E4M3.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import Qwen3_5ForCausalLM, Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig, Qwen3_5TextConfig
from transformers.modeling_utils import PreTrainedModel

from engine.batch import Batch, Segment
from engine.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from engine.request import SamplingParams
from engine.runner import LoadedRunner, load_runner
from engine.steps import build_step
from engine.weights.specs import plain_shapes
from engine.weights.types import Fp8Weight

FLOAT32_TOLERANCE = 1e-3
BFLOAT16_FACTOR = 1.5
PROMPT = torch.randint(0, 2003, (120,), generator=torch.Generator().manual_seed(4)).tolist()
LAYOUTS = {
    "tiny-modelopt": ("tiny", "modelopt"),
    "tiny-modelopt-distinct-scales": ("tiny", "modelopt", "--distinct-shard-scales"),
    "tiny-compressed-tensors": ("tiny", "compressed-tensors"),
    "tiny-compressed-tensors-nvfp4": ("tiny", "compressed-tensors-nvfp4", "--w4a4"),
    "tiny-mixed": ("tiny", "modelopt", "--store", "q_proj|up_proj=bf16", "--store", "v_proj|in_proj_z=nvfp4"),
    "tiny-bf16": ("tiny", "bf16"),
    "tiny-moe-modelopt": ("tiny-moe", "modelopt"),
    "tiny-moe-compressed-tensors": ("tiny-moe", "compressed-tensors"),
    "tiny-moe-bf16": ("tiny-moe", "bf16"),
}


class W8A8(nn.Module):
    """A linear layer that quantises its input; written out of the shipped tensors, sharing nothing with ops/linear."""

    def __init__(self, weight: Fp8Weight) -> None:
        super().__init__()
        self.codes, self.row_scale = weight.weight.float(), weight.row_scale
        self.input_scale = weight.input_scale

    def forward(self, x: Tensor) -> Tensor:
        values = x.float()
        scale = self.input_scale
        if scale is None:
            scale = values.abs().amax(-1, keepdim=True) / 448
        quantised = (values * (1 / scale)).clamp(-448, 448).to(torch.float8_e4m3fn).float()
        return ((quantised @ self.codes.T) * (scale * self.row_scale)).to(x.dtype)


class Dense(nn.Linear):
    """A linear layer over a dequantised weight."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__(weight.shape[1], weight.shape[0], bias=False)
        self.weight = nn.Parameter(weight)


class Experts(nn.Module):
    """transformers' stacked experts, one module per projection, so that each may be W8A8."""

    def __init__(self, projections: list[dict[str, nn.Module]]) -> None:
        super().__init__()
        self.projections = nn.ModuleList(nn.ModuleDict(p) for p in projections)

    def forward(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.projections):
            tokens, place = torch.where(ids == e)
            rows = x[tokens]
            rows = expert["down_proj"](nn.functional.silu(expert["gate_proj"](rows)) * expert["up_proj"](rows))
            out.index_add_(0, tokens, (rows * weights[tokens, place, None]).to(x.dtype))
        return out


def reference(folder: Path, runner: LoadedRunner, dtype: torch.dtype, quantize_inputs: bool) -> PreTrainedModel:
    """transformers' model over the dequantised weights, computing in `dtype`."""
    text = json.loads((folder / "config.json").read_text())["text_config"]
    if "num_experts" in text:
        model = Qwen3_5MoeForCausalLM(Qwen3_5MoeTextConfig(**text))
    else:
        model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**text))
    weights = runner.weights

    def linear(name: str) -> nn.Module:
        weight = weights.linear(name)
        if quantize_inputs and isinstance(weight, Fp8Weight):
            return W8A8(weight)
        return Dense(weight.dequantize(torch.float32))

    for i, layer in enumerate(model.model.layers if "num_experts" in text else ()):
        names = ("gate_proj", "up_proj", "down_proj")
        experts = range(text["num_experts"])
        layer.mlp.experts = Experts([{p: linear(f"layers.{i}.mlp.experts.{e}.{p}") for p in names} for e in experts])
    for name in weights.linears:
        if ".experts." not in name and not name.endswith("mlp.gate"):
            path = name if name == "lm_head" else f"model.{name}"
            parent, _, leaf = path.rpartition(".")
            setattr(model.get_submodule(parent), leaf, linear(name))
    routers = [f"{name}.weight" for name in weights.linears if name.endswith("mlp.gate")]
    for name in (*plain_shapes(weights.config), *routers):
        model.get_parameter(f"model.{name}").data = weights.tensor(name).float()
    return model.eval().to(dtype)


def load(folder: Path, dtype: str) -> LoadedRunner:
    return load_runner(
        EngineConfig(
            ModelConfig(folder, dtype=dtype),
            CacheConfig(num_blocks=16, kv_cache_dtype="bfloat16"),
            SchedulerConfig(max_num_seqs=2, max_model_len=256),
        )
    )


def logits(runner: LoadedRunner) -> Tensor:
    """Every position's logits of PROMPT, fp32 [tokens, vocab]."""
    segment = Segment(
        "a", tuple(PROMPT), 0, tuple(range(16)), 0, True, True, SamplingParams(max_tokens=1), tuple(PROMPT)
    )
    with torch.inference_mode():
        step = build_step(Batch(0, (segment,)), runner.caches.block_tokens, runner.device)
        return runner.model.logits(runner.model.forward(step, runner.caches))


def reference_logits(model: PreTrainedModel) -> Tensor:
    with torch.inference_mode():
        return model(torch.tensor([PROMPT])).logits[0].float()


@pytest.fixture(scope="session", params=LAYOUTS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("layouts") / request.param
    shape, layout, *flags = LAYOUTS[request.param]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[3] / "tools")
        main: Callable[[list[str]], None] = importlib.import_module("make_checkpoint").main
        main(["--shape", shape, "--layout", layout, "--layers", "4", "--device", "cpu", *flags, str(out)])
    return out


def test_float32_logits_equal_transformers_on_the_dequantised_weights(folder):
    runner = load(folder, "float32")
    expected = reference_logits(reference(folder, runner, torch.float32, quantize_inputs=False))
    torch.testing.assert_close(logits(runner), expected, rtol=0, atol=FLOAT32_TOLERANCE)


def test_bfloat16_is_as_near_to_float32_as_transformers_is(folder):
    runner = load(folder, "bfloat16")
    exact = reference_logits(reference(folder, runner, torch.float32, quantize_inputs=True))
    theirs = (reference_logits(reference(folder, runner, torch.bfloat16, quantize_inputs=True)) - exact).abs()
    ours = (logits(runner) - exact).abs()
    assert float(ours.mean()) <= BFLOAT16_FACTOR * float(theirs.mean())


def test_nothing_is_resident_wider_than_shipped(folder):
    census = load(folder, "bfloat16").census()
    assert census.widened == ()
    assert census.absent == ()
