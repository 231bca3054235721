"""Compile every ops/*/*.cu with nvcc alone into one shared library per architecture, with a manifest inside.

No torch headers, no GPU: any machine with nvcc 13 builds both targets. A library is named after the hash of its sources
and flags, so an unchanged tree builds nothing, and a stale one cannot be picked up.

There are two variants of each: SHIPPED, and FOR_SANITIZERS, which lies beside it under a name of its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ENGINE = Path(__file__).resolve().parent.parent
BUILD = ENGINE.parent / "build" / "kernels"


@dataclass(frozen=True, slots=True)
class Target:
    """One architecture: what nvcc calls it, and the shared memory a block may have there (CUDA C programming guide)."""

    arch: str
    max_shared_bytes: int


TARGETS = {"90a": Target("90a", 227 * 1024), "121a": Target("121a", 99 * 1024)}

FLAGS = ("-std=c++17", "-O3", "-Xcompiler", "-fPIC", "-Xptxas", "-v", "-lineinfo")


@dataclass(frozen=True, slots=True)
class Variant:
    """What a library is compiled for: part of its file's name, and flags beside FLAGS, which its manifest shows."""

    name: str
    flags: tuple[str, ...]


SHIPPED = Variant("", ())
FOR_SANITIZERS = Variant("-for-sanitizers", ("-DENGINE_EVERY_LANE_GIVES_BACK",))
"""Its racecheck takes the rings of this one for what they are (kernels/stage.cuh). Never to be timed, nor served."""


class BuildError(Exception):
    """nvcc is missing, the architecture is unknown, or a source does not compile: one line, then nvcc's own text."""


@dataclass(frozen=True, slots=True)
class Library:
    path: Path
    manifest: dict[str, object]
    spills: dict[str, int]
    """Bytes of register spill stores by kernel, for those that have any; empty when the compiler was not run."""
    serialised: tuple[str, ...] = ()
    """Kernels whose warpgroup products wait for each other, by what ptxas says: right, and several times slower."""


def sources() -> list[Path]:
    return sorted(ENGINE.glob("ops/*/*.cu"))


def headers() -> list[Path]:
    return sorted(ENGINE.glob("kernels/*.cuh"))


def source_hash(variant: Variant = SHIPPED) -> str:
    """sha256 over names and contents of every CUDA file, and the flags."""
    digest = hashlib.sha256(" ".join((*FLAGS, *variant.flags)).encode())
    for path in (*headers(), *sources()):
        digest.update(str(path.relative_to(ENGINE)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def exported(path: Path) -> list[str]:
    """Names of the C functions a source offers."""
    return re.findall(r'^extern "C" int (\w+)\(', path.read_text(), flags=re.MULTILINE)


def nvcc() -> Path:
    found = os.environ.get("NVCC") or shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if not found:
        raise BuildError("found no nvcc on PATH; expected CUDA 13's compiler; install it or set NVCC")
    return Path(found)


def manifest(arch: str, variant: Variant = SHIPPED) -> dict[str, object]:
    version = _version(nvcc())
    release = re.search(r"release ([\d.]+), V([\d.]+)", version)
    return {
        "arch": f"sm_{arch}",
        "flags": [*FLAGS, *variant.flags],
        "nvcc": release.group(2) if release else version.strip(),
        "source_sha256": source_hash(variant),
        "kernels": {f"{path.parent.name}/{path.stem}": exported(path) for path in sources()},
    }


def _version(compiler: Path) -> str:
    try:
        return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise BuildError(
            f"found {compiler}, which does not run ({error}); expected CUDA 13's compiler; set NVCC to it"
        ) from error


def library_path(arch: str, variant: Variant = SHIPPED) -> Path:
    return BUILD / f"engine-sm_{arch}{variant.name}-{source_hash(variant)[:16]}.so"


def build(arch: str, variant: Variant = SHIPPED, *, force: bool = False, say: Callable[[str], None] = print) -> Library:
    """Compile for one architecture ("90a" or "121a"). Returns at once when the library for these sources exists."""
    target = TARGETS.get(arch)
    if target is None:
        raise BuildError(f"found architecture {arch!r}; expected one of {', '.join(TARGETS)}")
    path = library_path(arch, variant)
    facts = manifest(arch, variant)
    if path.exists() and not force:
        say(f"sm_{arch}: {path.name} is current")
        return Library(path, facts, {})
    work = BUILD / f"sm_{arch}{variant.name}"
    base = _base(target, variant)
    work.mkdir(parents=True, exist_ok=True)
    text = json.dumps(facts, sort_keys=True)
    embedded = work / "manifest.cu"
    embedded.write_text(f'extern "C" const char* engine_manifest() {{ return R"json({text})json"; }}\n')

    def compile_one(source: Path) -> tuple[Path, str]:
        output = work / f"{source.parent.name}-{source.stem}.o"
        log = _run(
            [*base, "-c", str(source), "-o", str(output)],
            what=f"{source.relative_to(ENGINE.parent)} for sm_{arch}",
        )
        return output, log

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        compiled = list(pool.map(compile_one, [*sources(), embedded]))
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    _run([*base, "-shared", "-o", str(temporary), *(str(o) for o, _ in compiled)], what=f"link for sm_{arch}")
    temporary.replace(path)
    spills: dict[str, int] = {}
    serialised: list[str] = []
    for _, log in compiled:
        spills |= _spills(log)
        serialised += _serialised(log)
    size = f"{path.stat().st_size / 1e6:.1f} MB"
    functions = sum(map(len, _kernels(facts)))
    say(
        f"sm_{arch}: {path.name}, {size}, {functions} functions, {len(spills)} kernels spill, "
        f"{len(serialised)} have products serialised"
    )
    return Library(path, facts, spills, tuple(serialised))


def _kernels(facts: dict[str, object]) -> list[list[str]]:
    kernels = facts["kernels"]
    assert isinstance(kernels, dict)
    return list(kernels.values())


def _base(target: Target, variant: Variant) -> list[str]:
    return [
        str(nvcc()),
        f"-gencode=arch=compute_{target.arch},code=sm_{target.arch}",
        f"-DENGINE_MAX_SHARED_BYTES={target.max_shared_bytes}",
        *FLAGS,
        *variant.flags,
    ]


ADDED_BY_NVCC = ("NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS")
"""From the environment; kernels of another kind would carry the name and the manifest of those that ship."""


def _run(command: Sequence[str], *, what: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in ADDED_BY_NVCC}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise BuildError(f"nvcc failed on {what}:\n{done.stderr.strip()}")
    return done.stderr


def _spills(log: str) -> dict[str, int]:
    """Kernels with spill stores, from `ptxas -v`: a name line, then a properties line."""
    found: dict[str, int] = {}
    name = ""
    for line in log.splitlines():
        if match := re.search(r"Function properties for (\S+)", line):
            name = match.group(1)
        elif (match := re.search(r"(\d+) bytes spill stores", line)) and int(match.group(1)):
            found[name] = int(match.group(1))
    return found


def _serialised(log: str) -> list[str]:
    """Kernels of which ptxas says (C7510 to C7520) that it serialised their products, or put waits between them."""
    return re.findall(r"\(C75\d\d\).*\bin (?:the )?function '(\w+)'", log)
