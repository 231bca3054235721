"""2 The sizes that decide memory, from a hybrid or an attention-only model's config.json. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gate.errors import CheckpointError
from gate.headers.read import Headers
from gate.observe.rows import Row

STATE_BYTES, ACTIVATION_BYTES = 4, 2
"""A number of recurrent state is fp32 in both servers (--mamba-ssm-cache-dtype float32), one of activations BF16."""
KV_BYTES = {"bfloat16": 2, "fp8": 1}
MOST, MOST_LAYERS = 2**40, 4096
"""More than any model has: a config.json is untrusted, and sums and lists are sized by it."""
EXPERTS, SHARED = ("num_experts", "num_local_experts", "n_routed_experts"), "shared_expert_intermediate_size"
OTHER_CACHES = {
    "kv_lora_rank": "keys and values are stored as a latent of another size",
    "is_encoder_decoder": "there is a cache of the encoder too",
    "hybrid_override_pattern": "its layers keep states of another kind",
    "layers_block_type": "its layers keep states of another kind",
    "attn_layer_period": "its layers keep states of another kind",
    "ssm_cfg": "its layers keep states of another kind",
    "attention_chunk_size": "its caches end at a chunk",
    "num_kv_shared_layers": "layers share their caches",
    "cross_attention_layers": "there is a cache of images too",
}
"""Keys of config.json, not null or 0, with which the formulas of need.py give a wrong number."""


class Sizes(Row):
    """Counts of elements, none of bytes."""

    hidden: int
    vocabulary: int
    max_context: int
    """max_position_embeddings."""
    attention_layers: int
    kv_heads: int
    head_dim: int
    gdn_layers: int = 0
    conv_kept: int = 0
    """Channels × taps that a convolution keeps of the past, one layer, one sequence."""
    state: int = 0
    """Hv × Dv × Dk, one layer, one sequence."""
    rotary: int = 0
    """Dimensions of a head that rotate: our engine holds their cosines and sines of every position."""
    widest: int
    """Outputs of one token alive at once in the layer that has most of them, beside the residual stream."""

    def kv_token_bytes(self, kv_bytes: int) -> int:
        """Keys and values of one token over all attention layers; kv_bytes: of one number."""
        return self.attention_layers * self.kv_layer_token_bytes(kv_bytes)

    def kv_layer_token_bytes(self, kv_bytes: int) -> int:
        return 2 * self.kv_heads * self.head_dim * kv_bytes

    @property
    def state_layer_bytes(self) -> int:
        """Recurrent and convolution state of one sequence in one layer."""
        return self.conv_kept * ACTIVATION_BYTES + self.state * STATE_BYTES

    @property
    def state_bytes(self) -> int:
        """The same over all layers: what a state slot holds."""
        return self.gdn_layers * self.state_layer_bytes


def sizes(headers: Headers) -> Sizes:
    """Raises CheckpointError where config.json lacks a size, or has a kind of layer whose memory is not known here."""
    text = headers.text
    _of_a_known_kind(headers.config)
    _of_a_known_kind(text)
    layers = _count(text, "num_hidden_layers", most=MOST_LAYERS)
    hidden, heads = (_count(text, name) for name in ("hidden_size", "num_attention_heads"))
    kinds = _kinds(text, layers)
    kv_heads = _count(text, "num_key_value_heads", heads)
    head_dim = _count(text, "head_dim", hidden // heads)
    query = heads * head_dim * (2 if text.get("attn_output_gate") else 1)
    widths = [query + 2 * kv_heads * head_dim + heads * head_dim, _feed_forward(text, hidden)]
    gdn: dict[str, int] = {}
    if linear := kinds.count("linear_attention"):
        names = ("linear_num_key_heads", "linear_key_head_dim", "linear_num_value_heads", "linear_value_head_dim")
        hk, dk, hv, dv = (_count(text, name) for name in names)
        conv, value = 2 * hk * dk + hv * dv, hv * dv
        kept = _count(text, "linear_conv_kernel_dim") - 1
        gdn = {"gdn_layers": linear, "conv_kept": conv * kept, "state": hv * dv * dk}
        # Before and after the convolution; z, u, v of a chunk, its output; w, per value head; a state every 64 tokens.
        widths.append(2 * conv + 4 * value + hv * dk + hv * dv * dk // 64)
    return Sizes(
        hidden=hidden,
        vocabulary=_count(text, "vocab_size"),
        max_context=_count(text, "max_position_embeddings"),
        attention_layers=kinds.count("full_attention"),
        kv_heads=kv_heads,
        head_dim=head_dim,
        rotary=_rotary(text, head_dim),
        widest=max(widths),
        **gdn,
    )


def asked_kv_dtype(headers: Headers) -> tuple[str, str]:
    """(what `auto` comes to in both servers: bfloat16 or fp8; why, with what the two files say differently)."""
    told = _is_fp8(headers.quantization)
    source = "config.json" if headers.declared else "hf_quant_config.json" if headers.legacy else ""
    why = f"auto: {source} asks for {'fp8' if told else 'no KV scheme'}"
    if not source:
        why = "auto: no configuration asks for a KV scheme"
    if headers.declared and headers.legacy and _is_fp8(headers.legacy) != told:
        why += f"; hf_quant_config.json says {'fp8' if not told else 'none'}, and config.json wins"
    return ("fp8" if told else "bfloat16"), why


def other_kv_scheme(headers: Headers) -> str | None:
    """What the configuration that decides asks for, where that is neither fp8 nor nothing: its size is not known."""
    section = headers.quantization
    told = [section.get(key) for key in ("kv_cache_scheme", "kv_cache_quant_algo")]
    return None if _is_fp8(section) else next((str(one) for one in told if one), None)


def _is_fp8(section: Mapping[str, Any]) -> bool:
    scheme = section.get("kv_cache_scheme")
    return (isinstance(scheme, dict) and scheme.get("num_bits") == 8) or section.get("kv_cache_quant_algo") == "FP8"


def _rotary(text: Mapping[str, Any], head_dim: int) -> int:
    rope = text.get("rope_parameters") or text.get("rope_scaling")
    told = (rope.get("partial_rotary_factor") if isinstance(rope, dict) else None) or text.get("partial_rotary_factor")
    factor = 1.0 if told is None else told
    if not isinstance(factor, int | float) or not 0 < factor <= 1:
        raise CheckpointError(
            f"config.json has partial_rotary_factor = {factor!r:.60}", expected="more than 0, at most 1"
        )
    return int(head_dim * factor)


def _of_a_known_kind(section: Mapping[str, Any]) -> None:
    for name, what in OTHER_CACHES.items():
        if section.get(name):
            raise CheckpointError(
                f"config.json has {name}: {what}",
                expected="attention over all keys and values, with or without GDN layers",
                hint="measure a start instead: gate run",
            )
    window, longest = section.get("sliding_window"), section.get("max_position_embeddings")
    if isinstance(window, int) and isinstance(longest, int) and window >= longest:
        return
    # Where the layers are listed, the list says which of them have a window; transformers' own default is no window.
    if window and section.get("use_sliding_window", True) and section.get("layer_types") is None:
        raise CheckpointError(
            f"config.json has sliding_window = {window!r}, and a cache that ends there",
            expected="attention over all keys and values",
            hint="measure a start instead: gate run",
        )


def _kinds(text: Mapping[str, Any], layers: int) -> list[str]:
    listed = text.get("layer_types")
    if listed is None:
        # Qwen3.5's own default, where its GDN layers are there and the interval is left out.
        every = 4 if text.get("linear_num_key_heads") is not None else 1
        every = _count(text, "full_attention_interval", every)
        listed = ["full_attention" if i % every == every - 1 else "linear_attention" for i in range(layers)]
    if not isinstance(listed, list) or len(listed) != layers:
        raise CheckpointError("config.json's layer_types", expected=f"{layers} kinds, as num_hidden_layers says")
    if other := sorted({str(kind) for kind in listed} - {"full_attention", "linear_attention"}):
        raise CheckpointError(
            f"config.json has layers of {other[0]}",
            expected="full_attention and linear_attention, whose memory is known",
            hint="measure a start instead: gate run",
        )
    return [str(kind) for kind in listed]


def _feed_forward(text: Mapping[str, Any], hidden: int) -> int:
    """gate, up and their product; of a mixture the same for each chosen expert, whose output waits for the sum."""
    experts = next((name for name in EXPERTS if text.get(name)), None)
    if experts is None:
        return 3 * _count(text, "intermediate_size")
    inter = _count(text, "moe_intermediate_size" if text.get("moe_intermediate_size") else "intermediate_size")
    shared = _count(text, SHARED) if text.get(SHARED) else 0
    return _count(text, "num_experts_per_tok") * (3 * inter + hidden) + 3 * shared + _count(text, experts)


def _count(text: Mapping[str, Any], name: str, default: int | None = None, most: int = MOST) -> int:
    """null is left out, as transformers writes it."""
    value = default if (told := text.get(name)) is None else told
    if type(value) is not int or not 1 <= value <= most:
        shown = (
            f"{value!r:.60}" if not isinstance(value, int) or abs(value) < MOST**2 else "more digits than a size has"
        )
        raise CheckpointError(
            f"config.json has {name} = {shown}",
            expected="a number of 1 or more" if type(value) is not int or value < 1 else f"at most {most}",
        )
    return value
