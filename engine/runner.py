"""ModelRunner: one Batch in, one StepOutput out. It owns the model, the caches and the sampler."""

from __future__ import annotations

import gc
import logging
from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor

from engine.batch import Batch, Sampled, Segment, StepOutput, Ticket, TokenLogprobs
from engine.census import Census, WidenedError, take_census
from engine.config import EngineConfig
from engine.devices import free_bytes, limit_threads, resolve_device
from engine.errors import PreconditionError
from engine.graphs import DecodeGraphs
from engine.kernels import library
from engine.kernels.build import BuildError
from engine.logprobs import PromptLogprobs
from engine.models.caches import Caches, kv_block_bytes, state_slot_bytes
from engine.models.config import TextConfig, load_text_config
from engine.models.fused import FusedForCausalLM, obstacle
from engine.models.layers import Source
from engine.models.registry import build_model
from engine.models.step import Step
from engine.ops import NAMES, missing_kernels
from engine.ops.linear import Budget
from engine.prompt_graphs import ARCHS, LONGEST, PromptGraphs
from engine.sampler import Sampler, wants_argmax
from engine.steps import build_step
from engine.weights.loader import ModelWeights, load_weights

logger = logging.getLogger(__name__)

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}

POOL_SHARE = 4
"""The KV pool takes at most one part in this many of the memory that is free after the weights."""


class Model(Protocol):
    """engine.models.qwen3_5's, or engine.models.fused's on CUDA."""

    dtype: torch.dtype

    def forward(self, step: Step, caches: Caches) -> Tensor: ...

    def logits(self, hidden: Tensor) -> Tensor: ...


class ModelRunner:
    """Called from one thread."""

    graphs: DecodeGraphs | None = None
    prompts: PromptGraphs | None = None

    def __init__(self, model: Model, caches: Caches, vocab_size: int) -> None:
        self.model = model
        self.caches = caches
        self.device = caches.kv.device
        self.sampler = Sampler(vocab_size, self.device)
        self.prompt_logprobs = PromptLogprobs(model.logits)

    def run(self, batch: Batch) -> StepOutput:
        """One step by itself: submitted and finished."""
        return self.submit(batch).finish()

    @torch.inference_mode()
    def submit(self, batch: Batch) -> Ticket:
        """Run the step, update the caches, sample where asked. Followable where all of that can wait on the device."""
        if self.prompts is not None and self.graphs is not None and self.prompts.takes(batch):
            return self._replay_prompt(batch, self.prompts, self.graphs)
        fresh = [s.state_slot for s in batch.segments if s.zero_state]
        if fresh:
            self.caches.zero_slots(torch.tensor(fresh, device=self.device))
        if self.graphs is not None and self.graphs.takes(batch):
            return self._replay(batch, self.graphs)
        fused = isinstance(self.model, FusedForCausalLM)
        step = build_step(batch, self.caches.block_tokens, self.device, for_kernels=fused)
        ends = list(accumulate(len(s.token_ids) for s in batch.segments))
        rows = self._sampled_rows(batch.segments, ends)
        hidden = self.model.forward(step, self.caches)
        prompts = [self._prompt(s, hidden, end) for s, end in zip(batch.segments, ends, strict=True)]
        chosen = iter(self._sample(batch.segments, hidden, rows))
        sampled = []
        for segment, prompt in zip(batch.segments, prompts, strict=True):
            token, logprobs = next(chosen) if segment.sample else (None, None)
            sampled.append(Sampled(segment.request_id, token, logprobs, prompt))
        output = StepOutput(batch.step, tuple(sampled))
        return Ticket(batch, followable=False, finish=lambda: output)

    def recover(self) -> None:
        """After a step that ran out of memory, wherever it broke: nothing is queued, and unused memory is given back.

        Which memory steps change in place: recurrent state and KV, which the scheduler has recomputed for every request
        of the step; the sampler's counts, forgotten here; a prompt's last hidden state, which its recomputation makes
        again; the graphs' lanes, emptied here. A replayed graph itself allocates nothing: only the sampler beside it
        does, for what the most probable id does not answer.
        """
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        for graphs in (self.graphs, self.prompts):
            if graphs is not None:
                graphs.drop()
        self.forget()
        gc.collect()  # what is freed in cycles only: a tensor that an error's traceback held
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def forget(self) -> None:
        """What steps keep for the next beside the caches, and can make again."""
        self.sampler.forget()

    def _replay(self, batch: Batch, graphs: DecodeGraphs) -> Ticket:
        """Every row has logits here, also those of prompts that end later: they are not reported."""
        launched = graphs.launch(batch.segments)
        rows = [i for i, s in enumerate(batch.segments) if s.sample]
        if all(wants_argmax(batch.segments[i]) for i in rows):
            return Ticket(batch, followable=True, finish=lambda: _greedy(batch, launched.ids()))
        chosen = self._chosen(batch.segments, launched.ids(), launched.logits)
        output = StepOutput(batch.step, tuple(chosen))
        return Ticket(batch, followable=False, finish=lambda: output)

    def _replay_prompt(self, batch: Batch, prompts: PromptGraphs, graphs: DecodeGraphs) -> Ticket:
        """What decodes first, since a graph's ids wait on the device while the prompt is queued behind it."""
        *decoding, last = batch.segments
        before = graphs.launch(decoding) if decoding else None
        prompt = prompts.launch(last)
        if before is None:
            ids, logits = [prompt.id()], prompt.logits
        else:  # sampled together: what the sampler keeps of penalised requests is of those of its last call
            logits = torch.cat([before.logits, prompt.logits])
            ids = [*before.ids(), prompt.id()]
        output = StepOutput(batch.step, tuple(self._chosen(batch.segments, ids, logits)))
        return Ticket(batch, followable=False, finish=lambda: output)

    def _chosen(self, segments: Sequence[Segment], ids: list[int], logits: Tensor) -> list[Sampled]:
        """Of a graph's rows; `ids` are the most probable ones, taken where nothing else is wanted."""
        chosen: list[tuple[int, TokenLogprobs | None]] = [(token, None) for token in ids]
        rows = [i for i, s in enumerate(segments) if s.sample and not wants_argmax(s)]
        if rows:
            wanted = [segments[i] for i in rows]
            for i, made in zip(rows, self.sampler.sample(logits[rows].float(), wanted), strict=True):
                chosen[i] = made
        return [
            Sampled(s.request_id, *(made if s.sample else (None, None)))
            for s, made in zip(segments, chosen, strict=True)
        ]

    def _sampled_rows(self, segments: tuple[Segment, ...], ends: list[int]) -> Tensor | None:
        """int64, the rows that end a known sequence; None for all there are.

        Made before the model runs: an upload from pageable memory waits for what is queued, and so the device would
        wait for the host between the last layer and lm_head.
        """
        rows = [end - 1 for s, end in zip(segments, ends, strict=True) if s.sample]
        return None if len(rows) == ends[-1] else torch.tensor(rows, dtype=torch.int64, device=self.device)

    def _sample(
        self, segments: tuple[Segment, ...], hidden: Tensor, rows: Tensor | None
    ) -> list[tuple[int, TokenLogprobs | None]]:
        """Only rows that end a known sequence go through lm_head."""
        wanted = [s for s in segments if s.sample]
        if not wanted:
            return []
        return self.sampler.sample(self.model.logits(hidden if rows is None else hidden[rows]), wanted)

    def _prompt(self, segment: Segment, hidden: Tensor, end: int) -> tuple[TokenLogprobs | None, ...]:
        if segment.params.prompt_logprobs is None:
            return ()
        return self.prompt_logprobs.take(segment, hidden[end - len(segment.token_ids) : end])


class LoadedRunner(ModelRunner):
    """A runner over a checkpoint, with what the server and the scheduler ask of it."""

    def __init__(self, config: EngineConfig, quantize_inputs: bool | None) -> None:
        options = config.model
        if options.dtype not in DTYPES:
            raise PreconditionError(f"dtype {options.dtype}: activations are {' or '.join(DTYPES)}")
        dtype, text = DTYPES[options.dtype], load_text_config(options.path)
        ops = NAMES if text.is_moe else tuple(name for name in NAMES if name != "moe")
        device = resolve_device(options.device, options.allow_reference, ops)
        self.weights = load_weights(options.path, text, device)
        reason = obstacle(self.weights, text, dtype) if device.type == "cuda" else None
        if reason is not None and not options.allow_reference:
            raise PreconditionError(
                f"{options.path}: no CUDA kernel for {reason}; --allow-reference runs the slow torch references"
            )
        self.kv_dtype = _kv_dtype(config, self.weights, dtype)
        # What is known before the first byte is read is said before: reading takes a minute, compiling two.
        _check_memory(config, self.weights, text, dtype, self.kv_dtype)
        fused = device.type == "cuda" and reason is None and _has_library(device, options.allow_reference)
        self.reference_ops = () if fused else ops if device.type == "cuda" else missing_kernels(device.type)
        self.eos_ids = frozenset(text.eos_token_ids)
        self.max_model_len = min(config.scheduler.max_model_len, text.max_position_embeddings)
        self.threads = limit_threads(self.weights.checkpoint.text_bytes) if device.type == "cpu" else None
        budget = Budget(options.dequant_cache_bytes)
        with torch.inference_mode():
            quantizes = dtype == torch.bfloat16 if quantize_inputs is None else quantize_inputs
            source = Source(self.weights, text, dtype, budget, quantizes)
            slots, block_tokens = config.scheduler.max_num_seqs, config.cache.block_tokens
            model: Model = (
                FusedForCausalLM(source, self.max_model_len, slots)
                if fused
                else build_model(source, self.max_model_len)
            )
            if fused:
                # What packing held beside the weights: the allocator would keep it, in pieces that no step asks for.
                torch.cuda.empty_cache()
            self.num_blocks = _pool_blocks(config, text, self.max_model_len, self.kv_dtype, device)
            caches = Caches(text, self.num_blocks, block_tokens, slots, dtype, self.kv_dtype, device)
        super().__init__(model, caches, text.vocab_size)
        self.vocab_size = text.vocab_size
        if isinstance(model, FusedForCausalLM):
            self.graphs = DecodeGraphs(model, caches, slots, self.max_model_len)
            if library.arch_of(device) in ARCHS:
                longest = LONGEST["mixture" if text.is_moe else "dense"]
                longest = min(longest, config.scheduler.max_num_batched_tokens)
                self.prompts = PromptGraphs(model, caches, longest, self.max_model_len, self.graphs.max_sequences)
        if (census := self.census()).widened:
            raise WidenedError(census)

    def census(self) -> Census:
        """Resident bytes by module beside the checkpoint's."""
        return take_census(self.model, self.weights)

    def info(self) -> dict[str, object]:
        """For the manifest of /version."""
        census = self.census()
        return {
            "device": str(self.device),
            "threads": self.threads,
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "kv_cache_dtype": _KV_NAMES[self.kv_dtype],
            "architecture": type(self.model).__name__,
            "quantization": self.weights.quant.method,
            "notes": list(self.weights.quant.notes),
            "reference_ops": list(self.reference_ops),
            **_compiled(self.model, self.device),
            "num_blocks": self.num_blocks,
            "block_tokens": self.caches.block_tokens,
            "shipped_bytes": census.shipped_bytes,
            "resident_bytes": census.resident_bytes,
            "dequantised_copy_bytes": census.copy_bytes,
            "widened_modules": list(census.widened),
            "cache_bytes": self.caches.nbytes,
        }


def load_runner(config: EngineConfig, *, quantize_inputs: bool | None = None) -> LoadedRunner:
    """Read the checkpoint, build the model, allocate the caches. Raises PreconditionError or CheckpointError.

    quantize_inputs: whether W8A8 layers quantise their inputs; None: in bfloat16 only (see layers.Source).
    """
    return LoadedRunner(config, quantize_inputs)


def _has_library(device: torch.device, allow_reference: bool) -> bool:
    """Loads it, compiled first where need be. Raises BuildError where there is none, unless references may do."""
    try:
        library.load(library.arch_of(device))
    except BuildError as error:
        if not allow_reference:
            raise
        logger.warning("the slow torch references run, as --allow-reference asks for: %s", error)
        return False
    return True


def _greedy(batch: Batch, ids: list[int]) -> StepOutput:
    sampled = [Sampled(s.request_id, i if s.sample else None) for s, i in zip(batch.segments, ids, strict=True)]
    return StepOutput(batch.step, tuple(sampled))


def _compiled(model: Model, device: torch.device) -> dict[str, object]:
    """The kernels' sources, and how they were compiled: from the loaded binary itself; none where none is used.

    And which of its functions were called: for a server that is warmed up, the model's own. A library's products and
    what Triton compiles are not among them.
    """
    if not isinstance(model, FusedForCausalLM):
        return {"kernels": [], "kernels_called": [], "kernel_build": None}
    made = library.manifest(library.arch_of(device))
    sources = made.pop("kernels")
    assert isinstance(sources, dict)
    return {"kernels": sorted(sources), "kernels_called": library.called(), "kernel_build": made}


_KV_NAMES = {torch.bfloat16: "bfloat16", torch.float32: "float32", torch.float8_e4m3fn: "fp8"}


def _kv_dtype(config: EngineConfig, weights: ModelWeights, dtype: torch.dtype) -> torch.dtype:
    """ "auto" follows the checkpoint; "bfloat16" is the activation dtype, so that float32 runs stay float32."""
    asked = config.cache.kv_cache_dtype
    if asked == "auto":
        asked = "fp8" if weights.quant.kv_cache_fp8 else "bfloat16"
    if asked not in ("fp8", "bfloat16"):
        raise PreconditionError(f"kv_cache_dtype {asked}: expected auto, bfloat16 or fp8")
    return torch.float8_e4m3fn if asked == "fp8" else dtype


def _check_memory(
    config: EngineConfig, weights: ModelWeights, text: TextConfig, dtype: torch.dtype, kv_dtype: torch.dtype
) -> None:
    """Room for the weights and the least that serves one request: a state slot and a KV block. On a CPU nothing else
    would say so: the kernel ends a process that takes too much.
    """
    shipped, slot = weights.checkpoint.text_bytes, state_slot_bytes(text, dtype)
    block, free = kv_block_bytes(text, config.cache.block_tokens, kv_dtype), free_bytes(weights.device)
    if (need := shipped + slot + block) > free:
        raise PreconditionError(
            f"{config.model.path}: needs {need} bytes ({shipped} of weights, {slot} for a state slot, {block} for a KV "
            f"block), but {free} are free on {weights.device}; free memory there, or take a device with more"
        )


def _pool_blocks(
    config: EngineConfig, text: TextConfig, max_model_len: int, kv_dtype: torch.dtype, device: torch.device
) -> int:
    """Blocks for max_num_seqs sequences of max_model_len, or what a quarter of the free memory holds; or as asked."""
    block_tokens = config.cache.block_tokens
    per_sequence = -(-max_model_len // block_tokens)
    block_bytes, free = kv_block_bytes(text, block_tokens, kv_dtype), free_bytes(device)
    asked = config.cache.num_blocks
    if asked is not None:
        if asked * block_bytes > free:
            raise PreconditionError(
                f"--num-blocks {asked}: {asked * block_bytes} bytes of KV cache, but {free} are free; at most "
                f"{free // block_bytes} blocks of {block_tokens} tokens fit"
            )
        return asked
    fits = free // POOL_SHARE // block_bytes
    if fits < per_sequence:
        raise PreconditionError(
            f"a quarter of the free memory holds {fits} KV blocks of {block_bytes} bytes, but one sequence of "
            f"{max_model_len} tokens needs {per_sequence}; lower --max-model-len or set --num-blocks"
        )
    return min(config.scheduler.max_num_seqs * per_sequence, fits)
