"""Declares two operator schemas just before torchvision is first imported, in every process of the CPU oracle.

The torchvision wheel on the index is a CUDA build. Its compiled operators do not load beside a CPU torch, and then its
Python half fails at import, because it registers fake implementations for operators that have no schema. vLLM imports
torchvision for image models only; with the two schemas present the import succeeds and nothing else changes. A text
model never calls them: they have no implementation here, so a call would be an error, not a wrong answer.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec

BOXES_AND_SCORES = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


class DeclareOperatorsFirst:
    """A finder that finds nothing: it acts once, when the import system asks it for torchvision, and steps aside."""

    def find_spec(self, fullname: str, *_unused: object) -> ModuleSpec | None:
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            from torch import library

            for operator in ("nms", "qnms"):
                library.define(f"torchvision::{operator}", BOXES_AND_SCORES)
        return None


sys.meta_path.insert(0, DeclareOperatorsFirst())
