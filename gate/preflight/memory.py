"""3 Host memory, and on a GPU its memory, hold what the plan keeps resident."""

from __future__ import annotations

from pathlib import Path

import psutil
import pynvml

from gate import lock
from gate.errors import PreconditionError
from gate.observe import gpu
from gate.observe.rows import Finding
from gate.plan import Plan
from gate.preflight.checkpoint import INDEX, SINGLE
from gate.units import GIB, gib

SERVER_BYTES = {"vllm": 3 * GIB, "engine": 1 * GIB, "command": 1 * GIB, "url": 0}
"""Resident beside weights and caches: vLLM for a CPU was seen at 2.8 to 3.1 GiB with a checkpoint of a few MB."""


def weight_bytes(folder: Path) -> int:
    """Bytes of the safetensors files in a checkpoint folder; 0 where it is only a name (an attached URL)."""
    whole = [folder / SINGLE] if not (folder / INDEX).is_file() else list(folder.glob("*.safetensors"))
    return sum(path.stat().st_size for path in whole if path.is_file())


def host_need_bytes(plan: Plan) -> int:
    """On a CPU every resident arm holds its weights; on a GPU the host only reads them through the page cache."""
    needs = [
        SERVER_BYTES[arm.kind] + (weight_bytes(Path(arm.checkpoint)) if not plan.recipe.gpu and arm.argv else 0)
        for arm in (plan.candidate, plan.oracle)
    ]
    return sum(needs) if plan.recipe.protocol.residency == "both" else max(needs)


def check(plan: Plan, _out: Path) -> tuple[Finding, ...]:
    """Raises PreconditionError. MemAvailable counts: free memory alone is low wherever the page cache is warm."""
    available, need = psutil.virtual_memory().available, host_need_bytes(plan)
    if available < need:
        raise PreconditionError(
            f"{gib(available)} of memory available",
            expected=f"{gib(need)} for {plan.recipe.protocol.residency} server(s)",
            hint=_hint(plan),
        )
    if plan.recipe.gpu:
        _check_gpus(plan)
    return ()


def _check_gpus(plan: Plan) -> None:
    each = [weight_bytes(Path(arm.checkpoint)) for arm in (plan.candidate, plan.oracle) if arm.argv]
    need = (sum if plan.recipe.protocol.residency == "both" else max)(each or [0])
    ours = set(lock.keys(plan))
    with gpu.session() as handles:
        for handle in handles:
            uuid = str(pynvml.nvmlDeviceGetUUID(handle))
            free = int(pynvml.nvmlDeviceGetMemoryInfo(handle).free) if uuid in ours else need
            if free < need:
                raise PreconditionError(
                    f"GPU {uuid} has {gib(free)} free", expected=f"{gib(need)} for the weights alone", hint=_hint(plan)
                )


def _hint(plan: Plan) -> str:
    alternate = 'set residency = "alternate" in the recipe, or ' if plan.recipe.protocol.residency == "both" else ""
    return alternate + "free some memory"
