"""Build the CPU oracle's shim into a wheel, so that pip installs, records and removes it like any other distribution.

The wheel is a distribution named `vllm`: vLLM asks the environment for the version of "vllm" (and takes "cpu" in it for
the CPU platform), while the CPU builds are published under another name. Answering with real metadata was preferred
to replacing importlib.metadata.version in every process.
"""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

from oracle.pins import SHIM_FOLDER, Pin

PLUGIN_ENTRY_POINT = "[vllm.general_plugins]\noracle_cpu_nvfp4 = oracle_cpu_nvfp4:register\n"
EPOCH = (1980, 1, 1, 0, 0, 0)


def build(pin: Pin, folder: Path) -> Path:
    """Write `vllm-<shim_version>-py3-none-any.whl` into folder and return its path; the same bytes every time."""
    stem = f"vllm-{pin.shim_version}"
    info = f"{stem}.dist-info"
    files = {source.name: source.read_bytes() for source in sorted(SHIM_FOLDER.glob("oracle_cpu_*"))}
    files[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: vllm\nVersion: {pin.shim_version}\n"
        f"Summary: Names {pin.distribution} {pin.version} as vllm and lets it start beside a CPU torch.\n"
    ).encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: oracle\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/entry_points.txt"] = PLUGIN_ENTRY_POINT.encode()
    record = "".join(f"{name},sha256={_digest(content)},{len(content)}\n" for name, content in files.items())
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    wheel = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, date_time=EPOCH), content)
    return wheel


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
