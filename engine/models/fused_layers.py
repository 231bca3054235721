"""The dense model's layers as the kernels want them: projections merged, every norm with its addition and quantisation.

Attribute names are those of layers.py. Between layers travels the Stream; adding it up is part of the next norm.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.kernels.skinny import MAX_TOKENS
from engine.models.caches import AttentionCache, GdnCache
from engine.models.layers import Source
from engine.models.side_streams import SideStreams
from engine.models.step import Step
from engine.ops import attention, gdn
from engine.ops.attention import cuda as attention_cuda
from engine.ops.attention.cuda_prefill import gate as attention_gate
from engine.ops.gdn import cuda as gdn_cuda
from engine.ops.linear.cuda import Projection, Scratch, pack, pack_gate_up, pack_together, planes, project, swiglu
from engine.ops.moe.cuda import Routing, WeightedPairs
from engine.ops.norm.cuda import Normed, add_norm, add_norm_route
from engine.ops.rope.cuda import qk_norm_rope
from engine.weights.types import DenseWeight, WeightError, fuse

SIDE_TOKENS = 2048
"""Of a run that may go beside others. A longer one would hold up to 1 GB for its stream."""


@dataclass(frozen=True, slots=True)
class Space:
    """What all layers share and no checkpoint ships: allocated once, used by one launch at a time."""

    scratch: Scratch
    attention: attention_cuda.Workspace
    gdn_readers: Tensor
    """int32 [max_num_seqs · Hk], zeros between launches."""
    cos_sin: Tensor
    """bf16 [positions, 64]."""
    arrived: Tensor
    """int32 [1], zero between launches: blocks of a norm's launch whose part of a router's logits is written."""
    side: SideStreams


@dataclass(slots=True)
class Stream:
    """What travels between layers. A norm takes the parts out and puts the new residual in.

    It is an object, not arguments and results, so that nobody up the stack still holds what a norm is done with: in a
    step of 16,384 tokens of the 27B the parts are 336 MB and a residual 168, and each caller held its own.
    """

    residual: Tensor
    """bf16 [tokens, hidden]; before the first norm, which looks them up, the token ids, int64 [tokens]."""
    parts: Tensor | WeightedPairs | None = None
    """What is still to be added; None before the first. Planes [planes, tokens, hidden], their sum: in fp32 of a sliced
    product, one in bf16 of a library's. Or the pairs that a mixture leaves of more than 32 tokens.
    """
    live: Tensor | None = None
    """Step.live."""

    @property
    def planes(self) -> Tensor:
        """The parts behind a mixer, which leaves no pairs."""
        assert isinstance(self.parts, Tensor)
        return self.parts


def together(source: Source, *names: str) -> Projection:
    """The projections as one where they are stored alike, every row with its own scale."""
    return pack_together([source.weights.linear(name) for name in names])


class Norm:
    """Zero-centred RMSNorm: the checkpoint stores the scale minus one.

    The first layer's has the `embedding` too, bf16 [vocab_size, hidden]: what `add` is given as the residual stream are
    token ids there, int64 [tokens], and the rows that they name become the residual stream.
    """

    def __init__(self, source: Source, name: str, embedding: Tensor | None = None) -> None:
        self.embedding = embedding
        self.scale = 1.0 + source.weights.tensor(f"{name}.weight").float()
        self.eps = source.config.rms_norm_eps

    def add(
        self,
        stream: Stream,
        *,
        want_out: bool = True,
        input_scale: Tensor | None = None,
        small_weight: Tensor | None = None,
        fed_ids: Tensor | None = None,
    ) -> Normed:
        """What was asked for. Without parts nothing is added and the launch waits its turn."""
        normed = add_norm(
            stream.parts,
            stream.residual if self.embedding is None else self.embedding,
            self.scale,
            self.eps,
            want_out=want_out,
            input_scale=input_scale,
            small_weight=small_weight,
            token_ids=None if self.embedding is None else stream.residual,
            fed_ids=None if self.embedding is None else fed_ids,
            dependent=stream.parts is not None,
        )
        return self._moved(stream, normed)

    def add_and_route(self, stream: Stream, router: Tensor, top_k: int, arrived: Tensor) -> tuple[Normed, Routing]:
        """(x and logits, who goes to which expert), for up to 32 tokens."""
        planes, residual = stream.planes, stream.residual
        normed, how = add_norm_route(planes, residual, self.scale, self.eps, router, top_k, arrived, dependent=True)
        return self._moved(stream, normed), how

    @staticmethod
    def _moved(stream: Stream, normed: Normed) -> Normed:
        stream.parts = None
        if normed.residual is not None:
            stream.residual = normed.residual
        return normed


def asked(tensor: Tensor | None) -> Tensor:
    assert tensor is not None, "a launch leaves what it was asked for"
    return tensor


class MLP:
    """SwiGLU in two launches, behind its norm."""

    def __init__(self, source: Source, name: str) -> None:
        linear = source.weights.linear
        self.gate_up_proj = pack_gate_up(linear(f"{name}.gate_proj"), linear(f"{name}.up_proj"))
        self.down_proj = pack(linear(f"{name}.down_proj"))

    @property
    def packed(self) -> tuple[Projection, ...]:
        return self.gate_up_proj, self.down_proj

    def __call__(self, norm: Norm, stream: Stream, space: Space) -> None:
        inner = swiglu(asked(norm.add(stream).out), self.gate_up_proj, space.scratch)
        stream.parts = planes(inner, self.down_proj, space.scratch)


class Attention:
    """Projection; attention from q/k norm, rotation and cache write to gate and quantisation; projection."""

    def __init__(self, source: Source, name: str) -> None:
        config, weights = source.config, source.weights
        self.heads, self.head_dim = config.num_attention_heads, config.head_dim
        self.qkv_proj = together(source, f"{name}.q_proj", f"{name}.k_proj", f"{name}.v_proj")
        self.o_proj = pack(weights.linear(f"{name}.o_proj"))
        self.q_norm = Norm(source, f"{name}.q_norm")
        self.k_norm = Norm(source, f"{name}.k_norm")
        self.cache_scales = (
            weights.scalar(f"{name}.k_proj.k_scale", 1.0),
            weights.scalar(f"{name}.v_proj.v_scale", 1.0),
        )

    def __call__(self, norm: Norm, stream: Stream, step: Step, cache: AttentionCache, space: Space) -> None:
        stream.parts = planes(self._mixed(norm, stream, step, cache, space), self.o_proj, space.scratch)

    def _mixed(self, norm: Norm, stream: Stream, step: Step, cache: AttentionCache, space: Space) -> Tensor:
        """A function of its own, so that the projections are let go before o_proj's planes are made."""
        weight = self.qkv_proj
        normed = norm.add(stream, want_out=weight.reads_rows, input_scale=weight.input_scale, fed_ids=step.fed_ids)
        x = normed.out if weight.reads_rows else normed.quantised
        qkv = project(asked(x), weight, space.scratch, normed.quantised)
        mixed = []
        if step.decodes:
            mixed.append(self._decode(qkv[: step.decodes], step, cache, space))
        if step.runs:
            mixed += self._runs(qkv[step.decodes :], step, cache, space)
        return _join(mixed)

    def _decode(self, qkv: Tensor, step: Step, cache: AttentionCache, space: Space) -> Tensor:
        return attention_cuda.decode(
            qkv,
            self.q_norm.scale,
            self.k_norm.scale,
            self.q_norm.eps,
            space.cos_sin,
            cache.k,
            cache.v,
            asked(step.block_table),
            asked(step.lengths),
            self.cache_scales,
            space.attention,
            input_scale=self.o_proj.input_scale,
            dependent=True,
        )

    def _runs(self, qkv: Tensor, step: Step, cache: AttentionCache, space: Space) -> list[Tensor]:
        """The rows behind the decoding ones, whose launch writes its own keys and values."""
        first = step.decodes
        q = qk_norm_rope(
            qkv,
            self.q_norm.scale,
            self.k_norm.scale,
            self.q_norm.eps,
            space.cos_sin,
            step.positions[first:],
            step.kv_slots[first:],
            cache.k,
            cache.v,
            self.cache_scales,
            dependent=True,
        )
        out = []
        for run in step.runs:  # gated one by one: e4m3 is half of what attention leaves
            rows = slice(run.start - first, run.end - first)
            mixed = attention.prefill(q[rows], cache.k, cache.v, run.kv_slots, run.position, *self.cache_scales)
            out.append(attention_gate(mixed, qkv[rows], self.o_proj.input_scale))
        return out


class GatedDeltaNet:
    """Projection (b and a already made beside the norm), one step of the rule, projection."""

    def __init__(self, source: Source, name: str) -> None:
        config, weights = source.config, source.weights
        self.in_proj_qkvz = together(source, f"{name}.in_proj_qkv", f"{name}.in_proj_z")
        ba = fuse([weights.linear(f"{name}.in_proj_b"), weights.linear(f"{name}.in_proj_a")])
        if not isinstance(ba, DenseWeight) or ba.weight.dtype != torch.bfloat16:
            raise WeightError(f"{name}.in_proj_b: found {type(ba).__name__}, expected bfloat16")
        self.in_proj_ba = ba.weight
        self.out_proj = pack(weights.linear(f"{name}.out_proj"))
        self.core = gdn.GdnWeights(
            conv=weights.tensor(f"{name}.conv1d.weight").float().squeeze(1).contiguous(),
            decay_rate=-weights.tensor(f"{name}.A_log").float().exp(),
            dt_bias=weights.tensor(f"{name}.dt_bias").float(),
            norm=weights.tensor(f"{name}.norm.weight").float(),
            eps=config.rms_norm_eps,
            key_heads=config.linear_num_key_heads,
            value_heads=config.linear_num_value_heads,
            key_dim=config.linear_key_head_dim,
            value_dim=config.linear_value_head_dim,
        )

    def __call__(self, norm: Norm, stream: Stream, step: Step, cache: GdnCache, space: Space) -> None:
        stream.parts = planes(self._mixed(norm, stream, step, cache, space), self.out_proj, space.scratch)

    def _mixed(self, norm: Norm, stream: Stream, step: Step, cache: GdnCache, space: Space) -> Tensor:
        """As Attention._mixed."""
        # Beyond a few tokens the norm would be repeated too often beside the small product.
        few = stream.residual.shape[0] <= MAX_TOKENS
        weight = self.in_proj_qkvz
        normed = norm.add(
            stream,
            want_out=not few or weight.reads_rows,
            input_scale=weight.input_scale,
            small_weight=self.in_proj_ba if few else None,
            fed_ids=step.fed_ids,
        )
        ba = asked(normed.small) if few else F.linear(asked(normed.out), self.in_proj_ba)
        x, codes = normed.out if weight.reads_rows else normed.quantised, normed.quantised
        del normed
        qkvz = project(asked(x), weight, space.scratch, codes)
        mixed = []
        if step.decodes:
            mixed.append(self._decode(qkvz, ba, step, cache, space))
        if step.runs:
            mixed.append(self._runs(qkvz, ba, step, cache, space.side))
        return _join(mixed)

    def _decode(self, qkvz: Tensor, ba: Tensor, step: Step, cache: GdnCache, space: Space) -> Tensor:
        n = step.decodes
        return gdn_cuda.decode(
            qkvz[:n],
            ba[:n],
            cache.conv,
            cache.recurrent,
            step.state_slots,
            self.core,
            space.gdn_readers,
            input_scale=self.out_proj.input_scale,
            dependent=True,
        )

    def _runs(self, qkvz: Tensor, ba: Tensor, step: Step, cache: GdnCache, side: SideStreams) -> Tensor:
        # Triton is part of a CUDA torch only.
        from engine.ops.gdn.cuda_prefill import prefill

        first = step.decodes
        width = self.core.value_heads * self.core.value_dim
        dtype = torch.bfloat16 if self.out_proj.input_scale is None else torch.float8_e4m3fn
        out = torch.empty(qkvz.shape[0] - first, width, dtype=dtype, device=qkvz.device)
        short = []
        for run in step.runs:
            rows, target = slice(run.start, run.end), out[run.start - first : run.end - first]
            state = (cache.conv, cache.recurrent, run.where)
            job = partial(
                prefill, qkvz[rows], ba[rows], *state, self.core, target, self.out_proj.input_scale, step.live
            )
            if run.end - run.start <= SIDE_TOKENS:
                short.append(job)
            else:
                job()
        side.run(short)
        return out


def _join(parts: list[Tensor]) -> Tensor:
    """Rows one after another; as bytes, since not every operator has a float8 form."""
    if len(parts) == 1:
        return parts[0]
    return torch.cat([p.view(torch.uint8) for p in parts]).view(parts[0].dtype)
