"""TextConfig: what config.json says of the text model, validated; under a vision wrapper or on its own.

Field names are Hugging Face's. What would change the computation and is not implemented here (another activation,
biases, scaled rope, tokens routed without renormalising) is refused by name: ignoring it would give plausible nonsense.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from engine.weights.errors import CheckpointError

ARCHITECTURES = {
    "Qwen3_5ForConditionalGeneration": "dense",
    "Qwen3_5ForCausalLM": "dense",
    "Qwen3_5MoeForConditionalGeneration": "moe",
    "Qwen3_5MoeForCausalLM": "moe",
}

LayerType = Literal["linear_attention", "full_attention"]
Positive = Annotated[int, Field(gt=0, lt=2**31)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]

MAX_LAYERS = 4096
"""More than any model has: a config.json is untrusted, and what follows is sized by it."""

AGAIN = "download it again"
OTHER = "this engine has no other, use a checkpoint that has it"


def _shown(value: object) -> str:
    """For one line: the value is untrusted."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"


def _ids(value: object) -> object:
    """eos_token_id is null, one id, or a list of ids."""
    return [] if value is None else value if isinstance(value, list) else [value]


class TextConfig(BaseModel):
    """One text model. Sizes are in elements; `num_experts` 0 means a dense MLP."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, allow_inf_nan=False)

    vocab_size: Positive
    hidden_size: Positive
    num_hidden_layers: Annotated[int, Field(gt=0, le=MAX_LAYERS)]
    layer_types: Annotated[tuple[LayerType, ...], Field(strict=False)]
    rms_norm_eps: Annotated[float, Field(gt=0)] = 1e-6
    max_position_embeddings: Positive = 262144
    tie_word_embeddings: bool = False
    dtype: str = "bfloat16"
    eos_token_ids: Annotated[tuple[TokenId, ...], Field(strict=False, alias="eos_token_id"), BeforeValidator(_ids)] = ()
    """Ids that end a sequence: config.json's, then those generation_config.json adds."""

    num_attention_heads: Positive
    num_key_value_heads: Positive
    head_dim: Positive
    rope_theta: Annotated[float, Field(gt=0)]
    partial_rotary_factor: Annotated[float, Field(gt=0, le=1)] = 1.0
    mrope_section: Annotated[tuple[int, ...], Field(strict=False)] = ()
    """Frequencies per position stream (time, height, width). All streams are equal for text."""

    linear_num_key_heads: Positive
    linear_num_value_heads: Positive
    linear_key_head_dim: Positive
    linear_value_head_dim: Positive
    linear_conv_kernel_dim: Literal[4] = 4

    intermediate_size: int = 0
    num_experts: Annotated[int, Field(ge=0)] = 0
    num_experts_per_tok: Annotated[int, Field(ge=0)] = 0
    moe_intermediate_size: Annotated[int, Field(ge=0)] = 0
    shared_expert_intermediate_size: Annotated[int, Field(ge=0)] = 0

    # Only the one value that is implemented; anything else is an error that names the key.
    hidden_act: Literal["silu"] = "silu"
    attention_bias: Literal[False] = False
    attn_output_gate: Literal[True] = True
    norm_topk_prob: Literal[True] = True
    rope_type: Literal["default"] = "default"
    mamba_ssm_dtype: Literal["float32"] = "float32"

    @property
    def is_moe(self) -> bool:
        return self.num_experts > 0

    @property
    def rotary_dim(self) -> int:
        """Leading dimensions of each head that rotate; the rest pass through."""
        return int(self.head_dim * self.partial_rotary_factor)

    @property
    def key_dim(self) -> int:
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def value_dim(self) -> int:
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def conv_dim(self) -> int:
        """Channels of the GDN convolution: q, k and v of all heads."""
        return 2 * self.key_dim + self.value_dim

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        def need(holds: bool, message: str) -> None:
            if not holds:
                raise ValueError(message)

        need(
            len(self.layer_types) == self.num_hidden_layers,
            f"found {len(self.layer_types)} layer_types, expected num_hidden_layers = {self.num_hidden_layers} of them",
        )
        for many, few in (
            ("num_attention_heads", "num_key_value_heads"),
            ("linear_num_value_heads", "linear_num_key_heads"),
        ):
            a, b = getattr(self, many), getattr(self, few)
            need(a % b == 0, f"found {many} = {a}, expected a multiple of {few} = {b}")
        need(
            self.rotary_dim > 0 and self.rotary_dim % 2 == 0,
            f"found head_dim = {self.head_dim} and partial_rotary_factor = {self.partial_rotary_factor}, of which "
            f"{self.rotary_dim} dimensions rotate, expected an even number above 0",
        )
        need(
            not self.mrope_section or sum(self.mrope_section) == self.rotary_dim // 2,
            f"found mrope_section = {_shown(list(self.mrope_section))}, expected a sum of {self.rotary_dim // 2}, half "
            "of the dimensions that rotate",
        )
        if self.is_moe:
            need(
                0 < self.num_experts_per_tok <= self.num_experts,
                f"found num_experts_per_tok = {self.num_experts_per_tok}, "
                f"expected 1 to num_experts = {self.num_experts}",
            )
        moe = ("moe_intermediate_size", "shared_expert_intermediate_size")
        for key in moe if self.is_moe else ("intermediate_size",):
            found = f"{key} = {getattr(self, key)}" if key in self.model_fields_set else f"no {key}"
            need(getattr(self, key) > 0, f"found {found}, expected more than 0")
        return self


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises CheckpointError where the file is missing, unreadable, not JSON, or something else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: not found; expected a Hugging Face checkpoint folder, download one") from None
    except OSError as error:
        raise CheckpointError(
            f"{path}: found what cannot be read ({error.strerror}), expected a JSON file; make it readable"
        ) from None
    except (ValueError, RecursionError) as error:  # no JSON, no UTF-8, or a number of more digits than Python reads
        raise CheckpointError(f"{path}: found what is not JSON ({error}), expected an object; {AGAIN}") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: found a JSON {type(content).__name__}, expected an object; {AGAIN}")
    return content


def load_text_config(path: Path) -> TextConfig:
    """Read the folder's config.json and generation_config.json. Raises CheckpointError naming the key."""
    file = path / "config.json"
    config = read_json(file)
    kind = _kind(file, config)
    text = config.get("text_config", config)
    if not isinstance(text, dict):
        raise CheckpointError(f"{file}: found text_config = {_shown(text)}, expected an object; {AGAIN}")
    flat = _flatten_rope(file, text)
    flat.setdefault("tie_word_embeddings", config.get("tie_word_embeddings", False))
    flat.setdefault("layer_types", _layer_types(file, flat))
    if kind == "dense":
        flat["num_experts"] = 0
    try:
        parsed = TextConfig.model_validate(flat)
    except ValidationError as error:
        raise CheckpointError(f"{file}: {_wrong(error.errors()[0])}") from None
    if kind == "moe" and not parsed.is_moe:
        raise CheckpointError(
            f"{file}: found architecture {_name(config)} without num_experts, expected more than 0; {AGAIN}"
        )
    return parsed.model_copy(update={"eos_token_ids": _all_eos_ids(path, parsed)})


def _wrong(first: Mapping[str, Any]) -> str:
    """pydantic's first error -> found, expected, what to do."""
    key, kind, message = ".".join(str(part) for part in first["loc"]), first["type"], str(first["msg"])
    if kind == "missing":
        return f"found no {key}, expected one; {AGAIN}"
    if not key:
        return f"{message.removeprefix('Value error, ')}; {AGAIN}"
    expected = message.removeprefix("Input should be ")
    expected = f"a number {expected}" if expected.startswith(("greater", "less")) else expected
    remedy = OTHER if kind == "literal_error" else AGAIN
    return f"found {key} = {_shown(first['input'])}, expected {expected}; {remedy}"


def _name(config: dict[str, Any]) -> object:
    names = config.get("architectures")
    return names[0] if isinstance(names, list) and names else names


def _kind(file: Path, config: dict[str, Any]) -> str:
    name = _name(config)
    if not isinstance(name, str) or name not in ARCHITECTURES:
        found, expected = _shown(config.get("architectures")), " or ".join(ARCHITECTURES)
        raise CheckpointError(
            f"{file}: found architectures = {found}, expected {expected}; use a checkpoint of one of these"
        )
    return ARCHITECTURES[name]


def _flatten_rope(file: Path, text: dict[str, Any]) -> dict[str, Any]:
    """Rope settings stand in rope_parameters today, and stood in rope_scaling and beside it before."""
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        key = "rope_parameters" if text.get("rope_parameters") else "rope_scaling"
        raise CheckpointError(f"{file}: found {key} = {_shown(rope)}, expected an object; {AGAIN}")
    return {**text, **rope, "rope_type": rope.get("rope_type", rope.get("type", "default"))}


def _layer_types(file: Path, text: dict[str, Any]) -> list[str]:
    """Where they are not listed: attention in every full_attention_interval-th layer."""
    layers, every = text.get("num_hidden_layers"), text.get("full_attention_interval", 4)
    for key, value in (("num_hidden_layers", layers), ("full_attention_interval", every)):
        if type(value) is not int or not 0 < value <= MAX_LAYERS:
            raise CheckpointError(f"{file}: found {key} = {_shown(value)}, expected 1 to {MAX_LAYERS}; {AGAIN}")
    return ["full_attention" if (i + 1) % every == 0 else "linear_attention" for i in range(layers or 0)]


def _all_eos_ids(path: Path, config: TextConfig) -> tuple[int, ...]:
    file = path / "generation_config.json"
    extra = _ids(read_json(file).get("eos_token_id")) if file.is_file() else []
    if not isinstance(extra, list) or not all(type(i) is int and 0 <= i < 2**31 for i in extra):
        raise CheckpointError(
            f"{file}: found eos_token_id = {_shown(extra)}, expected an id of 0 to 2^31 - 1 or a list of them; {AGAIN}"
        )
    return tuple(dict.fromkeys((*config.eos_token_ids, *extra)))
