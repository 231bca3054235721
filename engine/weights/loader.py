"""load_weights: check every name, dtype and shape against the configuration, then hand out weights on demand.

Nothing is kept: each call reads one layer, moves it to the device and forgets it. While a model is built, host memory
holds one tensor at a time and the device one layer more than the model; on a CPU the tensor read is the resident one.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from engine.models.config import TextConfig
from engine.weights.checkpoint import Checkpoint
from engine.weights.errors import CheckpointError
from engine.weights.layouts import FLOATS, SCALAR, Spec, build, layout
from engine.weights.quantization import QuantConfig, Scheme, load_quant_config
from engine.weights.specs import linear_shapes, optional_scalars, plain_shapes
from engine.weights.types import DenseWeight, Weight


class ModelWeights:
    """A checked checkpoint, by canonical module and tensor name."""

    def __init__(self, checkpoint: Checkpoint, config: TextConfig, quant: QuantConfig, device: torch.device) -> None:
        self.checkpoint = checkpoint
        self.config = config
        self.quant = quant
        self.device = device
        self.linears = linear_shapes(config)
        self.schemes = {name: quant.scheme(name) for name in self.linears}
        self._stacks: dict[str, tuple[str, int]] = {}
        """Expert projection -> its stack and the index of its first element there."""
        self._check()

    def linear(self, name: str) -> Weight:
        """The linear layer `name` in its shipped form. Raises CheckpointError for impossible values, KeyError for
        a name that the configuration does not have.
        """
        n, k = self.linears[name]
        if name in self._stacks:
            stack, first = self._stacks[name]
            return DenseWeight(self.checkpoint.read_rows(stack, self.device, first, (n, k)))
        return build(self.schemes[name], name, n, lambda part: self.tensor(f"{name}.{part}"))

    def tensor(self, name: str) -> Tensor:
        """A tensor as stored, on the device."""
        return self.checkpoint.read(name, self.device)

    def scalar(self, name: str, default: float) -> float:
        """A stored scalar, or `default` where the checkpoint has none."""
        if name not in self.checkpoint.tensors:
            return default
        value = self.checkpoint.read(name, torch.device("cpu")).float().item()
        if not 0 < value < float("inf"):
            raise CheckpointError(f"{name}: found {value}, expected a positive scale; download the checkpoint again")
        return value

    def _check(self) -> None:
        specs: dict[str, Spec] = {name: Spec(FLOATS, (shape,)) for name, shape in plain_shapes(self.config).items()}
        specs |= {name: Spec(FLOATS, SCALAR, required=False) for name in optional_scalars(self.config)}
        specs |= self._stacked_experts()
        for name, (n, k) in self.linears.items():
            if name not in self._stacks:
                specs |= {f"{name}.{part}": spec for part, spec in layout(self.schemes[name], n, k).items()}
        for name, spec in specs.items():
            self._check_tensor(name, spec)
        leftover = sorted(self.checkpoint.tensors.keys() - specs.keys())
        if leftover:
            first = self.checkpoint.tensors[leftover[0]].stored_name
            raise CheckpointError(
                f"{first}: not part of this model as configured ({len(leftover)} such tensors); expected only text "
                "tensors of its layers and schemes: config.json and the weights do not belong together"
            )

    def _check_tensor(self, name: str, spec: Spec) -> None:
        info = self.checkpoint.tensors.get(name)
        if info is None:
            if spec.required:
                raise CheckpointError(
                    f"{name}: missing, expected {' or '.join(spec.dtypes)} {list(spec.shapes[0])}; "
                    "finish the download, or use the config.json that belongs to these weights"
                )
            return
        if info.dtype not in spec.dtypes or info.shape not in spec.shapes:
            shapes = " or ".join(str(list(s)) for s in spec.shapes)
            raise CheckpointError(
                f"{info.stored_name}: found {info.dtype} {list(info.shape)}, expected {' or '.join(spec.dtypes)} "
                f"{shapes}; use the config.json that belongs to these weights"
            )

    def _stacked_experts(self) -> dict[str, Spec]:
        """Experts as one tensor per layer: gate_up_proj [E, 2I, H], gate's rows first, and down_proj [E, H, I]."""
        config, specs = self.config, dict[str, Spec]()
        experts, inter, hidden = config.num_experts, config.moe_intermediate_size, config.hidden_size
        for i in range(config.num_hidden_layers if config.is_moe else 0):
            root = f"layers.{i}.mlp.experts"
            if f"{root}.gate_up_proj" not in self.checkpoint.tensors:
                continue
            single = f"{root}.0.gate_proj"
            if any(f"{single}.{part}" in self.checkpoint.tensors for part in ("weight", "weight_packed")):
                raise CheckpointError(f"{root}: found both stacked and single experts, expected one of the two")
            if self.schemes[single] is not Scheme.NONE:
                raise CheckpointError(f"{root}: stacked experts are {self.schemes[single]}, expected single ones then")
            specs[f"{root}.gate_up_proj"] = Spec(FLOATS, ((experts, 2 * inter, hidden),))
            specs[f"{root}.down_proj"] = Spec(FLOATS, ((experts, hidden, inter),))
            for e in range(experts):
                first = e * 2 * inter * hidden
                self._stacks[f"{root}.{e}.gate_proj"] = (f"{root}.gate_up_proj", first)
                self._stacks[f"{root}.{e}.up_proj"] = (f"{root}.gate_up_proj", first + inter * hidden)
                self._stacks[f"{root}.{e}.down_proj"] = (f"{root}.down_proj", e * hidden * inter)
        return specs


def load_weights(path: Path, config: TextConfig, device: torch.device | str) -> ModelWeights:
    """Open and check the folder `path`; no weight is read yet. Raises CheckpointError naming the file or tensor."""
    return ModelWeights(Checkpoint(path), config, load_quant_config(path), torch.device(device))
