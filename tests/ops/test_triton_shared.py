"""Triton's kernels compiled for sm_90a and sm_121a, no GPU needed: a block's shared memory is what each has."""

from __future__ import annotations

import importlib.util

import pytest

from engine.kernels.build import TARGETS

WANTED = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton compiles these, and comes with torch for CUDA alone"
)

SIZES = {"CHUNK": 64, "DIM": 128}
"""chunked.delta_rule's, with its default warps and stages."""
CHUNK = {
    "mixed": "*bf16", "ba": "*bf16", "rate": "*fp32", "bias": "*fp32", "squares": "*bf16", "factors": "*fp32",
    "tokens": "i32", "heads": "i32", "repeat": "i32", "key_width": "i32", "channels": "i32", "ba_stride": "i32",
    "scale": "fp32",
}  # fmt: skip
SCAN = {
    "mixed": "*bf16", "squares": "*bf16", "factors": "*fp32", "state": "*fp32", "out": "*bf16", "tokens": "i32",
    "chunks": "i32", "heads": "i32", "repeat": "i32", "key_width": "i32", "channels": "i32",
}  # fmt: skip


def shared_bytes(kernel: object, types: dict[str, str], constants: dict[str, object], arch: int, stages: int) -> int:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = types | dict.fromkeys(constants, "constexpr")
    source = ASTSource(
        kernel, signature, {(list(signature).index(n),): v for n, v in constants.items()}, aligned(types)
    )
    made = triton.compile(source, GPUTarget("cuda", arch, 32), {"num_warps": 4, "num_stages": stages})
    return int(made.metadata.shared)


def aligned(types: dict[str, str]) -> dict[tuple[int], list[list[object]]]:
    """As a launch specialises them: pointers and strides of the models are multiples of 16."""
    plain = ("tokens", "chunks", "scale", "repeat")
    return {(i,): [["tt.divisibility", 16]] for i, name in enumerate(types) if name not in plain}


@WANTED
@pytest.mark.parametrize("arch", TARGETS)
def test_a_block_of_gated_delta_net_has_the_shared_memory_it_takes(arch: str) -> None:
    from engine.ops.gdn import chunked

    assert tuple(SIZES.values()) == (chunked.CHUNK_TOKENS, chunked.HEAD_DIM)
    capability, most = int(arch.rstrip("a")), TARGETS[arch].max_shared_bytes
    chunk = shared_bytes(chunked._chunk_kernel, CHUNK, {**SIZES, "PRECISION": "tf32x3"}, capability, 1)
    scan = shared_bytes(chunked._scan_kernel, SCAN, {**SIZES, "TILE": chunked.VALUE_TILE}, capability, 2)
    print(f"sm_{arch}: chunks {chunk} B, scan {scan} B of {most}")
    assert 0 < chunk <= most
    assert 0 < scan <= most
