"""Kernels of the tiny dense checkpoint (6 Gated DeltaNet, 2 attention layers), as nsys and torch.profiler write them.

Synthetic: launch counts follow from the checkpoint's layers, times are made up (a step takes seconds, so that no wall
time of a stand-in server comes near it).
"""

from __future__ import annotations

import gzip
import json
import sqlite3
from contextlib import closing
from pathlib import Path

STEP = (
    ("void marlin::Marlin<256, 1, 8, 8>(int4 const*)", 17, 40_000.0),
    ("void cutlass::device_kernel<vllm::cutlass_3x_gemm_sm90_fp8<cutlass::float_e4m3_t>>(Params)", 16, 20_000.0),
    ("nvjet_sm90_tst_64x8_64x16_2x1_v_bz_splitK_TNT", 6, 4_000.0),
    ("void cublasLt::splitKreduce_kernel<32, 16>(Params)", 6, 2_000.0),
    ("fused_recurrent_gated_delta_rule_packed_decode_kernel", 6, 5_000.0),
    ("_causal_conv1d_update_kernel", 6, 2_000.0),
    ("void cutlass::device_kernel<flash::FlashAttnFwdSm90<2>>(Params)", 2, 9_000.0),
    ("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>(Params)", 2, 3_000.0),
    ("triton_red_fused_add_rms_norm_0", 17, 1_000.0),
)
"""(name, launches a step, µs a launch)."""
PREFILL = (("void flash::prefill_kernel(Params)", 2, 50_000.0),)
SLOW = {"void marlin::Marlin<256, 1, 8, 8>(int4 const*)": 1.5}
"""What the candidate takes longer for."""


def launches(tokens: int, *, slow: bool = False) -> list[tuple[str, float, float]]:
    """(name, start µs, µs) of a window: one prefill, then a step a token, back to back."""
    made, now = [], 0.0
    for kernels in (PREFILL, *([STEP] * tokens)):
        for name, count, us in kernels:
            took = us * (SLOW.get(name, 1.0) if slow else 1.0)
            for _ in range(count):
                made.append((name, now, took))
                now += took
    return made


def write_sqlite(path: Path, tokens: int, *, slow: bool = False) -> None:
    """In the layout of nsys 2025: strings apart, graph nodes by id, a memory bandwidth."""
    names: dict[str, int] = {}
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as db:
        db.executescript(
            """
            CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
            CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);
            CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, memoryBandwidth INTEGER);
            CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER,
              contextId INTEGER, greenContextId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER,
              demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER, gridX INTEGER,
              gridY INTEGER, gridZ INTEGER, blockX INTEGER, blockY INTEGER, blockZ INTEGER, graphNodeId INTEGER,
              graphId INTEGER);
            """
        )
        db.execute("INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_PRODUCT_VERSION', '2025.3.2.474')")
        db.execute("INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA Imaginary', 1000000000000)")
        for node, (name, start, us) in enumerate(launches(tokens, slow=slow)):
            if name not in names:
                names[name] = len(names) + 1
                db.execute("INSERT INTO StringIds VALUES (?, ?)", (names[name], name))
            begin, end = round(start * 1e3), round((start + us) * 1e3)
            row = (
                begin,
                end,
                0,
                1,
                0,
                7,
                node,
                1,
                names[name],
                names[name],
                names[name],
                132,
                1,
                1,
                256,
                1,
                1,
                node,
                1,
            )
            db.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({', '.join('?' * 19)})", row)
        db.commit()


def write_chrome(path: Path, tokens: int, *, slow: bool = False) -> None:
    events = [
        {
            "ph": "X",
            "cat": "kernel",
            "name": name,
            "ts": start,
            "dur": us,
            "args": {"grid": [132, 1, 1], "block": [256, 1, 1], "stream": 7},
        }
        for name, start, us in launches(tokens, slow=slow)
    ]
    host = [{"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "ts": 0.0, "dur": 5.0}]
    document = {"schemaVersion": 1, "deviceProperties": [{"name": "NVIDIA Imaginary"}], "traceEvents": host + events}
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
