"""Is the oracle what the pin says? Compare the installed environment, or the running server, and refuse differences."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

from gate.errors import OracleError
from oracle import environment
from oracle.environment import Environment
from oracle.pins import Pin, canonical, load
from oracle.readback import ReadBack, read_back

PROBE = Path(__file__).with_name("probe.py")
TOOLS = frozenset({"pip", "setuptools", "wheel", "vllm"})
"""Allowed beside the lock: what makes a venv, and the shim's metadata, whose version is compared separately."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One row of the refusal: what, as pinned, as found."""

    what: str
    pinned: str
    found: str


@dataclass(frozen=True, slots=True)
class Verified:
    """What was compared, and every difference; `notes` are differences that a kind of install is allowed to have."""

    pin: Pin
    where: str
    python: str | None
    versions: dict[str, str]
    differences: tuple[Difference, ...]
    notes: tuple[Difference, ...] = ()

    def table(self) -> str:
        """The differences in columns, one a line."""
        rows = [("what", "pinned", "found"), *((d.what, d.pinned, d.found) for d in self.differences)]
        widths = [max(len(row[i]) for row in rows) for i in (0, 1)]
        return "\n".join(f"  {w:<{widths[0]}}  {p:<{widths[1]}}  {f}" for w, p, f in rows)

    def raise_if_different(self) -> None:
        """OracleError whose message is one line and then the table."""
        if self.differences:
            raise OracleError(
                f"the {self.pin.platform} oracle at {self.where} is not the pinned {self.pin.distribution} "
                f"{self.pin.version}: {len(self.differences)} difference(s)",
                hint=f"run: gate oracle install {self.pin.platform} --force\n{self.table()}",
            )


def verify_installed(platform: str, root: Path | None = None) -> Verified:
    """Compare the installed environment with the pin. OracleError when it is not installed or differs."""
    pin = load(platform)
    verified = compare(pin, environment.require(pin.platform, root))
    verified.raise_if_different()
    return verified


def verify_running(url: str, platform: str, expect: Mapping[str, str] | None = None) -> Verified:
    """Compare a running server with the pin: its version, and every read-back value it must report.

    expect: more labels of its cache configuration, such as {"cache_dtype": "bfloat16"}; "max_model_len" is one too.
    OracleError when it cannot be reached, reports no such value, or differs.
    """
    pin = load(platform)
    try:
        seen = read_back(url)
    except httpx.HTTPError as error:
        raise OracleError(f"no oracle answers at {url}: {error}", hint="start one: gate oracle serve MODEL") from error
    verified = compare_running(pin, seen, expect or {})
    verified.raise_if_different()
    return verified


def compare(pin: Pin, installed: Environment) -> Verified:
    """Every distribution against the lock, and vLLM's files against the hashes of its own wheel.

    An unpacked archive leaves out what a text server never imports and uses the host's packages for the rest, so there
    only the pin's `identity` must match, and other deviations from the lock are notes.
    """
    held = _probe(pin, installed)
    versions = {canonical(name): version for name, version in held.versions.items()}
    differences: list[Difference] = []
    notes: list[Difference] = []
    for name, pinned in pin.lock.items():
        found = versions.get(name)
        if found is None or found.partition("+")[0] != pinned.partition("+")[0] or ("+" in pinned and found != pinned):
            strict = installed.source != "archive" or name in pin.identity
            (differences if strict else notes).append(Difference(name, pinned, found or "not installed"))
    if installed.source != "archive":
        for name in sorted(set(versions) - set(pin.lock) - TOOLS):
            differences.append(Difference(name, "not in the lock", versions[name]))
    if pin.shim_version is not None and versions.get("vllm") != pin.shim_version:
        differences.append(Difference("vllm (shim)", pin.shim_version, versions.get("vllm", "not installed")))
    for file in held.changed:
        differences.append(Difference(file, "as in its wheel", "changed"))
    for file in held.missing:
        (notes if installed.source == "archive" else differences).append(Difference(file, "as in its wheel", "missing"))
    return Verified(pin, installed.python, held.python, versions, tuple(differences), tuple(notes))


def compare_running(pin: Pin, seen: ReadBack, expect: Mapping[str, str]) -> Verified:
    """A server's own words against the pin; a value that it does not report is a difference, never a pass."""
    pairs = [("version", pin.runtime_version, seen.version)]
    reported = {"max_model_len": str(seen.max_model_len)} | seen.cache_config
    pairs += [(name, value, reported.get(name)) for name, value in {**pin.serve.read_back, **expect}.items()]
    differences = [
        Difference(what, pinned, found if found is not None else "not reported")
        for what, pinned, found in pairs
        if found != pinned
    ]
    return Verified(pin, seen.url, None, {"vllm": seen.version or ""}, tuple(differences))


@dataclass(frozen=True, slots=True)
class _Held:
    """What probe.py printed."""

    python: str
    versions: dict[str, str]
    changed: list[str]
    missing: list[str]


def _probe(pin: Pin, installed: Environment) -> _Held:
    env = {"PATH": os.environ.get("PATH", os.defpath)}
    if installed.pythonpath is not None:
        env["PYTHONPATH"] = installed.pythonpath
    done = subprocess.run(
        [installed.python, str(PROBE), pin.distribution], env=env, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise OracleError(
            f"the oracle's Python failed: {(done.stderr.strip().splitlines() or ['no output'])[-1]}",
            hint=f"run: gate oracle install {pin.platform} --force",
        )
    return _Held(**json.loads(done.stdout))
