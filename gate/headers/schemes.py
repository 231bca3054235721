"""3 How each module is stored: by what its tensors are, beside what the configuration says of it. Pure.

The headers decide, as bytes cannot lie about their dtype. What they do not hold, the width of activations, comes from
the configuration; a module whose configuration says another format than its tensors have is a contradiction.
"""

from __future__ import annotations

import functools
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gate.errors import CheckpointError
from gate.headers.read import Headers, Part, Tensor, canonical, part_of, table

FIELDS = frozenset(
    {
        *("weight", "weight_packed", "weight_shape", "weight_zero_point", "bias"),
        *("weight_scale", "weight_scale_2", "weight_scale_inv", "weight_global_scale"),
        *("input_scale", "input_global_scale"),
    }
)
"""Tensors that belong to the module before the last dot; any other tensor is a module of its own."""
QUANTISED = ("NVFP4", "MXFP4", "FP8")
MODELOPT = {
    "W4A16_NVFP4": ("NVFP4", 16),
    "NVFP4": ("NVFP4", 4),
    "FP8": ("FP8", 8),
    "FP8_PER_CHANNEL_PER_TOKEN": ("FP8", 8),
}
"""quant_algo -> (format of weights, bits of activations)."""


@dataclass(frozen=True, slots=True)
class Declared:
    """What the configuration says of a module."""

    family: str
    """NVFP4, FP8, another algorithm's own name, or "" where it says that the module is left alone."""
    activation_bits: int | None = None


@dataclass(frozen=True, slots=True)
class Module:
    name: str
    """Canonical: layers.3.mlp.gate_proj."""
    part: Part
    family: str
    """NVFP4, MXFP4, FP8, or the dtype of what is not quantised: BF16, F32 …"""
    scheme: str
    """`NVFP4 W4A16 group 16`, `FP8 W8A8 per tensor, static`, `BF16`."""
    shape: tuple[int, ...]
    """Of the weight as it is multiplied, not as it is packed."""
    nbytes: int
    """Scales included."""
    scale_bytes: int = field(default=0, kw_only=True)
    """Of a quantised module: what is neither its weight nor a scale per block."""
    declared: Declared | None
    """None where the checkpoint has no configuration of quantisation."""

    @property
    def contradiction(self) -> str:
        """Empty where configuration and headers agree, or the former is silent."""
        if self.declared is None or self.declared.family == (self.family if self.is_quantised else ""):
            return ""
        return f"configuration says {self.declared.family or 'unquantised'}, headers hold {self.family}"

    @property
    def is_quantised(self) -> bool:
        return self.family in QUANTISED


def modules(headers: Headers) -> dict[str, Module]:
    """Every module by canonical name, in the order of the files. Raises CheckpointError where two have the same."""
    grouped: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for name, tensor in headers.tensors.items():
        owner, _, last = name.rpartition(".")
        grouped[owner if owner and last in FIELDS else name][last] = tensor
    rules = Rules(headers.quantization)
    made: dict[str, Module] = {}
    spelled: dict[str, str] = {}
    for name, fields in grouped.items():
        module = _module(name, fields, rules)
        if (other := spelled.setdefault(module.name, name)) != name:
            raise CheckpointError(
                f"{headers.folder} has {other} and {name}",
                expected="one spelling of a model's root",
                hint="two models in one folder: move one of them elsewhere",
            )
        made[module.name] = module
    return made


def _module(name: str, fields: Mapping[str, Tensor], rules: Rules) -> Module:
    short = canonical(name)
    weight = fields.get("weight_packed") or fields.get("weight") or next(iter(fields.values()))
    family = _family(weight, fields)
    declared = rules.of(name) if len(weight.shape) >= 2 else None
    shape = (*weight.shape[:-1], 2 * weight.shape[-1]) if family in ("NVFP4", "MXFP4") else weight.shape
    return Module(
        name=short,
        part=part_of(short),
        family=family,
        scheme=_scheme(family, shape, fields, declared),
        shape=shape,
        nbytes=sum(tensor.nbytes for tensor in fields.values()),
        declared=declared,
        scale_bytes=_scale_bytes(family, fields),
    )


def _scale_bytes(family: str, fields: Mapping[str, Tensor]) -> int:
    """Scales per tensor and per channel, of weights and of activations."""
    kept = {"FP8": ("weight", "weight_packed", "bias")}.get(family, ("weight", "weight_packed", "bias", "weight_scale"))
    return sum(one.nbytes for name, one in fields.items() if name not in kept) if family in QUANTISED else 0


def _family(weight: Tensor, fields: Mapping[str, Tensor]) -> str:
    """A weight that is no matrix is not multiplied in any format: it has its dtype alone."""
    scale = fields.get("weight_scale")
    if len(weight.shape) < 2:
        return weight.dtype
    if weight.dtype == "U8" and scale is not None and len(scale.shape) >= 2:
        return {"F8_E4M3": "NVFP4", "F8_E8M0": "MXFP4", "U8": "MXFP4"}.get(scale.dtype, weight.dtype)
    if weight.dtype in ("F8_E4M3", "F8_E5M2") and ("weight" in fields or "weight_packed" in fields):
        return "FP8"
    return weight.dtype


def _scheme(family: str, shape: tuple[int, ...], fields: Mapping[str, Tensor], declared: Declared | None) -> str:
    bits = declared.activation_bits if declared is not None else None
    if family in ("NVFP4", "MXFP4"):
        if "input_global_scale" in fields:
            bits = 4  # compressed-tensors ships it for W4A4 alone; ModelOpt's input_scale stands in W4A16 files too
        return f"{family} W4A{bits or '?'} group {shape[-1] // max(fields['weight_scale'].shape[-1], 1)}"
    if family == "FP8":
        width = bits or (8 if "input_scale" in fields else "?")
        inputs = "" if width == 16 else ", static" if "input_scale" in fields else ", dynamic"
        return f"FP8 W8A{width} {_granularity(shape, fields)}{inputs}"
    return family


def _granularity(shape: tuple[int, ...], fields: Mapping[str, Tensor]) -> str:
    scale = fields.get("weight_scale") or fields.get("weight_scale_inv")
    if scale is None:
        return "without scales"
    count = math.prod(scale.shape)
    if count == 1:
        return "per tensor"
    if len(scale.shape) >= 2 and scale.shape[-1] > 1:
        return "per block of " + "×".join(str(-(-n // k)) for n, k in zip(shape, scale.shape, strict=False))
    return "per channel" if count == math.prod(shape[:-1]) else f"{count} scales"


class Rules:
    """The configuration of quantisation as a question: what is this module said to be?"""

    def __init__(self, section: Mapping[str, Any]) -> None:
        self.section = section
        listed = section.get("quantized_layers")
        self.exact = {canonical(k): v for k, v in listed.items()} if isinstance(listed, dict) else {}
        ignored = section.get("ignore") or section.get("exclude_modules") or section.get("modules_to_not_convert")
        self.ignored = tuple(map(str, ignored)) if isinstance(ignored, list) else ()
        groups = section.get("config_groups")
        self.groups = tuple(g for g in groups.values() if isinstance(g, dict)) if isinstance(groups, dict) else ()
        self._names = frozenset(canonical(one) for one in self.ignored if "*" not in one and not one.startswith("re:"))
        self._patterns = [_pattern(one) for one in self.ignored if "*" in one or one.startswith("re:")]

    def of(self, name: str) -> Declared | None:
        """By the name in the file. None: there is no configuration, or one of a kind that is not known here."""
        algorithm = self.section.get("quant_algo")
        if not (self.exact or self.groups or algorithm or self.section.get("quant_method") == "fp8"):
            return None
        short = canonical(name)
        if self._names.intersection(_parents(short)):
            return Declared("")
        if any(pattern.match(spelling) for pattern in self._patterns for spelling in (name, short)):
            return Declared("")
        experts = short.rpartition(".experts.")[0] + ".experts"
        entry = self.exact.get(short) or self.exact.get(experts)
        if isinstance(entry, dict):
            return _modelopt(entry.get("quant_algo"))
        if self.exact:
            return Declared("")
        if self.groups:
            return next(filter(None, (_group(group, name) for group in self.groups)), Declared(""))
        if not _is_linear(short):
            return Declared("")
        return _modelopt(algorithm) if algorithm else Declared("FP8", 8)


def _is_linear(short: str) -> bool:
    """What one algorithm for all, or the target Linear, means: every matrix but those that are looked up or slid."""
    return "embed" not in short and "conv" not in short


def _modelopt(algorithm: object) -> Declared:
    family, bits = MODELOPT.get(str(algorithm), (str(algorithm), None))
    return Declared(family, bits)


def _group(group: Mapping[str, Any], name: str) -> Declared | None:
    """compressed-tensors: None where the group does not target the module."""
    targets = group.get("targets")
    if not any(_targets(str(target), name) for target in (targets if isinstance(targets, list) else ())):
        return None
    weights, inputs = table(group.get("weights")), table(group.get("input_activations"))
    stored = f"{weights.get('type')}{weights.get('num_bits')}"
    family = {"float4": "NVFP4", "float8": "FP8"}.get(stored, stored)
    bits = inputs.get("num_bits")
    return Declared(family, bits if isinstance(bits, int) and bits > 0 else 16)


def _targets(target: str, name: str) -> bool:
    if target.startswith("re:"):
        return _compile(target.removeprefix("re:")).match(name) is not None
    return target == name or (target == "Linear" and _is_linear(canonical(name)))


def _parents(short: str) -> Iterator[str]:
    """The name and what it is below: ignoring a module ignores all of it."""
    parts = short.split(".")
    return (".".join(parts[:n]) for n in range(len(parts), 0, -1))


def _pattern(ignore: str) -> re.Pattern[str]:
    """`re:` a regular expression, `*` anything; both from the start of the name."""
    if ignore.startswith("re:"):
        return _compile(ignore.removeprefix("re:"))
    return re.compile(".*".join(map(re.escape, canonical(ignore).split("*"))))


@functools.cache
def _compile(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise CheckpointError(
            f"quantization_config has {text[:200]!r}, no regular expression: {error}",
            hint="download config.json again",
        ) from error
