"""Read oracle/pin.toml: frozen records of what the opponent must be, and the digest an installation is stamped with."""

from __future__ import annotations

import hashlib
import json
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from gate.errors import OracleError, UsageError

Platform = Literal["cpu", "cuda"]
PLATFORMS: tuple[Platform, ...] = get_args(Platform)

PIN_FILE = Path(__file__).with_name("pin.toml")
READ_AT_EVERY_START = frozenset({"serve", "variants", "runtime_version"})
"""Left out of the digest: changing a flag must not reinstall two gigabytes."""
SHIM_FOLDER = Path(__file__).with_name("cpu-shim")
"""Modules for the oracle's environment, not for ours: the dash keeps them out of every import."""
REPOSITORY = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class ServePin:
    """Flags and environment of the oracle's server; the words are explained at the top of pin.toml."""

    required: tuple[tuple[str, ...], ...]
    forbidden: tuple[str, ...]
    default: tuple[tuple[str, ...], ...]
    env: dict[str, str]
    read_back: dict[str, str]
    variants: dict[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Pin:
    """One platform's opponent."""

    platform: Platform
    distribution: str
    """Name of vLLM's distribution on this platform."""
    version: str
    runtime_version: str
    """What vllm.__version__ and GET /version say, which is not always the distribution's version."""
    shim_version: str | None
    """Version under which the CPU environment names the distribution "vllm"; None where vLLM has its own name."""
    python_min: tuple[int, int]
    python_below: tuple[int, int]
    machines: tuple[str, ...]
    min_free_gb: float
    """GB (10^9 bytes) of disk an installation needs."""
    identity: tuple[str, ...]
    torch_index: str | None
    sha256: dict[str, str]
    """Distribution -> sha256 of its wheel, where content is pinned beside the version."""
    serve: ServePin
    lock: dict[str, str]
    """Distribution (canonical name) -> exact version; complete."""
    digest: str
    """sha256 of everything above, and for the CPU of the shim's sources: what an installation is stamped with."""


def canonical(name: str) -> str:
    """The registry's spelling of a distribution name: lower case, runs of `-_.` as one dash."""
    out = name.lower().replace("_", "-").replace(".", "-")
    while "--" in out:
        out = out.replace("--", "-")
    return out


def home(platform: Platform, root: Path | None = None) -> Path:
    """Folder of the platform's environment: `.oracle/<platform>` under the repository root."""
    return (root or REPOSITORY) / ".oracle" / platform


@cache
def load(platform: str) -> Pin:
    """The pin of one platform. UsageError for an unknown platform; OracleError for a pin.toml that does not parse."""
    if platform not in PLATFORMS:
        raise UsageError(f"oracle platform {platform!r}", expected=" or ".join(PLATFORMS))
    known: Platform = "cpu" if platform == "cpu" else "cuda"
    try:
        document = tomllib.loads(PIN_FILE.read_text())
        return _parse(known, document[known], document["lock"][known])
    except (tomllib.TOMLDecodeError, KeyError, ValueError) as error:
        raise OracleError(
            f"oracle/pin.toml cannot be read: {error!r}", expected="the committed file", hint="git checkout oracle/"
        ) from error


def _parse(platform: Platform, table: dict[str, Any], lock_lines: list[str]) -> Pin:
    serve = table["serve"]
    return Pin(
        platform=platform,
        distribution=canonical(table["distribution"]),
        version=table["version"],
        runtime_version=table["runtime_version"],
        shim_version=table.get("shim_version"),
        python_min=_minor(table["python_min"]),
        python_below=_minor(table["python_below"]),
        machines=tuple(table["machines"]),
        min_free_gb=float(table["min_free_gb"]),
        identity=tuple(canonical(name) for name in table["identity"]),
        torch_index=table.get("torch_index"),
        sha256={canonical(name): value for name, value in table["sha256"].items()},
        serve=ServePin(
            required=tuple(tuple(flag) for flag in serve["required"]),
            forbidden=tuple(serve["forbidden"]),
            default=tuple(tuple(flag) for flag in serve["default"]),
            env=dict(serve["env"]),
            read_back=dict(serve["read_back"]),
            variants={name: tuple(flags) for name, flags in table["variants"].items()},
        ),
        lock=_lock(lock_lines),
        digest=_digest(platform, table, lock_lines),
    )


def _minor(text: str) -> tuple[int, int]:
    major, minor = text.split(".")
    return int(major), int(minor)


def _lock(lines: list[str]) -> dict[str, str]:
    lock: dict[str, str] = {}
    for line in lines:
        name, separator, version = line.partition("==")
        if not separator or not version:
            raise ValueError(f"lock line {line!r} is not name==version")
        if canonical(name) in lock:
            raise ValueError(f"lock names {canonical(name)} twice")
        lock[canonical(name)] = version
    return lock


def _digest(platform: Platform, table: dict[str, Any], lock_lines: list[str]) -> str:
    installed = {key: value for key, value in table.items() if key not in READ_AT_EVERY_START}
    sha = hashlib.sha256(json.dumps([installed, sorted(lock_lines)], sort_keys=True).encode())
    if platform == "cpu":
        for source in sorted(SHIM_FOLDER.iterdir()):
            if source.suffix in (".py", ".pth"):
                sha.update(source.name.encode() + b"\0" + source.read_bytes())
    return sha.hexdigest()
