"""Chrome traces of torch.profiler: device work only, plain or gzipped; what is no trace is one line. Synthetic."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from gate.errors import StorageError
from gate.profile import chrome
from gate.profile.rows import TracedKernel

EVENTS = [
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 50.0},
    {"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "ts": 1, "dur": 5.0},
    {
        "ph": "X",
        "cat": "kernel",
        "name": "k",
        "ts": 10.5,
        "dur": 3.25,
        "args": {"grid": [132, 1, 1], "block": [256, 1, 1]},
    },
    {
        "ph": "X",
        "cat": "kernel",
        "name": "k",
        "ts": 20,
        "dur": 1.75,
        "args": {"grid": [132, 1, 1], "block": [256, 1, 1]},
    },
    {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)", "ts": 21, "dur": 1.0, "args": {}},
    {"ph": "X", "cat": "gpu_memset", "name": "Memset (Device)", "ts": 30, "dur": 0.5},
    {"ph": "f", "cat": "kernel", "name": "flow", "ts": 30},
]
DOCUMENT = {"schemaVersion": 1, "deviceProperties": [{"name": "NVIDIA H200"}], "traceEvents": EVENTS}


@pytest.mark.parametrize("name", ["t.json", "t.pt.trace.json.gz"])
def test_device_work_is_summed(name: str, tmp_path: Path) -> None:
    raw = json.dumps(DOCUMENT).encode()
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    trace = chrome.read(tmp_path / name)
    assert trace.kernels == (
        TracedKernel(name="k", grid="132x1x1", block="256x1x1", launches=2, us=5.0, own_us=5.0),
        TracedKernel(name="Memcpy HtoD (Pinned -> Device)", grid="", block="", launches=1, us=1.0, own_us=0.25),
        TracedKernel(name="Memset (Device)", grid="", block="", launches=1, us=0.5, own_us=0.5),
    )
    assert trace.busy_us == pytest.approx(3.25 + 2.0 + 0.5)
    assert (trace.level, trace.device, trace.tool) == ("node", "NVIDIA H200", "torch.profiler (schema 1)")


def test_times_since_some_far_day_keep_their_nanoseconds(tmp_path: Path) -> None:
    """Kineto's own base leaves 5e12 µs; of 1.8e15, as there are without it, a float64 has steps of a quarter of one."""
    day = 1_790_857_026_000_000.0
    events = [{"ph": "X", "cat": "kernel", "name": "k", "ts": day + 10 * i, "dur": 2.017} for i in range(100)]
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": events}))
    trace = chrome.read(tmp_path / "t.json")
    assert (trace.kernels[0].us, trace.busy_us) == (pytest.approx(201.7), pytest.approx(201.7))


def test_a_process_without_a_gpu_has_no_kernels(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": EVENTS[:2]}))
    assert (chrome.read(tmp_path / "t.json").level, chrome.read(tmp_path / "t.json").device) == ("none", None)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"{", "cannot be read as a trace"),
        (b"[1, 2]", "has no traceEvents"),
        (
            json.dumps({"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1}]}).encode(),
            "without name, ts",
        ),
    ],
)
def test_what_is_no_trace(raw: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_bytes(raw)
    with pytest.raises(StorageError, match=words):
        chrome.read(tmp_path / "t.json")


@pytest.mark.parametrize("odd", [b"NaN", b"-Infinity", b'"tab\tin a name"', b'"caf\xe9"'])
def test_json_written_by_hand_is_read_all_the_same(odd: bytes, tmp_path: Path) -> None:
    raw = json.dumps(DOCUMENT).encode().replace(b'"args": {}', b'"args": {"x": ' + odd + b"}")
    assert odd in raw
    (tmp_path / "t.json").write_bytes(raw)
    assert [k.launches for k in chrome.read(tmp_path / "t.json").kernels] == [2, 1, 1]


def test_half_a_gzip_file(tmp_path: Path) -> None:
    (tmp_path / "t.json.gz").write_bytes(gzip.compress(json.dumps(DOCUMENT).encode())[:60])
    with pytest.raises(StorageError, match="cannot be read as a trace"):
        chrome.read(tmp_path / "t.json.gz")
