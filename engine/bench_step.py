"""`engine bench step` and `prefill`: what a step of a model costs on this device, kernel family by kernel family.

Times come from CUPTI (torch.profiler), bytes from the weights and caches that a family has to read and write once.
Under programmatic dependent launch kernels overlap, so a family's time includes its wait for the one before, and the
families' sum is more than the step's time, which is measured on its own, without the profiler. A kernel's own time is
what it puts the end off: its end less the latest end of those that began before it. Own times add up to the time with a
kernel running, so they say where a step goes; GB/s are of the whole duration.
"""

from __future__ import annotations

import random
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from engine import bench_experts
from engine.batch import UNKNOWN, Batch, Segment, Ticket
from engine.errors import PreconditionError
from engine.models.fused import FusedForCausalLM
from engine.models.fused_layers import Attention
from engine.models.fused_moe import SparseMoeBlock
from engine.ops.linear.cuda import W4A16, W8A8, Dense, Projection, SideBySide
from engine.request import SamplingParams
from engine.roofs import roof_of
from engine.runner import LoadedRunner

FAMILIES = (
    ("W4A16 product", r"skinny_kernel<.*W4A16|w4a16_wide_kernel"),
    ("experts", r"grouped(_many|_wide)?_kernel"),
    ("experts (library)", r"GroupProblemShape|prepare_grouped_gemm"),
    ("experts: x by pair, sums", r"(spread|combine)_pairs_kernel"),
    ("experts: x to E4M3", r"quantize_tokens_kernel"),
    ("routing", r"router?_kernel|route_(chunk|layout)_kernel"),
    ("W8A8 product", r"skinny_kernel<.*W8A8"),
    ("GDN step", r"gdn_decode_kernel"),
    ("attention", r"attention_decode_kernel"),  # of decoding rows, their q/k norm, rope and KV write in it
    ("q/k norm, rope, KV write", r"qk_norm_rope_kernel"),  # of prefill's rows
    ("add, norm, router, routing", r"add_norm_kernel<.*Behind\)2\b"),
    ("add, norm, quantise, b/a", r"add_norm_kernel"),
    ("argmax", r"argmax_kernel"),  # of an lm_head that is not W4A16
    ("GDN chunks", r"_chunk_kernel|_scan_kernel"),
    ("GDN convolution, gated norm", r"gdn_conv_kernel|gdn_gated_norm_kernel"),
    ("weights to rows", r"_rows_kernel"),
    ("SwiGLU, attention gate", r"swiglu_kernel|attention_gate_kernel"),
    ("library attention", r"flash|fmha|mem_eff"),
    ("library products", r"gemm|cutlass|nvjet|splitK"),
    ("copies", r"[Mm]emcpy|[Mm]emset"),
)
"""First match wins; what matches none is "torch"."""


@dataclass(frozen=True, slots=True)
class Family:
    name: str
    launches: float
    """Per step."""
    us: float
    """Per step, summed over launches."""
    own_us: float
    """Of it, what no kernel that began before covers."""
    nbytes: int | None = None
    """Per step; None where they are not counted."""


@dataclass(frozen=True, slots=True)
class Measured:
    title: str
    wall_us: float
    """Of a step as the engine runs it, its ids on the host: prefill's median; decode's mean, since steps overlap."""
    families: tuple[Family, ...]
    experts: bench_experts.Distinct | None = None
    """Of a mixture's decoding step."""
    roof_bytes_per_s: float | None = None
    """Of the device; None where nobody has measured it: a share is then a dash."""

    def lines(self) -> Iterator[str]:
        """A table, the slowest family first."""
        launches, total = sum(f.launches for f in self.families), sum(f.us for f in self.families)
        own = sum(f.own_us for f in self.families)
        yield f"{self.title}: {self.wall_us:.0f} µs a step, {launches:.0f} launches"
        yield f"{'family':30} {'launches':>9} {'µs':>9} {'own µs':>9} {'GB':>8} {'GB/s':>7} {'of roof':>8}"
        for f in sorted(self.families, key=lambda f: -f.own_us):
            line = f"{f.name:30} {f.launches:9.1f} {f.us:9.1f} {f.own_us:9.1f}"
            if f.nbytes is not None:
                rate = f.nbytes / f.us * 1e6
                share = "–" if self.roof_bytes_per_s is None else f"{rate / self.roof_bytes_per_s:.0%}"
                line += f" {f.nbytes / 1e9:8.3f} {rate / 1e9:7.0f} {share:>8}"
            yield line
        yield f"{'sum':30} {launches:9.1f} {total:9.1f} {own:9.1f}"
        if self.experts is not None:
            yield self.experts.line(next((f.us for f in self.families if f.name == "experts"), None))


class StepBench:
    """Drives a loaded runner by hand: sequences of random ids in consecutive blocks and slots."""

    def __init__(self, runner: LoadedRunner) -> None:
        """Raises PreconditionError where the runner does not use the CUDA kernels."""
        if not isinstance(runner.model, FusedForCausalLM):
            raise PreconditionError("engine bench: the kernels it measures are not in use; run it on a CUDA device")
        self.runner, self.model = runner, runner.model
        self._step = 0
        self._random = random.Random(0)
        self._params = SamplingParams(max_tokens=1 << 30, temperature=0.0, ignore_eos=True)

    def decode(self, batch: int, context: int, steps: int) -> Measured:
        """`batch` sequences with `context` tokens each. Raises PreconditionError where the caches cannot hold them."""
        last = [self._prefill(slot, context) for slot in range(batch)]
        position = context
        before = self._submit([self._segment(slot, (token,), position) for slot, token in enumerate(last)])

        def step() -> None:
            nonlocal position, before
            position += 1
            after = self._submit([self._segment(slot, (UNKNOWN,), position, feed=slot) for slot in range(batch)])
            before.finish()
            before = after

        wall = _mean_us(step, steps, warm=4)
        known = decode_bytes(self.model, self.runner, batch, position)
        profiled = _profiled(step, 8)
        ids = [s.token_id for s in before.finish().sampled]  # finished, or the next batch size finds a lane taken
        again = [self._segment(slot, (token or 0,), position + 1) for slot, token in enumerate(ids)]
        experts = bench_experts.distinct(self.runner, again)
        if experts is not None:
            known["experts"] = experts.nbytes
        families = tuple(replace(f, nbytes=known.get(f.name)) for f in profiled)
        return Measured(
            f"decode, batch {batch}, {context} tokens of context", wall, families, experts, roof_of(self.runner.device)
        )

    def prefill(self, tokens: int, steps: int) -> Measured:
        """One prompt in one step, sampled once."""

        def step() -> None:
            self._prefill(0, tokens)

        wall = _median_us(step, steps, warm=2)
        return Measured(
            f"prefill, {tokens} tokens", wall, tuple(_profiled(step, 2)), roof_bytes_per_s=roof_of(self.runner.device)
        )

    def _prefill(self, slot: int, tokens: int) -> int:
        ids = self._random.choices(range(self.runner.vocab_size), k=tokens)
        return self._run([self._segment(slot, tuple(ids), 0)])[0]

    def _run(self, segments: Sequence[Segment]) -> list[int]:
        return [s.token_id for s in self._submit(segments).finish().sampled if s.token_id is not None]

    def _submit(self, segments: Sequence[Segment]) -> Ticket:
        self._step += 1
        return self.runner.submit(Batch(self._step, tuple(segments)))

    def _segment(self, slot: int, ids: tuple[int, ...], position: int, feed: int | None = None) -> Segment:
        block_tokens = self.runner.caches.block_tokens
        per_sequence = -(-self.runner.max_model_len // block_tokens)
        end = position + len(ids)
        if end > self.runner.max_model_len or (slot + 1) * per_sequence > self.runner.num_blocks:
            raise PreconditionError(
                f"engine bench: sequence {slot} of {end} tokens; {self.runner.num_blocks} KV blocks and a length of "
                f"{self.runner.max_model_len} do not hold it; measure fewer or shorter ones"
            )
        blocks = tuple(range(slot * per_sequence, slot * per_sequence + -(-end // block_tokens)))
        fresh = position == 0
        return Segment(f"bench-{slot}", ids, position, blocks, slot, fresh, sample=True, params=self._params, feed=feed)


def family_of(kernel: str) -> str:
    """The family of a kernel's name as CUPTI reports it."""
    return next((name for name, pattern in FAMILIES if re.search(pattern, kernel)), "torch")


def decode_bytes(model: FusedForCausalLM, runner: LoadedRunner, batch: int, context: int) -> dict[str, int]:
    """What a decoding step must move, by family: each weight once, state read and written, each key and value once."""
    weights: list[Projection] = [model.lm_head]
    small = router = 0
    for layer in model.layers:
        weights += layer.mlp.packed  # not a mixture's experts: how many a step reads depends on the tokens
        if isinstance(layer.mlp, SparseMoeBlock):
            router += layer.mlp.router.nbytes
        mixer = getattr(layer, "self_attn", None)
        if isinstance(mixer, Attention):
            weights += (mixer.qkv_proj, mixer.o_proj)
        else:
            weights += (layer.linear_attn.in_proj_qkvz, layer.linear_attn.out_proj)
            small += layer.linear_attn.in_proj_ba.nbytes
    products = [p for w in weights for p in (w.parts if isinstance(w, SideBySide) else (w,))]
    caches = runner.caches
    state = (caches.recurrent.nbytes + caches.conv.nbytes) // caches.conv.shape[1]
    token = caches.kv.nbytes // (caches.kv.shape[2] * caches.kv.shape[3])
    return {
        "W4A16 product": sum(w.units.nbytes + w.row_scale.nbytes for w in products if isinstance(w, W4A16)),
        "W8A8 product": sum(w.units.nbytes + w.row_scale.nbytes for w in products if isinstance(w, W8A8)),
        "library products": sum(w.rows.nbytes for w in products if isinstance(w, Dense)),
        "GDN step": 2 * state * batch,
        "attention": token * context * batch,
        "add, norm, router, routing": router,
        "add, norm, quantise, b/a": small,
        "argmax": 2 * runner.vocab_size * batch,
    }


def _profiled(step: Callable[[], None], steps: int) -> list[Family]:
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as traced:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    kernels = [
        (event.time_range.start, event.time_range.end, event.name)
        for event in traced.events()
        if event.device_type == DeviceType.CUDA
    ]
    return by_family(kernels, steps)


def by_family(kernels: Sequence[tuple[float, float, str]], steps: int) -> list[Family]:
    """kernels: begin, end in µs and name of each that ran in `steps` steps."""
    launches: dict[str, int] = defaultdict(int)
    us: dict[str, float] = defaultdict(float)
    own: dict[str, float] = defaultdict(float)
    latest = float("-inf")
    for begin, end, name in sorted(kernels):
        family = family_of(name)
        launches[family] += 1
        us[family] += end - begin
        own[family] += max(end - max(begin, latest), 0.0)
        latest = max(latest, end)
    return [Family(name, launches[name] / steps, us[name] / steps, own[name] / steps) for name in launches]


def _mean_us(step: Callable[[], None], steps: int, warm: int) -> float:
    for _ in range(warm):
        step()
    began = time.perf_counter()
    for _ in range(steps):
        step()
    return (time.perf_counter() - began) / steps * 1e6


def _median_us(step: Callable[[], None], steps: int, warm: int) -> float:
    for _ in range(warm):
        step()
    times = []
    for _ in range(steps):
        torch.cuda.synchronize()
        began = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - began) * 1e6)
    return sorted(times)[len(times) // 2]
