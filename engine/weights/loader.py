"""load_weights: check every name, dtype and shape against the configuration, then hand out weights on demand.

Nothing is kept: each call reads one layer, moves it to the device and forgets it. While a model is built, host memory
holds one tensor at a time and the device one layer more than the model; on a CPU the tensor read is the resident one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from engine.models.config import TextConfig
from engine.weights.checkpoint import Checkpoint, Part
from engine.weights.errors import CheckpointError
from engine.weights.layouts import FLOATS, SCALAR, Spec, build, build_fp8, build_nvfp4, layout, numbers, stacked_layout
from engine.weights.quantization import QuantConfig, Scheme, load_quant_config
from engine.weights.specs import linear_shapes, optional_scalars, plain_shapes
from engine.weights.types import Fp8Weight, Nvfp4Weight, Weight, WeightError

CPU = torch.device("cpu")
BELONG = "use the config.json that belongs to these weights"


@dataclass(frozen=True, slots=True)
class _Place:
    """One expert's rows in a stack [experts, rows, k]."""

    stack: str
    expert: int
    row: int
    rows: int


class ModelWeights:
    """A checked checkpoint, by canonical module and tensor name."""

    def __init__(self, checkpoint: Checkpoint, config: TextConfig, quant: QuantConfig, device: torch.device) -> None:
        self.checkpoint = checkpoint
        self.config = config
        self.quant = quant
        self.device = device
        self.linears = linear_shapes(config)
        self.schemes = {name: quant.scheme(name) for name in self.linears}
        self._places: dict[str, _Place] = {}
        """Of experts that are stored as one tensor per layer."""
        self._check()

    def linear(self, name: str) -> Weight:
        """The linear layer `name` in its shipped form. Raises CheckpointError for impossible values, KeyError for
        a name that the configuration does not have.
        """
        n, _ = self.linears[name]
        return build(self.schemes[name], name, n, lambda attribute: self._read([name], attribute))

    def stacked(self, names: Sequence[str]) -> Nvfp4Weight | Fp8Weight:
        """Quantised layers of one shape as one matrix, the rows of one behind another's: read once, into their place.

        Raises CheckpointError for impossible values, WeightError where schemes or shapes differ.
        """
        kinds = {(self.linears[name], self.schemes[name]) for name in names}
        (n, _), scheme = self.linears[names[0]], self.schemes[names[0]]
        if len(kinds) > 1 or scheme is Scheme.NONE:
            found = sorted(f"{list(shape)} {kind}" for shape, kind in kinds)
            raise WeightError(f"{names[0]} and others: found {', '.join(found)}, expected NVFP4 or FP8 of one shape")
        made = build_nvfp4 if scheme in (Scheme.NVFP4, Scheme.NVFP4_PACKED) else build_fp8
        return made(scheme, names, n, lambda attribute: self._read(names, attribute))

    def _read(self, modules: Sequence[str], attribute: str) -> Tensor:
        """[modules, *shape]. Scales per tensor and row are read on the host, where looking at them costs nothing."""
        parts = [self._part(module, attribute) for module in modules]
        dtypes = {self.checkpoint.tensors[part.name].dtype for part in parts}
        if attribute == "weight" or not dtypes <= set(FLOATS):
            return self.checkpoint.read_stack(parts, self.device)
        flat = [Part(part.name, part.first_element, (math.prod(part.shape),)) for part in parts]
        if len(dtypes) == 1 and len({part.shape for part in flat}) == 1:
            return self.checkpoint.read_stack(flat, CPU)
        rows = max(part.shape[0] for part in flat)
        return torch.stack([self.checkpoint.read_stack([part], CPU)[0].float().expand(rows) for part in flat])

    def _part(self, module: str, attribute: str) -> Part:
        place = self._places.get(module)
        if place is None:
            name = f"{module}.{attribute}"
            return Part(name, 0, self.checkpoint.tensors[name].shape)
        name = place.stack if self.schemes[module] is Scheme.NONE else f"{place.stack}.{attribute}"
        shape = self.checkpoint.tensors[name].shape
        if math.prod(shape) in (1, self.config.num_experts):  # a scale of all, or of each
            return Part(name, place.expert if math.prod(shape) > 1 else 0, ())
        columns = math.prod(shape[2:])
        first = (place.expert * place.rows + place.row) * columns
        return Part(name, first, (self.linears[module][0], *shape[2:]))

    def tensor(self, name: str) -> Tensor:
        """A tensor as stored, on the device. Raises CheckpointError for a NaN or an infinity in it."""
        stored = self.checkpoint.read(name, self.device)
        # The A_log of a head that forgets nothing is minus infinity.
        numbers(name, stored.clamp(min=torch.finfo(stored.dtype).min) if name.endswith(".A_log") else stored)
        return stored

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
        self._check_schemes()
        for name, (n, k) in self.linears.items():
            if name not in self._places:
                for attribute, spec in layout(self.schemes[name], n, k).items():
                    specs[f"{name}.{attribute}"] = spec
        for name, spec in specs.items():
            self._check_tensor(name, spec)
        leftover = sorted(self.checkpoint.tensors.keys() - specs.keys())
        if leftover:
            first = self.checkpoint.tensors[leftover[0]].stored_name
            raise CheckpointError(
                f"{first}: not part of this model as configured ({len(leftover)} such tensors); expected only text "
                f"tensors of its layers and schemes; {BELONG}"
            )

    def _check_schemes(self) -> None:
        """What both files say of every layer, and experts of one layer alike: a kernel takes them as one."""
        if (twin := self.quant.twin) is not None:
            for name in self.linears:
                here, there = self.quant.scheme(name), twin.scheme(name)
                if here is not there:
                    raise CheckpointError(
                        f"{name}: config.json says {here}, hf_quant_config.json says {there}; expected the same, "
                        "download both again"
                    )
        for i in range(self.config.num_hidden_layers if self.config.is_moe else 0):
            root = f"layers.{i}.mlp.experts"
            for first, leaves in (("gate_proj", ("gate_proj", "up_proj")), ("down_proj", ("down_proj",))):
                expected = self.schemes[f"{root}.0.{first}"]
                for e in range(self.config.num_experts):
                    for leaf in leaves:
                        found = self.schemes[f"{root}.{e}.{leaf}"]
                        if found is not expected:
                            raise CheckpointError(
                                f"{root}.{e}.{leaf}: is {found}, {root}.0.{first} is {expected}; expected one scheme "
                                f"for all experts of a layer, {BELONG}"
                            )

    def _check_tensor(self, name: str, spec: Spec) -> None:
        info = self.checkpoint.tensors.get(name)
        if info is None:
            if spec.required:
                raise CheckpointError(
                    f"{name}: missing, expected {' or '.join(spec.dtypes)} {list(spec.shapes[0])}; "
                    f"finish the download, or {BELONG}"
                )
            return
        if info.dtype not in spec.dtypes or info.shape not in spec.shapes:
            shapes = " or ".join(str(list(s)) for s in spec.shapes)
            raise CheckpointError(
                f"{info.stored_name}: found {info.dtype} {list(info.shape)}, expected {' or '.join(spec.dtypes)} "
                f"{shapes}; {BELONG}"
            )

    def _stacked_experts(self) -> dict[str, Spec]:
        """Experts as one tensor per layer: gate_up_proj [E, 2I, H], gate's rows first, and down_proj [E, H, I]."""
        config, specs = self.config, dict[str, Spec]()
        experts, inter, hidden = config.num_experts, config.moe_intermediate_size, config.hidden_size
        single, stacked = self._expert_names()
        for root, name in stacked.items():
            if root in single:
                raise CheckpointError(
                    f"{root}: found both stacked and single experts ({name}, {single[root]}), expected one of the two; "
                    "download the checkpoint again"
                )
            for leaf, shards, (n, k) in (
                ("gate_up_proj", ("gate_proj", "up_proj"), (2 * inter, hidden)),
                ("down_proj", ("down_proj",), (hidden, inter)),
            ):
                stack = f"{root}.{leaf}"
                scheme = self.quant.scheme(stack)
                if scheme is Scheme.NONE:  # a table may name the experts one by one all the same
                    scheme = self.schemes[f"{root}.0.{shards[0]}"]
                for attribute, spec in stacked_layout(scheme, experts, n, k).items():
                    specs[f"{stack}.{attribute}".removesuffix(".")] = spec
                for e in range(experts):
                    for row, shard in enumerate(shards):
                        self.schemes[f"{root}.{e}.{shard}"] = scheme
                        self._places[f"{root}.{e}.{shard}"] = _Place(stack, e, row * n // len(shards), n)
        return specs

    def _expert_names(self) -> tuple[dict[str, str], dict[str, str]]:
        """Of layers with single and of layers with stacked experts: `layers.0.mlp.experts` -> one of their tensors."""
        single: dict[str, str] = {}
        stacked: dict[str, str] = {}
        for name in self.checkpoint.tensors:
            block, found, rest = name.partition(".mlp.experts.")
            root = f"{block}.mlp.experts"
            if found and f"{root}.0.gate_proj" in self.linears:
                (single if rest.partition(".")[0].isdecimal() else stacked).setdefault(root, name)
        return single, stacked


def load_weights(path: Path, config: TextConfig, device: torch.device | str) -> ModelWeights:
    """Open and check the folder `path`; no weight is read yet. Raises CheckpointError naming the file or tensor."""
    return ModelWeights(Checkpoint(path), config, load_quant_config(path), torch.device(device))
