"""3 What a profile needs of this machine: a GPU, and nsys where it is asked for. One line says what is missing."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence

from gate.errors import ArmError, PreconditionError, UsageError
from gate.observe import gpu
from gate.profile import commands
from gate.profile.rows import Backend
from gate.recipe import Recipe

BACKENDS: tuple[Backend, ...] = ("nsys", "cupti")
COMMAND_TIMEOUT_S = 600.0
"""Writing and exporting a report of some hundred thousand kernels takes tens of seconds."""


def choose(asked: str | None) -> tuple[Backend, str]:
    """(backend, path of nsys or ""). Left open: nsys where it is installed, else CUPTI inside the servers.

    Raises UsageError for an unknown backend, PreconditionError where there is no GPU or no nsys.
    """
    if asked is not None and asked not in BACKENDS:
        raise UsageError(f"--backend {asked!r}", expected=" or ".join(BACKENDS))
    if not gpu.gpus():
        raise PreconditionError(
            "gate profile needs an NVIDIA GPU and NVML shows none",
            hint="a recorded profile is shown by gate report RUN",
        )
    found = shutil.which("nsys")
    if found is None and asked == "nsys":
        raise PreconditionError(
            "nsys is not on PATH", expected="NVIDIA Nsight Systems", hint="install it, or --backend cupti"
        )
    if asked == "cupti" or found is None:
        return "cupti", ""
    return "nsys", found


def check_recipe(recipe: Recipe) -> None:
    """Raises UsageError for a recipe whose servers run on the CPU."""
    if not recipe.gpu:
        raise UsageError(f"recipe {recipe.name} runs on the CPU", expected="one with gpu = true: kernels are profiled")


def call(command: Sequence[str], env: dict[str, str] | None = None) -> str:
    """Standard output of one of nsys's commands.

    Raises ArmError with its last line when it fails or hangs: the window is lost and the profile with it.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMMAND_TIMEOUT_S, env=env)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ArmError(f"{command[0]} {command[1]}: {error}") from error
    if done.returncode != 0:
        lines = [line for line in (done.stderr + "\n" + done.stdout).splitlines() if line.strip()]
        raise ArmError(f"{command[0]} {command[1]} ended with {done.returncode}: {lines[-1] if lines else 'no word'}")
    return done.stdout


def nsys_version(nsys: str) -> str:
    return call(commands.version(nsys)).strip().splitlines()[-1].strip()
