"""The operations a forward pass is made of, one folder each, and which devices can run them.

Every folder has the same files: `__init__.py` states the contract and chooses the implementation, `naive.py` is the
fp32 specification written for reading, `README.md` has the mathematics and layouts, `kernel.cu` the CUDA kernel
where there is one. `eager.py`, where present, is the vectorised torch path that serves when no kernel does.
"""

from __future__ import annotations

import importlib

NAMES = ("linear", "norm", "rope", "attention", "gdn", "moe", "lm_head", "sample")


def missing_kernels(device_type: str, names: tuple[str, ...] = NAMES) -> tuple[str, ...]:
    """Names of the ops that have no implementation meant to serve on `device_type` ("cpu", "cuda").

    An op lists the device types it is built for in its `DEVICES`. Elsewhere its torch path still computes the right
    values, slowly, and runs only when the user asked for that.
    """
    return tuple(n for n in names if device_type not in importlib.import_module(f"engine.ops.{n}").DEVICES)
