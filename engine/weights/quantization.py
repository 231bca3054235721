"""QuantConfig: which scheme each linear layer is stored in, from config.json and hf_quant_config.json.

Read: ModelOpt (MIXED_PRECISION, or one algorithm for all), compressed-tensors (groups of NVFP4 and FP8), none.
Where both files exist, config.json wins. For the KV cache they may differ, since nvidia's own files do, and a note says
so; for weights a difference is an error: one of the two was not written for these tensors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from engine.models.config import read_json
from engine.weights.errors import CheckpointError
from engine.weights.names import canonical, parents, spellings
from engine.weights.types import NVFP4_BLOCK


class Scheme(StrEnum):
    """How one linear layer is stored. W4A4 files run as W4A16: same weights, activations left in 16 bit."""

    NONE = "unquantised"
    NVFP4 = "ModelOpt NVFP4"
    """weight u8, weight_scale e4m3, weight_scale_2 multiplies; input_scale is not used."""
    NVFP4_PACKED = "compressed-tensors NVFP4"
    """weight_packed u8, weight_scale e4m3, weight_global_scale divides; input_global_scale is not used."""
    FP8_STATIC = "FP8, static input scale"
    """weight e4m3, weight_scale per tensor or row, input_scale per tensor."""
    FP8_DYNAMIC = "FP8, dynamic input scale"
    """weight e4m3, weight_scale per tensor or row; the input's scale is found per token at run time."""


MODELOPT_SCHEMES = {
    "W4A16_NVFP4": Scheme.NVFP4,
    "NVFP4": Scheme.NVFP4,
    "FP8": Scheme.FP8_STATIC,
    "FP8_PER_CHANNEL_PER_TOKEN": Scheme.FP8_DYNAMIC,
}


ANOTHER = "use a checkpoint that is stored so"
"""What to do about a scheme that this engine does not read."""


@dataclass(frozen=True, slots=True)
class QuantConfig:
    """Rules in the order they are asked: ignored, exact names, patterns, the default for every linear layer."""

    method: str = "none"
    exact: Mapping[str, Scheme] = field(default_factory=dict)
    """By canonical module name."""
    patterns: tuple[tuple[re.Pattern[str], Scheme], ...] = ()
    default: Scheme = Scheme.NONE
    ignored: frozenset[str] = frozenset()
    """Canonical names of modules that are left alone, with everything below them."""
    ignored_patterns: tuple[re.Pattern[str], ...] = ()
    """Tried with match() on every spelling of a module."""
    kv_cache_fp8: bool = False
    """What the checkpoint asks of the KV cache; `kv_cache_dtype = "auto"` follows it."""
    notes: tuple[str, ...] = ()
    """What the two files say differently and which one won; for the log and /version."""
    twin: QuantConfig | None = None
    """What the other file says of the layers, where it is not word for word the same: the loader, which knows the
    model's layers, compares them one by one.
    """

    def scheme(self, module: str) -> Scheme:
        """The scheme of a linear layer by its canonical name."""
        names = list(spellings(module)) if self.ignored_patterns or self.patterns else []
        if self.ignored and any(parent in self.ignored for parent in parents(module)):
            return Scheme.NONE
        for pattern in self.ignored_patterns:
            for name in names:
                if pattern.match(name):
                    return Scheme.NONE
        if module in self.exact:
            return self.exact[module]
        experts = module.rpartition(".experts.")[0]
        if experts and f"{experts}.experts" in self.exact:  # one entry may stand for all experts of a layer
            return self.exact[f"{experts}.experts"]
        for pattern, scheme in self.patterns:
            if any(pattern.match(name) for name in names):
                return scheme
        return self.default


def load_quant_config(path: Path) -> QuantConfig:
    """Read both files of the folder. Raises CheckpointError naming the module or key."""
    file, twin = path / "config.json", path / "hf_quant_config.json"
    config = read_json(file)
    text = _table(file, "text_config", config.get("text_config"))
    name = "quantization_config"
    main = _table(file, name, config.get(name) or text.get(name))
    legacy = _table(twin, "quantization", read_json(twin).get("quantization")) if twin.is_file() else None
    if not main:
        return _modelopt(twin, legacy) if legacy else QuantConfig()
    match main.get("quant_method"):
        case "modelopt":
            parsed = _modelopt(file, main)
        case "compressed-tensors":
            parsed = _compressed_tensors(file, main)
        case method:
            raise CheckpointError(
                f"{file}: quant_method {method!r}; this engine reads modelopt and compressed-tensors, {ANOTHER}"
            )
    return _reconcile(parsed, _modelopt(twin, legacy), file, twin) if legacy else parsed


def _table(file: Path, where: str, value: object) -> Mapping[str, Any]:
    """A JSON object, or an empty one for null and for what is absent."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise CheckpointError(
            f"{file}: {where} is a JSON {type(value).__name__}, expected an object; download it again"
        )
    return value


def _texts(file: Path, where: str, value: object) -> list[str]:
    """A JSON list of texts, or an empty one for null and for what is absent."""
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise CheckpointError(f"{file}: {where} is {repr(value)[:60]}, expected a list of texts; download it again")
    return value


# --- ModelOpt --------------------------------------------------------------------------------------------------------


def _modelopt(file: Path, section: Mapping[str, Any]) -> QuantConfig:
    algorithm = section.get("quant_algo")
    ignored = _texts(file, "ignore", section.get("ignore") or section.get("exclude_modules"))
    exact: dict[str, Scheme] = {}
    default = Scheme.NONE
    if algorithm == "MIXED_PRECISION":
        for name, entry in _table(file, "quantized_layers", section.get("quantized_layers")).items():
            spec = _table(file, name, entry)
            exact[canonical(name)] = _modelopt_scheme(file, name, spec.get("quant_algo"), spec.get("group_size"))
        if not exact:
            raise CheckpointError(
                f"{file}: MIXED_PRECISION without quantized_layers; expected a table of modules, download it again"
            )
    elif algorithm is not None:
        default = _modelopt_scheme(file, "quant_algo", algorithm, section.get("group_size"))
    return QuantConfig(
        method="modelopt",
        exact=exact,
        default=default,
        ignored=frozenset(canonical(p) for p in ignored if "*" not in p),
        ignored_patterns=tuple(_glob(p) for p in ignored if "*" in p),
        kv_cache_fp8=_kv_fp8(file, section),
    )


def _modelopt_scheme(file: Path, name: str, algorithm: object, group_size: object) -> Scheme:
    if not isinstance(algorithm, str) or algorithm not in MODELOPT_SCHEMES:
        found = f"quant_algo {algorithm!r}" if name == "quant_algo" else f"{name} has quant_algo {algorithm!r}"
        raise CheckpointError(f"{file}: {found}; known are {', '.join(MODELOPT_SCHEMES)}: {ANOTHER}")
    scheme = MODELOPT_SCHEMES[algorithm]
    if scheme is Scheme.NVFP4 and group_size not in (None, NVFP4_BLOCK):
        owner = "" if name == "quant_algo" else f"{name} has "
        raise CheckpointError(f"{file}: {owner}group_size {group_size!r}; NVFP4 has {NVFP4_BLOCK}, {ANOTHER}")
    return scheme


def _glob(pattern: str) -> re.Pattern[str]:
    """`model.visual*` matches a whole dotted name or a dotted parent of one."""
    return re.compile(".*".join(re.escape(part) for part in pattern.split("*")) + r"(?:\..*)?\Z")


def _kv_fp8(file: Path, section: Mapping[str, Any]) -> bool:
    """config.json has kv_cache_scheme, an object or null; the legacy file has kv_cache_quant_algo, "FP8" or null."""
    scheme, algorithm = section.get("kv_cache_scheme"), section.get("kv_cache_quant_algo")
    if scheme is not None and not isinstance(scheme, dict):
        raise CheckpointError(f"{file}: kv_cache_scheme is {scheme!r}, expected an object or null; download it again")
    if scheme is not None and (scheme.get("type"), scheme.get("num_bits")) != ("float", 8):
        raise CheckpointError(f"{file}: kv_cache_scheme {scheme!r}; this engine reads 8-bit float or null, {ANOTHER}")
    if algorithm not in (None, "FP8"):
        raise CheckpointError(f"{file}: kv_cache_quant_algo {algorithm!r}; this engine reads FP8 or null, {ANOTHER}")
    return scheme is not None or algorithm == "FP8"


def _reconcile(main: QuantConfig, legacy: QuantConfig, file: Path, twin: Path) -> QuantConfig:
    """`main`, with a note on the KV cache; an error where the files disagree about weights."""
    for name in sorted({*main.exact, *legacy.exact}):
        here, there = main.exact.get(name, main.default), legacy.exact.get(name, legacy.default)
        if here != there:
            raise CheckpointError(
                f"{name}: {file.name} says {here}, {twin.name} says {there}; expected the same, download both again"
            )
    if main.default != legacy.default:
        raise CheckpointError(
            f"{file.parent}: {file.name} quantises every layer as {main.default}, {twin.name} as {legacy.default}; "
            "expected the same, download both again"
        )
    if (main.ignored, main.ignored_patterns) != (legacy.ignored, legacy.ignored_patterns):
        main = replace(main, twin=legacy)
    if main.kv_cache_fp8 == legacy.kv_cache_fp8:
        return main
    words = {True: "FP8", False: "no KV quantisation"}
    note = f"KV cache: {file.name} asks {words[main.kv_cache_fp8]}, {twin.name} {words[legacy.kv_cache_fp8]}"
    return replace(main, notes=(f"{note}; {file.name} wins, as in vLLM",))


# --- compressed-tensors ----------------------------------------------------------------------------------------------


def _compressed_tensors(file: Path, section: Mapping[str, Any]) -> QuantConfig:
    """Targets are `re:` patterns, whole names, or the class `Linear`; names are asked first, the class last."""
    exact: dict[str, Scheme] = {}
    patterns: list[tuple[re.Pattern[str], Scheme]] = []
    default = Scheme.NONE
    for name, entry in _table(file, "config_groups", section.get("config_groups")).items():
        group = _table(file, name, entry)
        scheme = _group_scheme(file, name, group)
        for target in _texts(file, f"{name}.targets", group.get("targets")):
            if target.startswith("re:"):
                patterns.append((_pattern(file, target), scheme))
            elif target == "Linear":
                default = scheme
            else:
                exact[canonical(target)] = scheme
    ignore = _texts(file, "ignore", section.get("ignore"))
    return QuantConfig(
        method="compressed-tensors",
        exact=exact,
        patterns=tuple(patterns),
        default=default,
        ignored=frozenset(canonical(p) for p in ignore if not p.startswith("re:")),
        ignored_patterns=tuple(_pattern(file, p) for p in ignore if p.startswith("re:")),
        kv_cache_fp8=_kv_fp8(file, section),
    )


def _pattern(file: Path, target: str) -> re.Pattern[str]:
    """`re:` patterns match from the start of a name, as in compressed-tensors."""
    try:
        return re.compile(target.removeprefix("re:"))
    except re.error as error:
        raise CheckpointError(f"{file}: {target!r} is not a regular expression ({error}); download it again") from None


def _group_scheme(file: Path, name: str, group: Mapping[str, Any]) -> Scheme:
    weights = _table(file, f"{name}.weights", group.get("weights"))
    inputs = _table(file, f"{name}.input_activations", group.get("input_activations"))
    kind = (weights.get("type"), weights.get("num_bits"), weights.get("strategy"))
    if kind == ("float", 4, "tensor_group") and weights.get("group_size") == NVFP4_BLOCK:
        return Scheme.NVFP4_PACKED
    if kind in (("float", 8, "tensor"), ("float", 8, "channel")) and inputs:
        return Scheme.FP8_DYNAMIC if inputs.get("dynamic") else Scheme.FP8_STATIC
    raise CheckpointError(
        f"{file}: config group {name} has weights {dict(weights)} and input_activations {inputs}; this engine reads "
        f"NVFP4 (float, 4 bit, tensor_group of {NVFP4_BLOCK}) and FP8 W8A8 (float, 8 bit, tensor or channel), {ANOTHER}"
    )
