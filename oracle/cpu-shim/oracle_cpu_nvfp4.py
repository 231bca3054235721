"""A vLLM general plugin: lets the CPU platform choose vLLM's own emulated NVFP4 linear kernel.

The kernel is plain torch (weights dequantised, activations quantised and dequantised) and runs anywhere, but vLLM's
table of candidates lists it for CUDA and ROCm alone. The entry is added only where vLLM has none for the CPU.
"""

from __future__ import annotations


def register() -> None:
    """Called by vLLM in each of its processes, before a model is built."""
    from vllm.model_executor.kernels import linear  # type: ignore[import-not-found]
    from vllm.platforms.interface import PlatformEnum  # type: ignore[import-not-found]

    candidates = linear._POSSIBLE_NVFP4_KERNELS
    if not candidates.get(PlatformEnum.CPU):
        candidates[PlatformEnum.CPU] = [linear.EmulationNvFp4LinearKernel]
