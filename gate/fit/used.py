"""5 What the servers of a recorded run held, from its own records; and what they should have needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from gate.errors import CheckpointError
from gate.fit.need import Limits, Need, need, weights
from gate.fit.record import Used
from gate.fit.sizes import KV_BYTES, Sizes, asked_kv_dtype, sizes
from gate.headers.read import Headers, read
from gate.headers.schemes import modules
from gate.metrics.peak_gpu import peak_gpu_bytes, reported_gpu_bytes, started_gpu_bytes
from gate.observe import store
from gate.observe.capacity import capacity
from gate.observe.residency import residency
from gate.observe.rows import ARMS, Arm, Identity, LegRow
from gate.observe.rundata import RunData
from gate.recipe import ROOT

GPU_SOURCES: tuple[tuple[str, Callable[[LegRow], int | None]], ...] = (
    ("GPU memory by process", peak_gpu_bytes),
    ("GPU memory by its own word", reported_gpu_bytes),
    ("GPU memory that its start added", started_gpu_bytes),
)
"""In the order in which gate/metrics trusts them."""
BATCHED = "max_num_batched_tokens"


def used(folder: Path, overhead_bytes: int) -> tuple[Used, ...]:
    """Both arms of a run folder. Raises StorageError where its records cannot be read or were changed."""
    data = store.read_run(folder)
    return tuple(of_arm(data, arm, overhead_bytes) for arm in ARMS)


def of_arm(data: RunData, arm: Arm, overhead_bytes: int) -> Used:
    recipe, plan = data.plan.recipe, data.plan.arm(arm)
    said = next((one for one in reversed(data.identities) if one.arm == arm), None)
    headers = _headers(plan.checkpoint)
    dtype = _kv_dtype(said, recipe.kv_cache_dtype, headers)
    limits = Limits(
        context=recipe.max_model_len,
        max_num_seqs=recipe.max_num_seqs,
        kv_bytes=KV_BYTES[dtype],
        batched_tokens=_extra(said, BATCHED),
        overhead_bytes=overhead_bytes,
    )
    model = sizes(headers) if headers is not None else None
    expected: Need | None = None
    if plan.kind in ("engine", "vllm") and headers is not None and model is not None:
        expected = need("vllm" if plan.kind == "vllm" else "engine", model, weights(modules(headers)), limits)
    held = residency(said)
    source, peak = _peak((leg for leg in data.legs if leg.arm == arm), gpu=recipe.gpu)
    return Used(
        arm=arm,
        server=plan.kind,
        checkpoint=plan.checkpoint,
        limits=limits,
        kv_cache_dtype=dtype,
        need=expected,
        weights_bytes=held.resident_bytes if held is not None else None,
        pool_bytes=_pool(said, expected, model, limits),
        memory_bytes=peak,
        memory_source=source,
        is_gpu=recipe.gpu,
    )


def _headers(checkpoint: str) -> Headers | None:
    """A plan's path is seen from the folder that the gate ran in: here, or the project's. None: it is gone, or
    is none whose need is known."""
    for folder in (Path(checkpoint), ROOT / checkpoint):
        if folder.is_dir():
            try:
                found = read(folder)
                sizes(found)  # its caches may be of a kind that is not known here
            except (CheckpointError, OSError):
                return None
            return found
    return None


def _kv_dtype(said: Identity | None, asked: str, headers: Headers | None) -> str:
    told = (said.kv_cache_dtype if said is not None else None) or asked
    if told.startswith("fp8"):
        return "fp8"
    return asked_kv_dtype(headers)[0] if told == "auto" and headers is not None else "bfloat16"


def _pool(said: Identity | None, expected: Need | None, model: Sizes | None, limits: Limits) -> int | None:
    """Bytes of caches by the server's own counts. vLLM tells its pool's bytes only where they were set for it."""
    told, blocks, block = capacity(said), _extra(said, "num_gpu_blocks"), _extra(said, "block_size")
    if told.kv_bytes is not None:
        return told.kv_bytes
    if said is None or expected is None or model is None or not blocks or not block:
        return None
    if "engine" in said.extra:
        return blocks * block * model.kv_token_bytes(limits.kv_bytes) + limits.max_num_seqs * model.state_bytes
    if block != expected.block_tokens or not model.gdn_layers:
        return None  # another layout than the one that is known here
    group = min(model.gdn_layers, model.attention_layers)
    return blocks * block * model.kv_layer_token_bytes(limits.kv_bytes) * group


def _extra(said: Identity | None, label: str) -> int | None:
    found = [] if said is None else [said.extra.get(f"{source}.{label}", "") for source in ("config", "log")]
    return next((int(text) for text in found if text.isdecimal() and int(text) > 0), None)


def _peak(legs: Iterable[LegRow], *, gpu: bool) -> tuple[str, int | None]:
    """(what was measured, the largest of it over the legs)."""
    rows = tuple(legs)
    if not gpu:
        return "host memory, RSS of its processes", _largest(leg.server_peak_rss_bytes for leg in rows)
    for name, measured in GPU_SOURCES:
        if (peak := _largest(map(measured, rows))) is not None:
            return name, peak
    return "GPU memory", None


def _largest(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)
