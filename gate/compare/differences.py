"""7 In what two runs differ: refused, only indicative, or worth a line. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from gate.calibration.key import own_env, portless
from gate.compare.record import Difference
from gate.observe.machine import LIMITS
from gate.observe.rundata import RunData
from gate.plan import Plan
from gate.recipe import Recipe
from gate.report.model import Report
from gate.units import DASH

MACHINE = ("cpu", "cores", "memory")
"""And every gpu… key, and cards' limits that both know: with another the absolute figures are another machine's."""
CONTEXT = ("kernel", "gpu_driver", "cpu_governor", "boot_id", "python")
"""Worth a line: figures may have moved for them."""
SAME = ("gpu", "max_model_len", "max_num_seqs", "kv_cache_dtype", "workload")
"""Parts of a recipe without which two runs did not measure the same thing."""


def refusal(then: Plan, now: Plan) -> str | None:
    """Why the two cannot be compared at all; None where they can."""
    for name in SAME:
        a, b = _content(then.recipe)[name], _content(now.recipe)[name]
        if a != b:
            return f"{name} is {_changed(a, b)} in the first, {_changed(b, a)} in the second"
    for arm in ("candidate", "oracle"):
        a, b = getattr(then, arm).checkpoint_digest, getattr(now, arm).checkpoint_digest
        if a != b and None not in (a, b):
            return f"the {arm}'s checkpoint has digest {a[:12]} in the first, {b[:12]} in the second"
    if not set(then.recipe.protocol.concurrency) & set(now.recipe.protocol.concurrency):
        return "they have no concurrency in common"
    return None


def same_machine(then: RunData, now: RunData) -> bool:
    return not list(machine_differences(then.machine, now.machine)) and then.host == now.host


def differences(then: tuple[RunData, Report], now: tuple[RunData, Report]) -> tuple[Difference, ...]:
    """Everything else, what weakens the comparison first."""
    (run_a, report_a), (run_b, report_b) = then, now
    found = [
        *_one("host", run_a.host, run_b.host, True),
        *machine_differences(run_a.machine, run_b.machine),
        *_protocol(run_a.plan.recipe, run_b.plan.recipe),
        *_arms(run_a.plan, run_b.plan),
        *_one("oracle version", report_a.oracle.version, report_b.oracle.version, True),
        *_one("candidate version", report_a.candidate.version, report_b.candidate.version, False),
        *_one("seed", run_a.plan.seed, run_b.plan.seed, True),
        *_one("coin", run_a.plan.coin, run_b.plan.coin, False),
        *_one("noise band", _band(report_a), _band(report_b), False),
    ]
    found += [
        one for key in CONTEXT for one in _one(key, run_a.machine.get(key), run_b.machine.get(key), key == "kernel")
    ]
    return tuple(sorted(found, key=lambda one: not one.weakens))


def _content(recipe: Recipe) -> dict[str, Any]:
    """The seed is left out: other prompts of the same lengths are the same workload."""
    content = recipe.model_dump(mode="json")
    content["workload"] = {name: value for name, value in content["workload"].items() if name != "seed"}
    return content


def _changed(value: Any, other: Any) -> str:
    """Of a table only the keys that differ."""
    if isinstance(value, dict) and isinstance(other, dict):
        return ", ".join(f"{name} = {item}" for name, item in value.items() if other.get(name) != item)
    return str(value)


def _one(what: str, then: object, now: object, weakens: bool) -> Iterator[Difference]:
    if then != now:
        yield Difference(what=what, then=_said(then), now=_said(now), weakens=weakens)


def _said(value: object) -> str:
    if value is None or value == "":
        return DASH
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def machine_differences(then: Mapping[str, str], now: Mapping[str, str]) -> Iterator[Difference]:
    keys = {*MACHINE, *(key for key in {*then, *now} if key.startswith("gpu") and key not in CONTEXT)}
    keys |= {key for key in then.keys() & now.keys() if key.startswith(LIMITS)}
    for key in sorted(keys):
        yield from _one(key, then.get(key), now.get(key), True)


def _protocol(then: Recipe, now: Recipe) -> Iterator[Difference]:
    a, b = then.protocol.model_dump(mode="json"), now.protocol.model_dump(mode="json")
    for name in a:
        weakens = name in ("residency", "repetitions", "concurrency")
        yield from _one(f"protocol.{name}", a[name], b[name], weakens)


def _arms(then: Plan, now: Plan) -> Iterator[Difference]:
    """Another candidate is what a comparison is for; another oracle is another control."""
    for arm in ("candidate", "oracle"):
        a, b, weakens = getattr(then, arm), getattr(now, arm), arm == "oracle"
        yield from _one(f"{arm} kind", a.kind, b.kind, weakens)
        yield from _one(f"{arm} command", _words(portless(a)), _words(portless(b)), weakens)
        yield from _one(f"{arm} environment", own_env(a), own_env(b), weakens)


def _words(argv: tuple[str, ...] | None) -> str | None:
    return None if argv is None else " ".join(argv)


def _band(report: Report) -> str | None:
    return None if report.band is None else report.band.band_id[:12]
