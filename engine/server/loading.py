"""From a checkpoint folder to something that serves: text side first, since it fails fastest, then the model."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import TemplateError
from safetensors import SafetensorError

from engine.cache.blocks import BlockPool
from engine.cache.states import StatePool
from engine.config import EngineConfig
from engine.errors import PreconditionError, UsageError
from engine.exhausted import out_of_memory
from engine.loop import EngineLoop
from engine.manifest import manifest
from engine.ranges import annotated
from engine.request import RANGES
from engine.scheduler import Scheduler
from engine.server.service import ModelInfo
from engine.server.template import ChatTemplate
from engine.server.tokenizer import Tokenizer
from engine.server.warmup import warm_up

if TYPE_CHECKING:
    from engine.runner import LoadedRunner

logger = logging.getLogger(__name__)

SAMPLING_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""What generation_config.json may set for requests that leave it out, as in vLLM."""


SIZES = frozenset({"num_blocks", "cache_bytes"})
"""What Runner.info() says that follows from free memory. A manifest is what runs, and equal at every start."""


@dataclass(frozen=True, slots=True)
class TextSide:
    tokenizer: Tokenizer | None
    template: ChatTemplate | None
    sampling_defaults: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A started engine and what it says of itself."""

    loop: EngineLoop
    info: ModelInfo
    manifest: Mapping[str, object]


def check_folder(path: Path) -> None:
    """Raises PreconditionError where there is nothing to load; cheap enough to run before the port is opened."""
    if not path.is_dir():
        raise PreconditionError(
            f"no folder {path}; expected a checkpoint with config.json and safetensors: download it first"
        )
    if not (path / "config.json").is_file():
        raise PreconditionError(f"{path} has no config.json; expected a Hugging Face checkpoint folder")


def check_limits(config: EngineConfig) -> None:
    """Raises UsageError where the limits of one step exclude each other: known before anything is opened."""
    tokens, sequences = config.scheduler.max_num_batched_tokens, config.scheduler.max_num_seqs
    if tokens < sequences:
        raise UsageError(
            f"--max-num-batched-tokens {tokens} is below --max-num-seqs {sequences}: a full batch could not decode; "
            "raise the first or lower the second"
        )


def load_text_side(path: Path) -> TextSide:
    """Raises PreconditionError for a file that is there and broken; what is not there is None."""
    try:
        return TextSide(Tokenizer.load(path), ChatTemplate.load(path), _sampling_defaults(path))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OSError, TemplateError) as error:
        raise PreconditionError(
            f"{path}: tokenizer, chat template or generation_config.json: {_line(error)}"
        ) from error


def load_runner(config: EngineConfig) -> LoadedRunner:
    """Weights, caches, sampler. Raises PreconditionError in one line for whatever is wrong with the folder."""
    from engine.kernels.build import BuildError
    from engine.runner import load_runner as load

    try:
        return load(config)
    except PreconditionError:
        raise
    except BuildError as error:
        raise PreconditionError(
            f"the kernels for this device are not there: {_line(error)}; --allow-reference runs the slow torch "
            "references"
        ) from error
    except RecursionError as error:
        raise PreconditionError(f"{config.model.path}: a JSON file nests too deeply; download it again") from error
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        raise _no_memory(config, error) from error
    except (ValueError, KeyError, OSError, SafetensorError) as error:
        raise PreconditionError(f"cannot load {config.model.path}: {type(error).__name__}: {_line(error)}") from error


def load_engine(config: EngineConfig, sampling_defaults: Mapping[str, float]) -> Loaded:
    """Reads the weights, allocates the caches, starts the loop. Raises PreconditionError in one line."""
    runner = load_runner(config)
    max_model_len = _context(runner, config.cache.block_tokens)
    config = replace(config, scheduler=replace(config.scheduler, max_model_len=max_model_len))
    blocks = BlockPool(runner.num_blocks, config.cache.block_tokens)
    scheduler = Scheduler(config, blocks, StatePool(config.scheduler.max_num_seqs))
    _warm_up(config, runner)
    details = dict(runner.info())
    loop = EngineLoop(scheduler, annotated(runner))
    loop.start()
    info = ModelInfo(
        vocab_size=runner.vocab_size,
        max_model_len=max_model_len,
        eos_ids=frozenset(runner.eos_ids),
        num_blocks=runner.num_blocks,
        kv_cache_dtype=str(details.get("kv_cache_dtype", config.cache.kv_cache_dtype)),
        sampling_defaults=sampling_defaults,
    )
    return Loaded(loop, info, manifest({name: value for name, value in details.items() if name not in SIZES}))


def _warm_up(config: EngineConfig, runner: LoadedRunner) -> None:
    try:
        warm_up(runner, config.scheduler, config.cache.block_tokens)
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        tokens = config.scheduler.max_num_batched_tokens
        raise PreconditionError(
            f"not enough memory for a step of {tokens} tokens beside {config.model.path} and its caches: "
            f"{_line(error)}; lower --max-num-batched-tokens or --num-blocks"
        ) from error


def _context(runner: LoadedRunner, block_tokens: int) -> int:
    """What one request can be: the model's limit, or what the whole KV pool holds. The last token sampled is never run,
    so it needs no place there. Answering with the larger number would promise what the scheduler must refuse."""
    capacity = runner.num_blocks * block_tokens + 1
    if capacity < runner.max_model_len:
        logger.warning(
            "%d KV blocks of %d tokens hold less than %d tokens of context: it is %d; raise --num-blocks",
            runner.num_blocks,
            block_tokens,
            runner.max_model_len,
            capacity,
        )
    return min(runner.max_model_len, capacity)


def in_background(work: Callable[[], None], failed: Callable[[BaseException], None]) -> threading.Thread:
    """Runs `work` on a thread that does not keep the process alive; an exception goes to `failed`."""

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  (handed on, not swallowed: a thread has nobody to raise to)
            failed(error)

    thread = threading.Thread(target=run, name="load", daemon=True)
    thread.start()
    return thread


def _no_memory(config: EngineConfig, error: BaseException) -> PreconditionError:
    return PreconditionError(
        f"not enough memory for {config.model.path} and its caches: {_line(error)}; lower --max-model-len, "
        "--max-num-seqs or --num-blocks"
    )


def _line(error: BaseException) -> str:
    """Its first 300 characters on one line: a path or a compiler's complaint can be thousands."""
    return " ".join(str(error).split())[:300]


def _sampling_defaults(path: Path) -> dict[str, float]:
    file = path / "generation_config.json"
    if not file.is_file():
        return {}
    values = json.loads(file.read_text())
    if not isinstance(values, dict):
        raise TypeError(f"{file.name} is a JSON {type(values).__name__}; expected an object")
    found = {name: values[name] for name in SAMPLING_DEFAULTS if values.get(name) is not None}
    if found.get("top_k") == -1:  # another way to say the whole vocabulary
        found["top_k"] = 0
    for name, value in found.items():
        low, high = RANGES[name]
        if type(value) not in (int, float) or not low <= value <= high:
            raise ValueError(f"{file.name} has {name} = {value!r}; expected a number from {low} to {high}")
    return {name: float(value) for name, value in found.items()}
