"""How torch's CUDA allocator asks the driver for memory. torch reads it once, from the environment."""

from __future__ import annotations

from collections.abc import MutableMapping

VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
GROWING = "expandable_segments:True"
"""Reservations that grow by pages of 2 or 20 MB. With pieces of fixed sizes, what one layer's tensors left between them
fits no other layer's, and a step of thousands of tokens reserves more than it ever holds at once."""


def choose(environment: MutableMapping[str, str]) -> None:
    """Before torch is imported; whoever has set either variable has the last word."""
    if not any(name in environment for name in VARIABLES):
        environment[VARIABLES[0]] = GROWING
