"""The contents of a synthetic Qwen3.6-architecture checkpoint: every tensor's name, dtype, shape and bits.

Every weight is a pure function of (seed, tensor name, element index): 64-bit words from splitmix64, whose counter
starts at SHA-256("<seed>/<name>"), used as packed codes, as indices into a table, or four 16-bit halves summed into a
bell curve. Only integer arithmetic and single correctly rounded fp32 operations follow, so a CPU and a GPU write the
same bits. NumPy's Philox was rejected: it has no twin on a CUDA device, and its normal() calls the platform's libm.

Scales follow 1/sqrt(fan_in), residual branches 1/sqrt(2·layers) as in GPT-2, so activations stay near 1 at any depth.
Routers read directions planted in the embedding, so that top-k has a margin that rounding does not cross.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import NormalDist

import torch
from torch import Tensor

DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F8_E4M3": torch.float8_e4m3fn, "U8": torch.uint8}
BLOCK_BYTES = torch.arange(0x6C, 0x7C, dtype=torch.uint8)  # E4M3 96..352, as large as real block scales are
CODE_RMS = math.sqrt(sum(v * v for v in (0, 0.5, 1, 1.5, 2, 3, 4, 6)) / 8)
FP8_TABLE = torch.tensor([NormalDist().inv_cdf((i + 0.5) / 256) * 155 for i in range(256)]).to(torch.float8_e4m3fn)
NORM_AMAX, ATTENTION_AMAX, GATED_AMAX = 8.0, 8.0, 48.0  # clip points of FP8 inputs: a norm's, attention's, GDN's output
FUSED = {"q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "gate_proj": "gate_up", "up_proj": "gate_up",
         "in_proj_qkv": "qkvz", "in_proj_z": "qkvz"}  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """Sizes of one architecture; `experts` 0 means a dense MLP of width `inter`."""

    hidden: int
    layers: int
    vocab: int
    inter: int
    heads: int
    kv_heads: int
    head_dim: int
    key_heads: int
    value_heads: int
    gdn_dim: int
    sections: tuple[int, int, int]
    experts: int = 0
    top_k: int = 0
    vision: tuple[int, int, int] = (2, 128, 256)
    """Depth, width and MLP width of the vision tower."""

    @property
    def value_dim(self) -> int:
        return self.value_heads * self.gdn_dim

    @property
    def conv_dim(self) -> int:
        return 2 * self.key_heads * self.gdn_dim + self.value_dim


TINY = Shape(256, 8, 2003, 512, 4, 2, 64, 2, 6, 64, (3, 3, 2))
SHAPES = {
    "tiny": TINY,
    "tiny-moe": replace(TINY, inter=64, experts=8, top_k=2),
    "27b": Shape(5120, 64, 248320, 17408, 24, 4, 256, 16, 48, 128, (11, 11, 10), vision=(27, 1152, 4304)),
    "35b": Shape(2048, 40, 248320, 512, 16, 2, 256, 16, 32, 128, (11, 11, 10), 256, 8, vision=(27, 1152, 4304)),
}

# --- 1 random words -> tensors ---------------------------------------------------------------------------------------

Fill = Callable[[int, int, int, torch.device], Tensor]
"""(key, first element, count, device) -> the flat values of those elements."""


def words(key: int, start: int, count: int, device: torch.device) -> Tensor:
    """int64 [count]: splitmix64 outputs start..start+count-1 of the stream `key` (wrapping arithmetic)."""

    def shifted(z: Tensor, bits: int) -> Tensor:
        return (z >> bits) & ((1 << (64 - bits)) - 1)  # torch shifts int64 arithmetically; the mask makes it logical

    z = torch.arange(start + 1, start + count + 1, dtype=torch.int64, device=device)
    z = z * signed(0x9E3779B97F4A7C15) + signed(key)
    z = (z ^ shifted(z, 30)) * signed(0xBF58476D1CE4E5B9)
    z = (z ^ shifted(z, 27)) * signed(0x94D049BB133111EB)
    return z ^ shifted(z, 31)


def signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def key_of(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "little")


def unit(key: int) -> float:
    """A number in [0, 1) from the key itself, for single scalars."""
    return (key >> 11) / (1 << 53)


def random_bytes(key: int, start: int, count: int, device: torch.device) -> Tensor:
    return words(key, start // 8, -(-count // 8), device).view(torch.uint8)[:count]  # start is a multiple of 8


def block_scales(key: int, start: int, count: int, device: torch.device) -> Tensor:
    return ((random_bytes(key, start, count, device) & 15) + BLOCK_BYTES[0].item()).view(torch.float8_e4m3fn)


def fp8_normal(key: int, start: int, count: int, device: torch.device) -> Tensor:
    table = FP8_TABLE.view(torch.uint8).to(device)
    return table[random_bytes(key, start, count, device).int()].view(torch.float8_e4m3fn)


def normal(mean: float, std: float) -> Fill:
    """Bell curve, BF16: the sum of four uniform 16-bit integers, within ±3.46 std."""
    unit_std = math.sqrt(4 * (65536**2 - 1) / 12)

    def fill(key: int, start: int, count: int, device: torch.device) -> Tensor:
        halves = words(key, start, count, device).view(torch.int16).reshape(count, 4)
        return ((halves.sum(-1) + 2).float() * (std / unit_std) + mean).bfloat16()

    return fill


def constants(*values: float) -> Fill:
    return lambda _key, start, count, device: torch.tensor(values, device=device)[start : start + count]


def bfloat16(fill: Fill) -> Fill:
    return lambda key, start, count, device: fill(key, start, count, device).bfloat16()


def directions(count: int, hidden: int) -> Tensor:
    """f32 [count, hidden] of ±1: the first rows of the Sylvester-Hadamard matrix, orthogonal for a power of two."""
    bits = torch.arange(count).unsqueeze(1) & torch.arange(hidden).unsqueeze(0)
    parity = sum((bits >> b) & 1 for b in range(hidden.bit_length())) % 2
    return 1.0 - 2.0 * torch.as_tensor(parity).float()


def routed_embedding(s: Shape, noise: Fill) -> Fill:
    """Noise plus, for every token, top_k of the planted directions with strengths 12, 12 - 4/top_k, …"""
    planted, levels = directions(s.experts, s.hidden), 12 - 4 / s.top_k * torch.arange(s.top_k)

    def fill(key: int, start: int, count: int, device: torch.device) -> Tensor:
        rows = count // s.hidden
        draw = words(key ^ 1, start // s.hidden, rows, device).unsqueeze(1)
        step = (draw >> 8 & (s.experts // 2 - 1)) * 2 + 1  # odd, so that the chosen experts are distinct
        chosen = (draw + step * torch.arange(s.top_k, device=device)) & (s.experts - 1)
        strength = torch.zeros(rows, s.experts, device=device).scatter_(1, chosen, levels.to(device).expand(rows, -1))
        signal = strength @ planted.to(device)  # half-integers: exact in any order of summation
        return (noise(key, start, count, device).float() + signal.flatten() * s.hidden**-0.5).bfloat16()

    return fill


def router(s: Shape) -> Fill:
    """BF16 [experts, hidden]: each expert reads one planted direction; which one differs by layer."""

    def fill(key: int, start: int, count: int, device: torch.device) -> Tensor:
        which = (torch.arange(s.experts) * (key >> 8 & (s.experts - 1) | 1) + (key & 0xFF)) & (s.experts - 1)
        rows = directions(s.experts, s.hidden)[which] * s.hidden**-0.5
        return rows.flatten()[start : start + count].to(device).bfloat16()

    return fill


# --- 2 architecture -> tensors ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """One tensor of the checkpoint."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    fill: Fill

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize


@dataclass(frozen=True)
class Module:
    """One linear layer [rows, columns] and how it is stored; `gain` is the RMS of its output for an input of RMS 1."""

    name: str
    rows: int
    columns: int
    scheme: str
    gain: float = 1.0
    amax: float = NORM_AMAX


@dataclass(frozen=True)
class Recipe:
    """What the command line asked for."""

    shape: Shape
    layout: str
    seed: int
    distinct: bool = False
    w4a4: bool = False
    vision: bool = False
    mtp: bool = False
    stored: tuple[tuple[str, str], ...] = ()
    """(pattern, nvfp4 or fp8 or bf16): how modules are stored that it finds, the last of several."""

    def scheme(self, kind: str, layer: int = 0) -> str:
        """nvfp4, fp8, channel (FP8, one scale per output row) or bf16; kinds: mlp, tower, gdn_in (it too), head."""
        if self.layout == "modelopt":
            return "fp8" if kind in ("tower", "gdn_in") else "nvfp4"
        if self.layout == "compressed-tensors-nvfp4":
            return "nvfp4" if kind in ("mlp", "tower") else "bf16"
        if self.layout == "compressed-tensors":  # the last eighth of the MLPs is FP8, as in the published repack
            return "nvfp4" if kind == "mlp" and layer < self.shape.layers * 7 // 8 else "channel"
        return "bf16"


def modules(r: Recipe) -> Iterator[Module]:
    """Every quantisable linear layer, in checkpoint order."""
    for m in layout_modules(r):
        found = [scheme for pattern, scheme in r.stored if re.search(pattern, m.name)]
        scheme = found[-1] if found else m.scheme
        per_row = scheme == "fp8" and r.layout.startswith("compressed-tensors")
        yield replace(m, scheme="channel" if per_row else scheme)


def layout_modules(r: Recipe) -> Iterator[Module]:
    """As the layout has them."""
    s, branch = r.shape, 1 / math.sqrt(2 * r.shape.layers)
    # What the layers add to the residual, beside the token's 1 (1.4 with routing). More context means more of the FP8
    # inputs' rounding too: at 2 two correct engines already differ by 12 % of the logits' spread, at 0.7 by 3 %.
    context = 1.0 if s.experts else 0.7
    for i in range(s.layers):
        root, tower, mlp = f"model.language_model.layers.{i}.", r.scheme("tower"), r.scheme("mlp", i)
        if i % 4 == 3:
            kv = s.kv_heads * s.head_dim
            yield Module(f"{root}self_attn.q_proj", 2 * s.heads * s.head_dim, s.hidden, tower)
            yield Module(f"{root}self_attn.k_proj", kv, s.hidden, tower)
            yield Module(f"{root}self_attn.v_proj", kv, s.hidden, tower)
            o = Module(f"{root}self_attn.o_proj", s.hidden, s.heads * s.head_dim, tower)
            yield replace(o, gain=1.6 * context * branch, amax=ATTENTION_AMAX)
        else:
            yield Module(f"{root}linear_attn.in_proj_qkv", s.conv_dim, s.hidden, r.scheme("gdn_in"))
            yield Module(f"{root}linear_attn.in_proj_z", s.value_dim, s.hidden, r.scheme("gdn_in"))
            out = Module(f"{root}linear_attn.out_proj", s.hidden, s.value_dim, tower)
            yield replace(out, gain=1.6 * context * branch, amax=GATED_AMAX)
        for expert in expert_names(s):
            yield Module(f"{root}mlp.{expert}gate_proj", s.inter, s.hidden, mlp)
            yield Module(f"{root}mlp.{expert}up_proj", s.inter, s.hidden, mlp)
            yield Module(f"{root}mlp.{expert}down_proj", s.hidden, s.inter, mlp, 1.6 * context * branch, GATED_AMAX)
    # The best two of V normals are 1/sqrt(2 ln V) apart on average: this makes the median top-1 margin about 0.4 nats.
    yield Module("lm_head", s.vocab, s.hidden, r.scheme("head"), 0.385 * math.sqrt(2 * math.log(s.vocab)))


def expert_names(s: Shape) -> list[str]:
    return [*(f"experts.{e}." for e in range(s.experts)), "shared_expert."] if s.experts else [""]


def linear(m: Module, r: Recipe) -> Iterator[Entry]:
    """The tensors of one linear layer. Shards that engines fuse share their scales unless --distinct-shard-scales."""
    parent, _, leaf = m.name.rpartition(".")
    group = m.name if r.distinct else f"{parent}.{FUSED.get(leaf, leaf)}"
    jitter = 0.8 + 0.4 * unit(key_of(r.seed, group))  # every module its own scale: a swapped one shows
    rms, n, k = m.gain / math.sqrt(m.columns), m.rows, m.columns
    if m.scheme == "bf16":
        yield Entry(f"{m.name}.weight", "BF16", (n, k), normal(0, rms * jitter))
        return
    if m.scheme == "nvfp4":
        block_rms = BLOCK_BYTES.view(torch.float8_e4m3fn).double().square().mean().sqrt().item()
        scale, activation = rms * jitter / (CODE_RMS * block_rms), m.amax * jitter / 2688
        packed = r.layout.startswith("compressed-tensors")
        yield Entry(f"{m.name}.weight_packed" if packed else f"{m.name}.weight", "U8", (n, k // 2), random_bytes)
        yield Entry(f"{m.name}.weight_scale", "F8_E4M3", (n, k // 16), block_scales)
        if not packed:
            yield Entry(f"{m.name}.weight_scale_2", "F32", (), constants(scale))
            yield Entry(f"{m.name}.input_scale", "F32", (), constants(activation))
            return
        yield Entry(f"{m.name}.weight_global_scale", "F32", (1,), constants(1 / scale))
        if r.w4a4:
            yield Entry(f"{m.name}.input_global_scale", "F32", (1,), constants(1 / activation))
        return
    scale = rms * jitter / FP8_TABLE.double().square().mean().sqrt().item()
    yield Entry(f"{m.name}.weight", "F8_E4M3", (n, k), fp8_normal)
    if m.scheme == "channel":
        yield Entry(f"{m.name}.weight_scale", "BF16", (n, 1), normal(scale, scale * 0.15))
        return
    yield Entry(f"{m.name}.weight_scale", "F32", (), constants(scale))
    yield Entry(f"{m.name}.input_scale", "F32", (), constants(m.amax * jitter / 448))


def plain(name: str, *shape: int, mean: float = 0.0, std: float | None = None) -> Entry:
    """An unquantised BF16 tensor; std defaults to 1/sqrt(fan_in)."""
    return Entry(name, "BF16", shape, normal(mean, shape[-1] ** -0.5 if std is None else std))


def tensors(r: Recipe) -> Iterator[Entry]:
    """Every tensor of the checkpoint."""
    s, text = r.shape, "model.language_model."
    noise = normal(0, 1)
    embedding = routed_embedding(s, noise) if s.experts else noise
    yield Entry(f"{text}embed_tokens.weight", "BF16", (s.vocab, s.hidden), embedding)
    yield plain(f"{text}norm.weight", s.hidden, std=0.1)
    for i in range(s.layers):
        root = f"{text}layers.{i}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield plain(f"{root}{norm}.weight", s.hidden, std=0.1)
        if i % 4 == 3:
            for part in "qk":  # a mean of 1.5 after the 1 + w rule makes attention selective
                yield plain(f"{root}self_attn.{part}_norm.weight", s.head_dim, mean=0.5, std=0.1)
            if r.layout == "modelopt":
                for part in "kv":
                    jitter = 0.8 + 0.4 * unit(key_of(r.seed, f"{root}{part}_scale"))
                    yield Entry(f"{root}self_attn.{part}_proj.{part}_scale", "F32", (), constants(jitter * 8 / 448))
        else:
            gdn, heads = f"{root}linear_attn.", [unit(key_of(r.seed, f"{root}{h}")) for h in range(s.value_heads)]
            steps = [unit(key_of(r.seed, f"{root}dt{h}")) for h in range(s.value_heads)]
            yield Entry(f"{gdn}A_log", "F32", (s.value_heads,), constants(*(math.log(1 + 15 * u) for u in heads)))
            dt = (math.log(math.expm1(0.001 * 100**u)) for u in steps)  # softplus(dt_bias) is log-uniform 0.001..0.1
            yield Entry(f"{gdn}dt_bias", "BF16", (s.value_heads,), bfloat16(constants(*dt)))
            yield plain(f"{gdn}conv1d.weight", s.conv_dim, 1, 4)
            yield plain(f"{gdn}in_proj_a.weight", s.value_heads, s.hidden)
            yield plain(f"{gdn}in_proj_b.weight", s.value_heads, s.hidden)
            yield plain(f"{gdn}norm.weight", s.gdn_dim, mean=1.0, std=0.1)
        if s.experts:
            yield Entry(f"{root}mlp.gate.weight", "BF16", (s.experts, s.hidden), router(s))
            yield plain(f"{root}mlp.shared_expert_gate.weight", 1, s.hidden)
    stacked = s.experts > 0 and r.layout == "bf16"  # as unquantised MoE checkpoints are published
    for m in modules(r):
        if not (stacked and ".experts." in m.name):
            yield from linear(m, r)
    for i in range(s.layers if stacked else 0):
        experts, branch = f"{text}layers.{i}.mlp.experts.", 1.6 / math.sqrt(2 * s.layers)
        yield plain(f"{experts}gate_up_proj", s.experts, 2 * s.inter, s.hidden)
        yield plain(f"{experts}down_proj", s.experts, s.hidden, s.inter, std=branch * s.inter**-0.5)
    yield from vision_tensors(s) if r.vision else ()
    yield from mtp_tensors(s) if r.mtp else ()


def vision_tensors(s: Shape) -> Iterator[Entry]:
    """The vision tower: present in published files, skipped by a text server."""
    depth, width, inter = s.vision
    root = "model.visual."

    def affine(name: str, n: int, k: int) -> Iterator[Entry]:
        yield plain(f"{root}{name}.weight", n, k)
        yield plain(f"{root}{name}.bias", n, std=0.02)

    def layer_norm(name: str) -> Iterator[Entry]:
        yield plain(f"{root}{name}.weight", width, mean=1.0, std=0.1)
        yield plain(f"{root}{name}.bias", width, std=0.02)

    yield plain(f"{root}patch_embed.proj.weight", width, 3, 2, 16, 16, std=0.03)
    yield plain(f"{root}patch_embed.proj.bias", width, std=0.02)
    yield plain(f"{root}pos_embed.weight", 2304, width)
    for i in range(depth):
        yield from layer_norm(f"blocks.{i}.norm1")
        yield from layer_norm(f"blocks.{i}.norm2")
        yield from affine(f"blocks.{i}.attn.qkv", 3 * width, width)
        yield from affine(f"blocks.{i}.attn.proj", width, width)
        yield from affine(f"blocks.{i}.mlp.linear_fc1", inter, width)
        yield from affine(f"blocks.{i}.mlp.linear_fc2", width, inter)
    yield from layer_norm("merger.norm")
    yield from affine("merger.linear_fc1", 4 * width, 4 * width)
    yield from affine("merger.linear_fc2", s.hidden, 4 * width)


def mtp_tensors(s: Shape) -> Iterator[Entry]:
    """The multi-token-prediction layer, BF16, experts stacked as published."""
    layer, kv = "mtp.layers.0.", s.kv_heads * s.head_dim
    yield plain("mtp.fc.weight", s.hidden, 2 * s.hidden)
    for norm in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "layers.0.input_layernorm",
                 "layers.0.post_attention_layernorm"):  # fmt: skip
        yield plain(f"mtp.{norm}.weight", s.hidden, std=0.1)
    yield plain(f"{layer}self_attn.q_proj.weight", 2 * s.heads * s.head_dim, s.hidden)
    yield plain(f"{layer}self_attn.k_proj.weight", kv, s.hidden)
    yield plain(f"{layer}self_attn.v_proj.weight", kv, s.hidden)
    yield plain(f"{layer}self_attn.o_proj.weight", s.hidden, s.heads * s.head_dim)
    yield plain(f"{layer}self_attn.q_norm.weight", s.head_dim, std=0.1)
    yield plain(f"{layer}self_attn.k_norm.weight", s.head_dim, std=0.1)
    if s.experts:
        yield plain(f"{layer}mlp.gate.weight", s.experts, s.hidden)
        yield plain(f"{layer}mlp.shared_expert_gate.weight", 1, s.hidden)
        yield plain(f"{layer}mlp.experts.gate_up_proj", s.experts, 2 * s.inter, s.hidden)
        yield plain(f"{layer}mlp.experts.down_proj", s.experts, s.hidden, s.inter)
    shared = "shared_expert." if s.experts else ""
    yield plain(f"{layer}mlp.{shared}gate_proj.weight", s.inter, s.hidden)
    yield plain(f"{layer}mlp.{shared}up_proj.weight", s.inter, s.hidden)
    yield plain(f"{layer}mlp.{shared}down_proj.weight", s.hidden, s.inter)
