"""The engine ran on a GPU without its kernels, or not on the GPU at all.

What it does
    Voids a GPU run in which an engine reports another device than CUDA, an op that ran on its plain reference, weights
    kept a second time in a wider dtype, kernels that were compiled with a definition (for sanitizers, or a trial), or
    kernels that were compiled for an architecture that no GPU of this machine has.
Why
    A fallback gives the same tokens: builds whose fast path was compiled out, and weights dequantised in silence, were
    2 to 4 times slower or larger and passed every token gate for weeks. Kernels of a trial are not those that ship.
Deciding numbers
    Of the engine's manifest: device, must begin with "cuda"; reference_ops, must be empty; dequantised_copy_bytes, must
    be 0; kernel_build.flags, of which none may begin with -D; kernel_build.arch, which must be a GPU's compute
    capability, by NVML. What it or NVML does not report is not judged.
What to do
    engine build compiles the kernels for this GPU; leave --allow-reference out of the candidate's arguments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from gate.checks.evidence import Evidence
from gate.observe.gpu import CAPABILITY
from gate.observe.residency import build
from gate.observe.rows import ARMS, Finding
from gate.observe.settings import manifest

CODE = "reference-fallback"
TIMING_ONLY = False
CONSEQUENCE = False
HINT = "run: engine build; and leave --allow-reference out of the candidate's arguments"


def fallbacks(made_of: Mapping[str, Any], machine: Mapping[str, str]) -> list[str]:
    """`found; expected` of each part of a manifest that is no production path on a GPU of this machine."""
    device, ops = made_of.get("device"), made_of.get("reference_ops")
    copies = made_of.get("dequantised_copy_bytes")
    found = []
    if isinstance(device, str) and not device.startswith("cuda"):
        found.append(f"its device is {device}, expected cuda")
    if ops:
        found.append(f"{', '.join(map(str, ops))} ran on the reference, expected kernels")
    if isinstance(copies, int) and copies > 0:
        found.append(f"it keeps {copies} bytes of dequantised weights, expected 0")
    if defined := _definitions(made_of):
        found.append(f"its kernels were compiled with {' '.join(defined)}, expected no definition")
    if foreign := _foreign_arch(made_of, machine):
        found.append(foreign)
    return found


def _foreign_arch(made_of: Mapping[str, Any], machine: Mapping[str, str]) -> str | None:
    """Of an arch such as sm_90a; None where a GPU has it, or it is not known."""
    arch = build(made_of).kernel_arch
    digits = None if arch is None else re.fullmatch(r"sm_(\d+)[a-z]?", arch)
    here = {value for key, value in machine.items() if key.startswith(CAPABILITY)}
    if digits is None or not here or digits[1] in {one.replace(".", "") for one in here}:
        return None
    return f"its kernels were compiled for {arch}, expected compute capability {' or '.join(sorted(here))}"


def _definitions(made_of: Mapping[str, Any]) -> list[str]:
    built = made_of.get("kernel_build")
    flags = built.get("flags") if isinstance(built, dict) else None
    return [flag for flag in flags if str(flag).startswith("-D")] if isinstance(flags, list) else []


def check(evidence: Evidence) -> Iterator[Finding]:
    if not evidence.plan.recipe.gpu:
        return
    for arm in ARMS:
        identity = evidence.identity(arm)
        found = fallbacks(manifest(identity), evidence.run.machine) if identity is not None else []
        if found:
            yield Finding(code=CODE, message=f"the {arm}: {'; '.join(found)}", hint=HINT, arm=arm)
