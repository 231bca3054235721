"""The model on CUDA: qwen3_5.py's mathematics, of nvidia's layout of the dense one in seven launches a layer.

    add + norm + quantise (+ b, a) | qkvz | GDN step | out_proj | add + norm | gate_up + SwiGLU | down
    add + norm + quantise | qkv | attention from q/k norm to gate | o_proj | add + norm | gate_up + SwiGLU | down

A projection in bfloat16 is a library's product in the place of a launch, and projections of one input that are stored
in several schemes are several products (ops/linear/cuda).

`obstacle` says, before anything is read, why a checkpoint cannot run this way.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine import ranges
from engine.kernels.skinny import MAX_TOKENS
from engine.models.caches import AttentionCache, Caches, GdnCache
from engine.models.config import TextConfig
from engine.models.fused_layers import MLP, Attention, GatedDeltaNet, Norm, Space, Stream, asked
from engine.models.fused_moe import SparseMoeBlock
from engine.models.layers import Source
from engine.models.side_streams import SideStreams
from engine.models.step import Step
from engine.ops import rope
from engine.ops.attention import cuda as attention_cuda
from engine.ops.linear.cuda import Scratch, pack, project, project_argmax
from engine.ops.moe.cuda import MAX_EXPERTS, MAX_SLOTS
from engine.ops.norm.cuda import MAX_WIDTH
from engine.ops.rope.cuda import HEAD_DIM, ROTARY_DIM
from engine.ops.sample.cuda import ArgmaxWorkspace
from engine.ops.w4a16.pack import UNIT_K as W4A16_K
from engine.ops.w8a8.pack import UNIT_K as W8A8_K
from engine.weights.loader import ModelWeights
from engine.weights.quantization import Scheme

NVFP4 = (Scheme.NVFP4, Scheme.NVFP4_PACKED)
FP8 = (Scheme.FP8_STATIC, Scheme.FP8_DYNAMIC)
MULTIPLES = {**dict.fromkeys(NVFP4, W4A16_K), **dict.fromkeys(FP8, W8A8_K)}
"""Of a row, in columns: what a unit holds."""


class DecoderLayer:
    """Mixer, then feed-forward, each behind its norm."""

    def __init__(self, source: Source, index: int, embedding: Tensor) -> None:
        name = f"layers.{index}"
        self.input_layernorm = Norm(source, f"{name}.input_layernorm", embedding if index == 0 else None)
        if source.config.layer_types[index] == "linear_attention":
            self.linear_attn = GatedDeltaNet(source, f"{name}.linear_attn")
        else:
            self.self_attn = Attention(source, f"{name}.self_attn")
        self.post_attention_layernorm = Norm(source, f"{name}.post_attention_layernorm")
        self.mlp: MLP | SparseMoeBlock = (SparseMoeBlock if source.config.is_moe else MLP)(source, f"{name}.mlp")

    def __call__(self, stream: Stream, step: Step, cache: AttentionCache | GdnCache, space: Space) -> None:
        match cache:
            case GdnCache():
                self.linear_attn(self.input_layernorm, stream, step, cache, space)
            case AttentionCache():
                self.self_attn(self.input_layernorm, stream, step, cache, space)
        self.mlp(self.post_attention_layernorm, stream, space)


class FusedForCausalLM:
    """The text model. Tensors that the checkpoint ships are resident once, packed; `space` is what comes on top."""

    def __init__(self, source: Source, max_positions: int, max_sequences: int) -> None:
        """Positions up to max_positions - 1 and max_sequences decoding ones can be run."""
        config = source.config
        self.dtype = source.dtype
        self.embed_tokens = source.weights.tensor("embed_tokens.weight")
        device = self.embed_tokens.device
        self.layers = [DecoderLayer(source, i, self.embed_tokens) for i in range(config.num_hidden_layers)]
        self.grouped = ranges.grouped()
        self.norm = Norm(source, "norm")
        self.lm_head = pack(source.weights.linear("lm_head"))
        table = rope.table(max_positions, config.rotary_dim, config.rope_theta, source.dtype)
        self.space = Space(
            scratch=Scratch(max(_scratch_bytes(layer) for layer in self.layers), device),
            attention=attention_cuda.workspace(max_sequences, config.num_key_value_heads, device),
            gdn_readers=torch.zeros(max_sequences * config.linear_num_key_heads, dtype=torch.int32, device=device),
            cos_sin=table.to(device),
            arrived=torch.zeros(1, dtype=torch.int32, device=device),
            side=SideStreams(device),
        )

    def forward(self, step: Step, caches: Caches) -> Tensor:
        """Run the step's tokens and update the caches -> hidden states after the final norm, [tokens, hidden]."""
        stream = Stream(step.token_ids, live=step.live)
        for layer, cache in self.grouped(zip(self.layers, caches.layers, strict=True)):
            layer(stream, step, cache, self.space)
        return asked(self.norm.add(stream).out)

    def head(self, hidden: Tensor) -> Tensor:
        """bf16 [rows, hidden], at most 32 rows -> bf16 [rows, vocab_size]."""
        return project(hidden, self.lm_head, self.space.scratch)

    def greedy(self, hidden: Tensor, ids: Tensor, space: ArgmaxWorkspace) -> Tensor:
        """`head`, and the most probable id of each row in `ids`, int64 [rows]."""
        return project_argmax(hidden, self.lm_head, self.space.scratch, ids, space)

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] -> fp32 [rows, vocab_size]: bfloat16 logits, as in ops/lm_head."""
        return torch.cat([self.head(rows.contiguous()).float() for rows in torch.split(hidden, MAX_TOKENS)])


def _scratch_bytes(layer: DecoderLayer) -> int:
    """lm_head is left out: it never sees more rows at once than the streaming kernel takes."""
    if hasattr(layer, "self_attn"):
        packed = (*layer.mlp.packed, layer.self_attn.qkv_proj, layer.self_attn.o_proj)
    else:
        packed = (*layer.mlp.packed, layer.linear_attn.in_proj_qkvz, layer.linear_attn.out_proj)
    return max(weight.scratch_bytes for weight in packed)


def obstacle(weights: ModelWeights, config: TextConfig, dtype: torch.dtype) -> str | None:
    """The first thing that the kernels do not take, for a message; None where there is none."""
    if dtype != torch.bfloat16:
        return f"{str(dtype).removeprefix('torch.')} activations (bfloat16 is)"
    if config.tie_word_embeddings:
        return "an lm_head that is the embedding (one of its own is)"
    group = config.num_attention_heads // config.num_key_value_heads
    sizes = {
        "hidden_size": (config.hidden_size, config.hidden_size % 256 == 0 and config.hidden_size <= MAX_WIDTH),
        **_feed_forward_sizes(config),
        "vocab_size": (config.vocab_size, config.vocab_size % 16 == 0),
        "head_dim": (config.head_dim, config.head_dim == HEAD_DIM),
        "rotary dimension": (config.rotary_dim, config.rotary_dim == ROTARY_DIM),
        "query heads per KV head": (group, group <= attention_cuda.GROUP),
        "linear_key_head_dim": (config.linear_key_head_dim, config.linear_key_head_dim == 128),
        "linear_value_head_dim": (config.linear_value_head_dim, config.linear_value_head_dim == 128),
    }
    for name, (value, fits) in sizes.items():
        if not fits:
            return f"{name} = {value}"
    for name, scheme in weights.schemes.items():
        leaf = name.rpartition(".")[2]
        wanted: tuple[Scheme, ...]
        if leaf in ("in_proj_b", "in_proj_a", "gate", "shared_expert_gate"):
            wanted = (Scheme.NONE,)
        elif "expert" in name:  # one product of all experts of a layer, the shared one too
            first = f"{name.partition('.mlp.')[0]}.mlp.experts.0.{leaf.replace('up_proj', 'gate_proj')}"
            wanted = (*NVFP4, *FP8)
            if scheme in wanted and scheme is not weights.schemes[first]:
                return f"{name} in {scheme.name} ({weights.schemes[first].name}, as {first}, is)"
        else:
            wanted = (*NVFP4, *FP8, Scheme.NONE)
        if scheme not in wanted:
            return f"{name} in {scheme.name} ({' or '.join(s.name for s in wanted)} is)"
        if scheme is Scheme.NONE and weights.checkpoint.tensors[f"{name}.weight"].dtype != "BF16":
            return f"{name} in {weights.checkpoint.tensors[f'{name}.weight'].dtype} (BF16 is)"
        columns, multiple = weights.linears[name][1], MULTIPLES.get(scheme, 1)
        if columns % multiple:
            return f"{name} in {scheme.name} with {columns} columns (a multiple of {multiple} is)"
    return None


def _feed_forward_sizes(config: TextConfig) -> dict[str, tuple[int, bool]]:
    """name -> (what the checkpoint has, whether the kernels take it)."""
    if not config.is_moe:
        return {"intermediate_size": (config.intermediate_size, config.intermediate_size % 256 == 0)}
    inter, shared, top_k = (
        config.moe_intermediate_size,
        config.shared_expert_intermediate_size,
        config.num_experts_per_tok,
    )
    return {
        "moe_intermediate_size": (inter, inter % 256 == 0),
        "shared_expert_intermediate_size": (shared, shared == inter),
        "num_experts": (config.num_experts, config.num_experts <= MAX_EXPERTS),
        "num_experts_per_tok": (top_k, top_k < MAX_SLOTS),
    }
