"""3 What a server needs of a GPU's memory: weights, KV cache and states exactly, the rest as an estimate. Pure.

Exact, once a server's layout is known:

    engine   weights as shipped; one fp32 scale per output row in place of scales per tensor and channel; norms,
             convolutions and GDN's vectors in fp32; context × rotary dimensions of cosines and sines in BF16
             (engine/census.py counts the same to the byte)
    engine   KV      max_num_seqs × ⌈context / 16⌉ blocks of 16 tokens            engine/models/caches.py
             state   max_num_seqs slots
    vLLM     a page holds one sequence's state of a layer, or as many tokens of KV as are at least that long:
             block = 16 × ⌈state bytes of a layer / (16 × KV bytes of a token and layer)⌉ tokens
             a group is as many layers as there are of the rarer kind, and takes one page a layer
             KV      max_num_seqs × ⌈context / block⌉ pages a group of attention layers
             state   max_num_seqs pages a group of GDN layers, and one spare page that vLLM calls the null block
                     (vLLM 0.25.0, v1/core/kv_cache_utils.py; gives the 193 and 161 blocks of the shipped recipes)

Estimated: activations, as the widest layer's outputs of a prefill step, each once, the step being each server's own;
logits of every sequence in BF16 and fp32; in our engine the scratch in which a prefill step lays out one packed weight;
and what no header tells, the CUDA context, the libraries' workspaces and the graphs, as a sum that the caller can
replace.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from gate.fit.sizes import ACTIVATION_BYTES, Sizes
from gate.headers.schemes import Module
from gate.observe.rows import Row
from gate.profile.census import GROUPS
from gate.units import GIB

Server = Literal["engine", "vllm"]
SERVERS: tuple[Server, Server] = ("engine", "vllm")
ENGINE_BLOCK, VLLM_STEP = 16, 16
"""Tokens of our KV blocks; what vLLM's attention kernels ask a block to be a multiple of."""
OVERHEAD_BYTES = GIB
"""Assumed: about half for the CUDA context and the modules loaded into it, the rest for library workspaces and graphs;
vLLM's graphs for the 27B took 0.2 GiB on an H200. `gate fit --used RUN` shows what it was, --overhead replaces it."""
ENGINE_TOKENS = 16384
"""Of our engine's prefill step, where nobody says."""
VLLM_TOKENS, VLLM_TOKENS_BELOW, VLLM_BELOW_BYTES = 8192, 2048, 70 * GIB
"""Of vLLM's, by the memory of the card (its engine/arg_utils.py, get_batch_defaults; an A100 counts as small). Every
recorded start of 0.25.0 on an H200 logged 8192."""
CACHE_SCALES = (".k_scale", ".v_scale")
ROW_SCALE_BYTES = 4
"""Our engine keeps one fp32 scale per output row of a quantised layer, which makes fusing exact."""


class Limits(Row):
    """What a server is started with."""

    context: int
    """Tokens of one sequence, prompt and output."""
    max_num_seqs: int
    kv_bytes: int
    """Of one number in the KV cache."""
    batched_tokens: int | None = None
    """Of a prefill step; None: the server's own default."""
    overhead_bytes: int = OVERHEAD_BYTES
    memory_bytes: int | None = None
    """Of the card, which vLLM's default step goes by; None: a card of the larger kind."""


class Weights(Row):
    """Of what a text server loads, in bytes."""

    shipped: int
    by_family: dict[str, int]
    row_scales: int
    """Extra in our engine."""
    scales: int = 0
    """Shipped and not kept by our engine, which folds them into its scales per row: of tensors, channels, caches."""
    widened: int = 0
    """Extra in our engine: norms, convolutions and GDN's vectors are fp32 there."""
    scratch: int
    """Largest joined product in the form in which our engine's prefill multiplies it."""
    left_alone: dict[str, int]
    """vision, mtp: in the files, not loaded."""


class Need(Row):
    """Bytes."""

    weights: int
    kv: int
    state: int
    activations: int
    scratch: int
    overhead: int
    block_tokens: int
    """Of a KV block."""
    pool_bytes: int
    """KV and, where one pool holds both, states: what the server's own option would be set to."""

    @property
    def exact(self) -> int:
        return self.weights + self.kv + self.state

    @property
    def total(self) -> int:
        return self.exact + self.activations + self.scratch + self.overhead


def weights(found: Mapping[str, Module]) -> Weights:
    by_family: dict[str, int] = {}
    left_alone: dict[str, int] = {}
    joined: dict[str, int] = {}
    static: set[str] = set()
    rows = scales = widened = 0
    for module in found.values():
        if module.part != "text":
            left_alone[module.part] = left_alone.get(module.part, 0) + module.nbytes
            continue
        by_family[module.family] = by_family.get(module.family, 0) + module.nbytes
        if not module.is_quantised:
            if module.name.endswith(CACHE_SCALES):
                scales += module.nbytes
            elif module.family == "BF16" and (len(module.shape) == 1 or module.name.endswith("conv1d")):
                widened += module.nbytes
            continue
        rows += module.shape[0]
        scales += module.scale_bytes
        parent, _, leaf = module.name.rpartition(".")
        if module.scheme.endswith(", static"):
            static.add(f"{parent}.{GROUPS.get(leaf, leaf)}")
        if leaf != "lm_head" and ".experts." not in module.name:
            group = f"{parent}.{GROUPS.get(leaf, leaf)}"
            size = module.shape[0] * module.shape[-1] * (1 if module.family == "FP8" else ACTIVATION_BYTES)
            joined[group] = joined.get(group, 0) + size
    return Weights(
        shipped=sum(by_family.values()),
        by_family=by_family,
        row_scales=rows * ROW_SCALE_BYTES,
        scales=scales - len(static) * ROW_SCALE_BYTES,  # a joined product has one input scale, and keeps that
        widened=widened,
        scratch=max(joined.values(), default=0),
        left_alone=left_alone,
    )


def step(server: Server, limits: Limits) -> tuple[int, str]:
    """(tokens of a prefill step, who says so)."""
    if limits.batched_tokens is not None:
        return limits.batched_tokens, "as asked"
    if server == "engine":
        return ENGINE_TOKENS, "its default"
    small = limits.memory_bytes is not None and limits.memory_bytes < VLLM_BELOW_BYTES
    tokens, whole = VLLM_TOKENS_BELOW if small else VLLM_TOKENS, limits.max_num_seqs * limits.context
    if whole < tokens:
        return whole, "its default, no more than all sequences hold"
    return tokens, "its default on a smaller card" if small else "its default on an H200"


def need(server: Server, model: Sizes, held: Weights, limits: Limits) -> Need:
    kv, state, block = caches(server, model, limits)
    logits = limits.max_num_seqs * model.vocabulary * (ACTIVATION_BYTES + 4)
    outputs = step(server, limits)[0] * (2 * model.hidden + model.widest) * ACTIVATION_BYTES
    ours = server == "engine"
    table = limits.context * model.rotary * ACTIVATION_BYTES
    return Need(
        weights=held.shipped + (held.row_scales - held.scales + held.widened + table if ours else 0),
        kv=kv,
        state=state,
        activations=outputs + logits,
        scratch=held.scratch if ours else 0,
        overhead=limits.overhead_bytes,
        block_tokens=block,
        pool_bytes=kv if ours else kv + state,
    )


def caches(server: Server, model: Sizes, limits: Limits) -> tuple[int, int, int]:
    """(bytes of KV cache, bytes of states, tokens of a KV block) for max_num_seqs sequences of the whole context."""
    token = model.kv_layer_token_bytes(limits.kv_bytes)
    if server == "engine" or not model.gdn_layers or not model.attention_layers:
        block = ENGINE_BLOCK
        blocks = limits.max_num_seqs * _up(limits.context, block)
        kv = blocks * block * token * model.attention_layers
        return kv, limits.max_num_seqs * model.state_bytes, block
    block = VLLM_STEP * _up(model.state_layer_bytes, VLLM_STEP * token)
    group = min(model.gdn_layers, model.attention_layers)
    page = block * token * group
    kv_pages = limits.max_num_seqs * _up(limits.context, block) * _up(model.attention_layers, group)
    state_pages = limits.max_num_seqs * _up(model.gdn_layers, group) + 1
    return kv_pages * page, state_pages * page, block


def _up(number: int, step: int) -> int:
    """⌈number / step⌉."""
    return -(-number // step)
