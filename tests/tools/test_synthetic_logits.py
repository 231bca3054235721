"""Synthetic checkpoints are worth judging tokens on: finite, unsaturated, with margins that rounding spares."""

from __future__ import annotations

from pathlib import Path

import make_checkpoint
import pytest
import torch
from torch import Tensor

from engine.batch import Batch, Segment
from engine.models.caches import Caches
from engine.models.config import load_text_config
from engine.models.layers import Source
from engine.models.qwen3_5 import Qwen3_5ForCausalLM
from engine.models.qwen3_5_moe import Qwen3_5MoeForCausalLM
from engine.ops import linear as linear_op
from engine.ops import moe as moe_op
from engine.ops.linear import Budget
from engine.request import SamplingParams
from engine.steps import build_step
from engine.weights.loader import load_weights

torch.set_num_threads(1)

TOKENS, BLOCK = 192, 16


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("logits")
    for shape in ("tiny", "tiny-moe"):
        make_checkpoint.main(["--device", "cpu", "--shape", shape, str(root / shape)])
    return {shape: root / shape for shape in ("tiny", "tiny-moe")}


def logits(folder: Path, ids: list[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """fp32 [tokens, vocab]: one prompt in one step."""
    config = load_text_config(folder)
    weights = load_weights(folder, config, "cpu")
    kind = Qwen3_5MoeForCausalLM if config.is_moe else Qwen3_5ForCausalLM
    model = kind(Source(weights, config, dtype, Budget(10**9)), 256)
    blocks = -(-len(ids) // BLOCK)
    caches = Caches(config, blocks, BLOCK, 1, dtype, dtype, torch.device("cpu"))
    segment = Segment("a", tuple(ids), 0, tuple(range(blocks)), 0, True, True, SamplingParams(1))
    with torch.inference_mode():
        step = build_step(Batch(0, (segment,)), BLOCK, torch.device("cpu"))
        return model.logits(model.forward(step, caches))


def prompt(seed: int) -> list[int]:
    return torch.randint(15, 2003, (TOKENS,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.mark.parametrize("shape", ["tiny", "tiny-moe"])
def test_margins_are_neither_ties_nor_huge(folders: dict[str, Path], shape: str) -> None:
    out = logits(folders[shape], prompt(1))
    assert bool(torch.isfinite(out).all())
    top = out.topk(2, -1).values
    margins = top[:, 0] - top[:, 1]
    assert 0.25 < margins.median().item() < 3
    assert (margins < 0.01).float().mean().item() < 0.1
    assert (margins > 5).float().mean().item() < 0.1
    assert out.argmax(-1).unique().numel() > TOKENS // 2


@pytest.mark.parametrize("shape", ["tiny", "tiny-moe"])
def test_rounding_in_bfloat16_moves_log_probs_by_less_than_the_near_tie_bound(
    folders: dict[str, Path], shape: str
) -> None:
    """Else every correct engine would fail: the gate takes 0.25 nats at a first divergence for a near tie."""
    ids = prompt(2)
    wide = logits(folders[shape], ids).log_softmax(-1)
    narrow = logits(folders[shape], ids, torch.bfloat16).log_softmax(-1)
    best, chosen = wide.max(-1).values, wide.gather(1, narrow.argmax(-1, keepdim=True)).squeeze(1)
    assert (best - chosen).max().item() < 0.25
    assert (narrow - wide).abs().mean().item() < 0.1


@pytest.mark.parametrize("shape", ["tiny", "tiny-moe"])
def test_the_context_decides_beside_the_token(folders: dict[str, Path], shape: str) -> None:
    """The last token alone gives other logits than at the end of a prompt; an early change still shows much later."""
    ids = prompt(3)
    whole = logits(folders[shape], ids)
    alone = logits(folders[shape], ids[-1:])
    assert torch.corrcoef(torch.stack([whole[-1], alone[0]]))[0, 1].item() < 0.95
    changed = logits(folders[shape], [*ids[:20], (ids[20] + 1) % 2003, *ids[21:]])
    assert torch.equal(changed[:20], whole[:20])
    assert (changed - whole)[20 + 100].std().item() > 1e-3


@pytest.mark.parametrize("shape", ["tiny", "tiny-moe"])
def test_static_fp8_inputs_do_not_saturate(
    folders: dict[str, Path], shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    peaks: list[float] = []
    quantize = linear_op.quantize_per_tensor

    def watched(x: Tensor, scale: Tensor) -> Tensor:
        peaks.append((x.abs().max() / (448 * scale)).item())
        return quantize(x, scale)

    monkeypatch.setattr(linear_op, "quantize_per_tensor", watched)
    logits(folders[shape], prompt(4))
    assert len(peaks) >= 8 * 2  # two fused FP8 products per layer
    assert min(peaks) > 0.05
    assert max(peaks) < 1


def test_routing_has_a_margin(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The least of the chosen experts is ahead of the best of the others by far more than bfloat16 can move it."""
    gaps: list[float] = []
    spread: set[tuple[int, ...]] = set()
    route = moe_op.route

    def watched(router_logits: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
        ordered = router_logits.float().sort(-1, descending=True).values
        gaps.extend((ordered[:, top_k - 1] - ordered[:, top_k]).tolist())
        weights, ids = route(router_logits, top_k)
        spread.update(tuple(sorted(row)) for row in ids.tolist())
        return weights, ids

    monkeypatch.setattr(moe_op, "route", watched)
    logits(folders["tiny-moe"], prompt(5))
    assert len(gaps) == 8 * TOKENS
    assert sorted(gaps)[len(gaps) // 100] > 1.5
    assert min(gaps) > 0.3
    assert len(spread) > 10
