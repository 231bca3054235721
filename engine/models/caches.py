"""The two caches of a hybrid model: paged keys and values, and recurrent-state slots. Sizes, layouts, zeroing."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.models.config import TextConfig

CONV_TAPS_KEPT = 3
"""Raw inputs that a convolution of width 4 needs from before the current token."""


@dataclass(frozen=True, slots=True)
class AttentionCache:
    """One layer. k, v: [num_blocks, block_tokens, kv_heads, head_dim], activation dtype or float8_e4m3fn."""

    k: Tensor
    v: Tensor


@dataclass(frozen=True, slots=True)
class GdnCache:
    """One layer. conv: [slots, conv_dim, 3], activation dtype. recurrent: fp32 [slots, Hv, Dv, Dk]."""

    conv: Tensor
    recurrent: Tensor


class Caches:
    """All layers' caches, allocated once; `layers[i]` is what layer i uses."""

    def __init__(
        self,
        config: TextConfig,
        num_blocks: int,
        block_tokens: int,
        slots: int,
        dtype: torch.dtype,
        kv_dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        gdn_layers = config.layer_types.count("linear_attention")
        self.block_tokens = block_tokens
        self.kv = torch.zeros(
            (config.num_hidden_layers - gdn_layers, 2, num_blocks, block_tokens, *kv_heads_shape(config)),
            dtype=kv_dtype,
            device=device,
        )
        self.conv = torch.zeros((gdn_layers, slots, config.conv_dim, CONV_TAPS_KEPT), dtype=dtype, device=device)
        self.recurrent = torch.zeros((gdn_layers, slots, *state_shape(config)), dtype=torch.float32, device=device)
        layers: list[AttentionCache | GdnCache] = []
        for kind in config.layer_types:
            index = sum(isinstance(done, GdnCache) == (kind == "linear_attention") for done in layers)
            if kind == "linear_attention":
                layers.append(GdnCache(self.conv[index], self.recurrent[index]))
            else:
                layers.append(AttentionCache(self.kv[index, 0], self.kv[index, 1]))
        self.layers = tuple(layers)

    def zero_slots(self, slots: Tensor) -> None:
        """Clear conv and recurrent state of every layer for these slots (int64 [n])."""
        self.conv.index_fill_(1, slots, 0)
        self.recurrent.index_fill_(1, slots, 0)

    @property
    def nbytes(self) -> int:
        return self.kv.nbytes + self.conv.nbytes + self.recurrent.nbytes


def kv_heads_shape(config: TextConfig) -> tuple[int, int]:
    """(kv_heads, head_dim)."""
    return config.num_key_value_heads, config.head_dim


def state_shape(config: TextConfig) -> tuple[int, int, int]:
    """(Hv, Dv, Dk)."""
    return config.linear_num_value_heads, config.linear_value_head_dim, config.linear_key_head_dim


def state_slot_bytes(config: TextConfig, dtype: torch.dtype) -> int:
    """Bytes of one sequence's recurrent state over all GDN layers; `dtype` is that of activations."""
    layers = config.layer_types.count("linear_attention")
    return layers * (config.conv_dim * CONV_TAPS_KEPT * dtype.itemsize + 4 * math.prod(state_shape(config)))


def kv_block_bytes(config: TextConfig, block_tokens: int, kv_dtype: torch.dtype) -> int:
    """Bytes of one KV block over all attention layers."""
    heads, head_dim = kv_heads_shape(config)
    layers = config.layer_types.count("full_attention")
    return layers * 2 * block_tokens * heads * head_dim * kv_dtype.itemsize
