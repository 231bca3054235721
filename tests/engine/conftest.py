"""Tiny random models: transformers' as the reference, ours over the same weights, and hand-made batches."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor
from transformers import Qwen3_5ForCausalLM as DenseReference
from transformers import Qwen3_5MoeForCausalLM as MoeReference
from transformers import Qwen3_5MoeTextConfig, Qwen3_5TextConfig
from transformers.modeling_utils import PreTrainedModel

from engine.batch import Batch, Segment
from engine.models.caches import Caches
from engine.models.config import TextConfig
from engine.models.layers import Source
from engine.models.registry import build_model
from engine.ops.linear import Budget
from engine.request import SamplingParams
from engine.runner import ModelRunner
from engine.steps import build_step
from engine.weights.types import DenseWeight, Weight

VOCAB = 301
BLOCK_TOKENS = 8
SLOTS = 6
BLOCKS = 96
CPU = torch.device("cpu")

SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
}
FEED_FORWARD = {
    "dense": {"intermediate_size": 112},
    "tied": {"intermediate_size": 112, "tie_word_embeddings": True},
    "moe": {
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 48,
        "shared_expert_intermediate_size": 40,
    },
}
ROPE = {"rope_theta": 1e7, "partial_rotary_factor": 0.25}


@dataclass(frozen=True)
class Reference:
    """transformers' float32 model, with every weight representable in bfloat16."""

    kind: str
    model: PreTrainedModel

    def logits(self, ids: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        """fp32 [tokens, vocab] of one sequence, computed in `dtype`."""
        with torch.inference_mode():
            if dtype == torch.float32:
                return self.model(torch.tensor([ids])).logits[0]
            twin = type(self.model)(self.model.config).eval().to(dtype)
            twin.load_state_dict(self.model.state_dict())
            return twin(torch.tensor([ids])).logits[0].float()


def make_reference(kind: str) -> Reference:
    rope = {"rope_type": "default", **ROPE, "mrope_interleaved": True, "mrope_section": [2, 1, 1]}
    if kind == "moe":
        model = MoeReference(Qwen3_5MoeTextConfig(**SIZES, **FEED_FORWARD[kind], rope_parameters=rope))
    else:
        model = DenseReference(Qwen3_5TextConfig(**SIZES, **FEED_FORWARD[kind], rope_parameters=rope))
    generator = torch.Generator().manual_seed(7)
    for name, parameter in model.named_parameters():
        # A router far from ties, or one flipped expert would decide every comparison in bfloat16.
        scale = 0.6 if name.endswith("mlp.gate.weight") else 0.12
        noise = torch.randn(parameter.shape, generator=generator) * scale
        is_scale = name.endswith("linear_attn.norm.weight")
        parameter.data = (noise + 1 if is_scale else noise).bfloat16().float()
    return Reference(kind, model.eval())


@pytest.fixture(scope="session", params=["dense", "moe"])
def reference(request: pytest.FixtureRequest) -> Reference:
    return make_reference(request.param)


@pytest.fixture(scope="session")
def dense_reference() -> Reference:
    return make_reference("dense")


@pytest.fixture(scope="session")
def tied_reference() -> Reference:
    return make_reference("tied")


class StateDict:
    """A transformers state dict under the checkpoint's names, experts unstacked."""

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype) -> None:
        self.tensors = {
            name.removeprefix("model."): value.detach().to(dtype) for name, value in model.state_dict().items()
        }

    def linear(self, name: str) -> Weight:
        block, _, expert = name.partition(".experts.")
        if not expert:
            return DenseWeight(self.tensors[f"{name}.weight"])
        index, projection = expert.split(".")
        if projection == "down_proj":
            return DenseWeight(self.tensors[f"{block}.experts.down_proj"][int(index)])
        gate, up = self.tensors[f"{block}.experts.gate_up_proj"][int(index)].chunk(2)
        return DenseWeight(gate if projection == "gate_proj" else up)

    def tensor(self, name: str) -> Tensor:
        return self.tensors[name]

    def scalar(self, name: str, default: float) -> float:
        return self.tensors.get(name, torch.tensor(default)).item()


def make_runner(reference: Reference, dtype: torch.dtype, kv_dtype: torch.dtype | None = None) -> ModelRunner:
    config = TextConfig(
        **SIZES, **FEED_FORWARD[reference.kind], **ROPE, layer_types=tuple(reference.model.config.layer_types)
    )
    source = Source(StateDict(reference.model, torch.bfloat16), config, dtype, Budget(1 << 28))
    caches = Caches(config, BLOCKS, BLOCK_TOKENS, SLOTS, dtype, kv_dtype or dtype, CPU)
    for poisoned in (caches.kv, caches.conv, caches.recurrent):
        # Nothing may be read before it was written: stale memory of other requests looks like this, only quieter.
        bytes_or_floats = poisoned.view(torch.uint8) if poisoned.dtype.itemsize == 1 else poisoned
        bytes_or_floats.fill_(0x7F if poisoned.dtype.itemsize == 1 else float("nan"))
    return ModelRunner(build_model(source, max_positions=512), caches, VOCAB)


@dataclass
class Sequence_:
    """One request, driven by hand: blocks scattered over the pool, tokens fed as the test likes."""

    name: str
    ids: list[int]
    slot: int
    blocks: tuple[int, ...]
    params: SamplingParams = field(default_factory=lambda: SamplingParams(max_tokens=64, temperature=0.0))
    prompt: int = 0
    done: int = 0

    def __post_init__(self) -> None:
        self.prompt = len(self.ids)

    def segment(self, tokens: int) -> Segment:
        """The next `tokens` known ids."""
        start, self.done = self.done, self.done + tokens
        return Segment(
            request_id=self.name,
            token_ids=tuple(self.ids[start : self.done]),
            position=start,
            block_ids=self.blocks,
            state_slot=self.slot,
            zero_state=start == 0,
            sample=self.done == len(self.ids),
            params=self.params,
            prompt_ids=tuple(self.ids[: self.prompt]),
            output_ids=tuple(self.ids[self.prompt :]),
        )


class Driver:
    """Runs steps on one runner and keeps what came out."""

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner
        self.free = torch.randperm(BLOCKS, generator=torch.Generator().manual_seed(3)).tolist()
        self.steps = itertools.count()

    def sequence(self, name: str, ids: Sequence[int], slot: int, tokens: int = 96, **params: object) -> Sequence_:
        count = -(-tokens // BLOCK_TOKENS)
        blocks = tuple(self.free.pop() for _ in range(count))
        made = Sequence_(name, list(ids), slot, blocks)
        made.params = replace(made.params, **params)
        return made

    def release(self, sequence: Sequence_) -> None:
        self.free.extend(sequence.blocks)

    def step(self, *parts: tuple[Sequence_, int]) -> dict[str, object]:
        """Run (sequence, tokens) pairs as one step; append what was sampled; request id -> Sampled."""
        output = self.runner.run(Batch(next(self.steps), tuple(s.segment(n) for s, n in parts)))
        for (sequence, _), sampled in zip(parts, output.sampled, strict=True):
            if sampled.token_id is not None:
                sequence.ids.append(sampled.token_id)
        return {s.request_id: s for s in output.sampled}

    def logits(self, *parts: tuple[Sequence_, int]) -> Tensor:
        """The same step, but every token's logits, fp32 [tokens, vocab], and nothing sampled."""
        segments = tuple(s.segment(n) for s, n in parts)
        caches = self.runner.caches
        with torch.inference_mode():
            fresh = [s.state_slot for s in segments if s.zero_state]
            caches.zero_slots(torch.tensor(fresh, dtype=torch.long))
            step = build_step(Batch(next(self.steps), segments), caches.block_tokens, CPU)
            return self.runner.model.logits(self.runner.model.forward(step, caches))


@pytest.fixture
def driver(reference: Reference) -> Driver:
    return Driver(make_runner(reference, torch.float32))


@pytest.fixture
def make_driver() -> Callable[..., Driver]:
    return lambda *args: Driver(make_runner(*args))


@pytest.fixture
def prompt() -> Callable[[int], list[int]]:
    """n ids; the same n gives the same ids."""
    return lambda n: torch.randint(0, VOCAB, (n,), generator=torch.Generator().manual_seed(n)).tolist()
