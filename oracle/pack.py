"""Download the pinned wheels into a folder, for `install --from` on a machine without a network."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from gate.errors import OracleError, UsageError
from oracle.pins import Pin, load

GLIBC_MINORS = range(39, 4, -1)
"""manylinux tags that pip is told to accept, newest first: it takes only those it is told for another Python."""


def pack(platform: str, folder: Path, *, python: str | None = None, say: Callable[[str], None] = print) -> None:
    """Every distribution of the lock as a wheel in folder; what is there already is not downloaded again.

    python: "3.12" and the like, the other machine's; None takes the newest that the pin allows.
    Errors: UsageError (a Python that the pin does not allow), OracleError (a wheel is not to be had).
    """
    pin = load(platform)
    version = python or f"{pin.python_below[0]}.{pin.python_below[1] - 1}"
    _check_version(pin, version)
    folder.mkdir(parents=True, exist_ok=True)
    requirements = [f"{name}=={pinned}" for name, pinned in pin.lock.items()]
    say(f"oracle {platform}: downloading {len(requirements)} wheels for Python {version} into {folder}")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--progress-bar=off", "--dest", str(folder), *_target(version)]
    command += [] if pin.torch_index is None else ["--extra-index-url", pin.torch_index]
    done = subprocess.run([*command, *requirements], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["pip failed"]
        raise OracleError(f"packing the {platform} oracle: {errors[-1]}", hint="run again to go on")
    size = sum(wheel.stat().st_size for wheel in folder.glob("*.whl"))
    say(f"oracle {platform}: {size / 1e9:.2f} GB in {folder}; there: gate oracle install {platform} --from FOLDER")


def _check_version(pin: Pin, version: str) -> None:
    try:
        major, minor = (int(part) for part in version.split("."))
    except ValueError as error:
        raise UsageError(f"--python {version!r}", expected="two numbers, such as 3.12") from error
    if not pin.python_min <= (major, minor) < pin.python_below:
        low, below = (".".join(map(str, bound)) for bound in (pin.python_min, pin.python_below))
        raise UsageError(
            f"--python {version}", expected=f"at least {low} and below {below} for the {pin.platform} oracle"
        )


def _target(version: str) -> list[str]:
    tag = f"cp{version.replace('.', '')}"
    target = ["--python-version", version, "--implementation", "cp", "--abi", tag, "--abi", "abi3", "--abi", "none"]
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in GLIBC_MINORS] + ["manylinux2014_x86_64", "any"]
    return target + [word for platform in platforms for word in ("--platform", platform)]
