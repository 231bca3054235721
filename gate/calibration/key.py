"""6 What a history is valid for: from a plan and a machine; and in what two keys differ."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from gate.calibration.record import BandKey
from gate.observe.machine import GOVERNOR, LIMITS
from gate.plan import ArmPlan, Plan
from gate.recipe import Workload
from gate.units import DASH

MACHINE = ("cpu", "cores", "kernel", "gpu_driver")
"""And every gpu… key, and what SETTINGS says. Memory size, boot and library versions do not make legs faster or slower
from pair to pair."""

SETTINGS = (GOVERNOR, *LIMITS)
"""Beginnings of what an administrator may set otherwise from one day to the next: the processor's governor for a run
without a GPU, the cards' limits for one with. Not every system tells them."""

LATER = (("min_requests_per_leg", 0), ("start", "together"))
"""Keys of the workload that came after the first bands, with the values that change nothing."""

INDIFFERENT = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TMPDIR")
"""Variables of a server that say who started it, not how it runs."""


def key_of(plan: Plan, host: str, machine: Mapping[str, str], oracle_version: str | None) -> BandKey:
    """oracle_version: None before the server has been asked."""
    recipe, oracle = plan.recipe, plan.oracle
    moving = LIMITS if recipe.gpu else (GOVERNOR,)
    return BandKey(
        host=host,
        machine={k: v for k, v in sorted(machine.items()) if k in MACHINE or k.startswith(("gpu", *moving))},
        oracle_kind=oracle.kind,
        oracle_version=oracle_version,
        oracle_argv=portless(oracle),
        oracle_env=own_env(oracle),
        oracle_checkpoint_digest=oracle.checkpoint_digest,
        oracle_source_sha256=oracle.source_sha256,
        workload=_load(recipe.workload),
        gpu=recipe.gpu,
        residency=recipe.protocol.residency,
    )


def _load(workload: Workload) -> dict[str, int | float | str | None]:
    """Without the seed. What later keys say by default is left out, as older bands lack it: the same load."""
    values = workload.model_dump(exclude={"seed"})
    return {name: value for name, value in values.items() if (name, value) not in LATER}


def is_aa(plan: Plan) -> bool:
    """Whether both arms are the same but for the port. Attached URLs are not: nobody knows what runs there."""
    ours, theirs = plan.candidate, plan.oracle
    return (
        ours.argv is not None
        and (ours.kind, portless(ours), own_env(ours)) == (theirs.kind, portless(theirs), own_env(theirs))
        and ours.checkpoint_digest == theirs.checkpoint_digest
    )


def portless(arm: ArmPlan) -> tuple[str, ...] | None:
    """The command line with {port} where the arm's port stands as a word or ends one."""
    port = str(urlsplit(arm.url).port)
    if arm.argv is None:
        return None
    return tuple(
        "{port}"
        if word == port
        else word.removesuffix(port) + "{port}"
        if word.endswith((f"={port}", f":{port}"))
        else word
        for word in arm.argv
    )


def own_env(arm: ArmPlan) -> dict[str, str]:
    return {name: value for name, value in sorted(arm.env.items()) if name not in INDIFFERENT}


def digest(key: BandKey) -> str:
    """Names a band's file; the oracle's version is left out, since it is not known before the server was asked."""
    text = key.model_copy(update={"oracle_version": None}).model_dump_json()
    return hashlib.sha256(text.encode()).hexdigest()


def differences(band: BandKey, run: BandKey) -> tuple[str, ...]:
    """`gpu_driver is 570.1 here, 560.3 in the band`, one for each; empty where the band is valid.

    A setting that one of the two does not know is no difference; `unknown` names it.
    """
    return tuple(_differences(band, run))


def unknown(band: BandKey, run: BandKey) -> tuple[str, ...]:
    """`power_limit_gpu0 is 700 W here, unknown in the band`: settings that only one of the two knows."""
    return tuple(
        f"{name} is {run.machine.get(name, 'unknown')} here, {band.machine.get(name, 'unknown')} in the band"
        for name in sorted(band.machine.keys() ^ run.machine.keys())
        if name.startswith(SETTINGS)
    )


def _differences(band: BandKey, run: BandKey) -> Iterator[str]:
    theirs, ours = band.model_dump(), run.model_dump()
    for name in ours:
        a, b = theirs[name], ours[name]
        if name == "oracle_version" and b is None:
            continue
        if isinstance(a, dict) and isinstance(b, dict):
            prefix = "" if name == "machine" else f"{name}."
            for inner in sorted({*a, *b}):
                if name == "machine" and inner.startswith(SETTINGS) and (inner not in a or inner not in b):
                    continue
                if a.get(inner) != b.get(inner):
                    yield f"{prefix}{inner} is {_said(b.get(inner))} here, {_said(a.get(inner))} in the band"
        elif a != b:
            yield f"{name} is {_said(b)} here, {_said(a)} in the band"


def _said(value: object) -> str:
    if value is None:
        return DASH
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
