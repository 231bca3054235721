"""6 A fit as text: one table in one unit, what each line rests on, what a real start used."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from gate.fit import amount
from gate.fit.amount import Unit
from gate.fit.need import Need
from gate.fit.record import BY_ESTIMATE, FITS, TOO_LARGE, FitReport, Used
from gate.units import DASH

VERDICTS = {FITS: "yes", TOO_LARGE: "no", BY_ESTIMATE: "not by the estimate", None: DASH}
LINES: tuple[tuple[str, Callable[[Need], int]], ...] = (
    ("weights", lambda n: n.weights),
    ("KV cache", lambda n: n.kv),
    ("recurrent state", lambda n: n.state),
    ("activations, logits (estimate)", lambda n: n.activations),
    ("prefill scratch (estimate)", lambda n: n.scratch),
    ("context, libraries, graphs (assumed)", lambda n: n.overhead),
    ("total", lambda n: n.total),
)
USED: tuple[tuple[str, Callable[[Used], int | None], Callable[[Need], int]], ...] = (
    ("weights", lambda u: u.weights_bytes, lambda n: n.weights),
    ("KV cache and state", lambda u: u.pool_bytes, lambda n: n.kv + n.state),
    ("rest", lambda u: u.rest_bytes, lambda n: n.activations + n.scratch + n.overhead),
    ("whole", lambda u: u.memory_bytes, lambda n: n.total),
)
ON_A_HOST = ("weights", "KV cache and state")
POWERS = {"GB": "10^9", "GiB": "2^30"}
Shown = Callable[[int | None], str]
"""Bytes as text, in the table's unit."""


def render(made: FitReport, unit: Unit) -> str:
    digits = amount.digits_for(made.weights.shipped, unit)

    def size(size_bytes: int | None) -> str:
        return amount.shown(size_bytes, unit, digits)

    limits = made.limits
    inside = ""
    if (memory := made.memory_bytes) is not None:
        inside = f" in {amount.shown(memory, unit, amount.digits_for(memory, unit))} {unit}"
    sequences = f"{limits.max_num_seqs} sequence{'s' if limits.max_num_seqs > 1 else ''}"
    dtype = f"KV cache {made.kv_cache_dtype} ({made.kv_cache_why})"
    head = f"{made.checkpoint}{inside}: context {limits.context}, {sequences}, {dtype}"
    rows = [(f"{unit} ({POWERS[unit]} bytes)", *(one.server for one in made.servers))]
    rows += [(name, *(size(of(one.need)) for one in made.servers)) for name, of in LINES]
    if made.memory_bytes is not None:
        rows += [
            ("left", *(size(made.memory_bytes - one.need.total) for one in made.servers)),
            ("fits", *(VERDICTS[one.verdict] for one in made.servers)),
            (f"largest context at {limits.max_num_seqs}", *(_largest(one.largest_context) for one in made.servers)),
            (f"largest max_num_seqs at {limits.context}", *(_largest(s.largest_max_num_seqs) for s in made.servers)),
        ]
    parts = [head, "", _columns(rows), "", *_bases(made, size), "", *_starting(made, size)]
    if made.used:
        parts += ["", _columns(_used(made, unit, size)), "", *map(_about, made.used)]
    return "\n".join(parts)


def _largest(value: int | None) -> str:
    return "none" if value is None else str(value)


def _bases(made: FitReport, size: Shown) -> Iterable[str]:
    """What each line of the table rests on."""
    model, limits, held = made.sizes, made.limits, made.weights
    ours = any(one.server == "engine" for one in made.servers)
    seen = [(name, size(nbytes)) for name, nbytes in sorted(held.by_family.items())]
    families = ", ".join(f"{name} {text}" for name, text in seen if float(text))  # a few KB of F32 are in the sum
    yield f"weights      as shipped: {families}"
    for one in made.servers:
        if one.server == "engine":
            more = size(one.need.weights - held.shipped)
            yield f"             engine: {more} more for a scale per row, fp32 norms, rotations"
    if held.left_alone:
        alone = ", ".join(f"{name} {size(nbytes)}" for name, nbytes in sorted(held.left_alone.items()))
        yield f"not loaded   {alone}"
    blocks = ", ".join(f"{one.server} in blocks of {one.need.block_tokens}" for one in made.servers)
    token = model.kv_token_bytes(limits.kv_bytes)
    yield f"KV cache     {token} bytes a token over {model.attention_layers} attention layers; {blocks} tokens"
    if model.gdn_layers:
        state = f"{model.state_bytes} bytes a sequence over {model.gdn_layers} GDN layers"
        yield f"state        {state}; vllm rounds to pages"
    logits = f"logits of {limits.max_num_seqs}, BF16 and fp32"
    yield f"activations  the widest layer's outputs of a step, each once; {logits}"
    yield f"step         {'; '.join(_steps(made))}"
    if held.scratch and ours:
        yield "scratch      engine: its largest joined product as prefill multiplies it, NVFP4 as BF16"
    yield "assumed      derived from nothing here; --used RUN shows what it was, --overhead replaces it"
    if any(one.largest_context == model.max_context for one in made.servers):
        yield f"limit        {model.max_context} is the model's own, max_position_embeddings"


def _steps(made: FitReport) -> Iterable[str]:
    if len({(one.batched_tokens, one.batched_by) for one in made.servers}) == 1:
        yield f"{made.servers[0].batched_tokens} tokens, {made.servers[0].batched_by}"
    else:
        yield from (f"{one.server} {one.batched_tokens} tokens, {one.batched_by}" for one in made.servers)


def _starting(made: FitReport, size: Shown) -> Iterable[str]:
    """The options that make a server hold just this."""
    if made.left_out is not None:
        yield f"engine       not shown: {made.left_out}"
    limits = made.limits
    asked = f"--max-model-len {limits.context} --max-num-seqs {limits.max_num_seqs}"
    steps = {one.server: f"--max-num-batched-tokens {one.batched_tokens} " for one in made.servers}
    shared, *others = set(steps.values())
    if not others:
        asked, steps = f"{asked} {shared}", dict.fromkeys(steps, "")
    yield f"start with   {asked.strip()} --kv-cache-dtype {made.kv_cache_dtype}"
    for one in made.servers:
        if one.server == "engine":
            blocks = limits.max_num_seqs * -(-limits.context // one.need.block_tokens)
            rule = "without it the pool is a quarter of what the weights leave at most"
            yield f"engine       {steps['engine']}--num-blocks {blocks}; {rule}"
        else:
            yield f"vllm         {steps['vllm']}--kv-cache-memory-bytes {one.need.pool_bytes}"
    if made.together:
        total = sum(one.need.total for one in made.servers)
        fits = "" if made.memory_bytes is None else ": fits" if total <= made.memory_bytes else ": does not fit"
        yield f'together     residency = "both" keeps the two on one GPU, {size(total)} in all{fits}'


def _used(made: FitReport, unit: Unit, size: Shown) -> Iterable[tuple[str, ...]]:
    yield (f"{unit}, {made.run}", *(f"{one.arm} {side}" for one in made.used for side in ("used", "need")))
    for name, measured, needed in USED:
        cells: list[str] = []
        for one in made.used:
            # The assumed part is a CUDA context's: nothing to hold against a process on a CPU.
            known = one.need is not None and (one.is_gpu or name in ON_A_HOST)
            cells += [size(measured(one)), size(needed(one.need) if known and one.need is not None else None)]
        yield (name, *cells)


def _about(one: Used) -> str:
    limits = one.limits
    about = f"{one.arm:<12} {one.server}, {Path(one.checkpoint).name or DASH}, "
    about += f"context {limits.context}, {limits.max_num_seqs} sequences, "
    if one.limits.batched_tokens is not None:
        about += f"steps of {one.limits.batched_tokens} tokens, "
    about += f"KV {one.kv_cache_dtype}; whole: {one.memory_source}"
    if one.need is None:
        return f"{about}; no need is known: another server, or its checkpoint is gone or of another kind"
    return about if one.is_gpu else f"{about}, which holds the program too"


def _columns(rows: Iterable[tuple[str, ...]]) -> str:
    table = list(rows)
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    return "\n".join(
        "  ".join(c.rjust(w) if k else c.ljust(w) for k, (c, w) in enumerate(zip(row, widths, strict=True))).rstrip()
        for row in table
    )
