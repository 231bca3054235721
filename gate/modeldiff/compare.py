"""Two checkpoints' headers -> ModelDiff. Pure.

Modules are matched by their canonical name, so that a root that is spelled otherwise is no difference. Weights are not
read: equal headers say nothing of the numbers behind them (`sha256sum` does).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from gate.fit.sizes import asked_kv_dtype
from gate.headers.read import Headers, canonical, collapsed, is_number
from gate.headers.schemes import Module, Rules, modules
from gate.modeldiff.record import ModelDiff, ModuleDiff, Setting, Side

QUANTISATION = ("quantization_config", "transformers_version", "_name_or_path")
"""Keys of config.json that are compared in another way, or say nothing of the model."""
Pair = tuple[str | None, str | None]


def compare(first: Headers, second: Headers, names: tuple[str, str]) -> ModelDiff:
    held = modules(first), modules(second)
    differing, equal = _modules(*held)
    left, right = (_ignored(one) for one in (first, second))
    return ModelDiff(
        first=_side(first, held[0], names[0]),
        second=_side(second, held[1], names[1]),
        modules=tuple(differing),
        equal_modules=equal,
        settings=tuple(_settings(first, second)),
        ignored_by_first=tuple(sorted(left - right)),
        ignored_by_second=tuple(sorted(right - left)),
    )


def _side(headers: Headers, held: Mapping[str, Module], name: str) -> Side:
    schemes: Counter[str] = Counter()
    parts: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    for module in held.values():
        parts[module.part] += module.nbytes
        if module.part == "text":
            schemes[module.scheme] += module.nbytes
        if module.contradiction:
            wrong[f"{collapsed(module.name)}: {module.contradiction}"] += 1
    return Side(
        name=name,
        folder=str(headers.folder),
        shards=len(headers.shards),
        file_bytes=sum(headers.shards.values()),
        bytes_by_scheme=dict(schemes),
        bytes_by_part=dict(parts),
        contradictions=dict(wrong),
    )


def _modules(first: Mapping[str, Module], second: Mapping[str, Module]) -> tuple[list[ModuleDiff], dict[str, str]]:
    """A part that one checkpoint has none of (vision, mtp) is told by its bytes and not module by module."""
    shared = {one.part for one in first.values()} & {one.part for one in second.values()}
    kinds: dict[str, dict[Pair, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name in dict.fromkeys((*first, *second)):
        a, b = first.get(name), second.get(name)
        if any(one is not None and one.part in shared for one in (a, b)):
            kinds[collapsed(name)][_pair(a, b)].append(name)
    found: list[ModuleDiff] = []
    equal: dict[str, str] = {}
    for kind, pairs in kinds.items():
        every = [name for names in pairs.values() for name in names]
        differing = {pair: names for pair, names in pairs.items() if pair[0] != pair[1]}
        if not differing:
            schemes = {pair[0] for pair in pairs}
            equal[kind] = str(next(iter(schemes))) if len(schemes) == 1 else "several schemes, the same in each layer"
        found += [
            ModuleDiff(
                name=kind,
                first=pair[0],
                second=pair[1],
                layers=_layers(names),
                modules=len(names),
                of=len(every),
                of_layers=len(_layers(every)),
            )
            for pair, names in differing.items()
        ]
    return found, equal


def _pair(a: Module | None, b: Module | None) -> Pair:
    """Schemes; with shapes where the schemes are the same and the shapes are not."""
    if a is not None and b is not None and a.shape != b.shape:
        return f"{a.scheme} {list(a.shape)}", f"{b.scheme} {list(b.shape)}"
    return (None if a is None else a.scheme), (None if b is None else b.scheme)


def _layers(names: list[str]) -> tuple[int, ...]:
    """The first number in each name."""
    numbers = (next((int(part) for part in name.split(".") if is_number(part)), None) for name in names)
    return tuple(sorted({number for number in numbers if number is not None}))


def _settings(first: Headers, second: Headers) -> Iterator[Setting]:
    rows: list[tuple[str, str | None, str | None]] = [
        ("KV cache, as auto", asked_kv_dtype(first)[0], asked_kv_dtype(second)[0])
    ]
    rows += [
        (name, _text(first.quantization.get(key)), _text(second.quantization.get(key)))
        for name, key in (
            ("quantisation", "quant_method"),
            ("algorithm", "quant_algo"),
            ("format", "format"),
            ("producer", "producer"),
            ("KV cache scheme", "kv_cache_scheme"),
            ("KV cache algorithm", "kv_cache_quant_algo"),
        )
    ]
    rows.append(
        (
            "KV cache algorithm, legacy file",
            _text(first.legacy.get("kv_cache_quant_algo")),
            _text(second.legacy.get("kv_cache_quant_algo")),
        )
    )
    a, b = dict(_flat(first.config)), dict(_flat(second.config))
    rows += [(key, a.get(key), b.get(key)) for key in dict.fromkeys((*a, *b))]
    return (Setting(name=name, first=one, second=other) for name, one, other in rows if one != other)


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str | None]]:
    """text_config.rope_parameters.rope_theta -> value, whatever the order of keys."""
    for key, value in config.items():
        if isinstance(value, dict) and key not in QUANTISATION:
            yield from _flat(value, f"{prefix}{key}.")
        elif key not in QUANTISATION:
            yield f"{prefix}{key}", _text(value)


def _text(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in sorted(value.items()))
    return str(value)


def _ignored(headers: Headers) -> set[str]:
    """Patterns as they are written, names without their layers."""
    listed = Rules(headers.quantization).ignored
    return {name if name.startswith("re:") else collapsed(canonical(name)) for name in listed}
