"""What a run's servers held, from its records: whose word is taken, and what is never made up."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from gate.fit import used as used_module
from gate.fit.need import Limits, step
from gate.fit.used import of_arm, used
from gate.observe import store
from gate.observe.rows import ARMS, Arm
from gate.observe.rundata import RunData
from gate.recipe import ROOT
from gate.selftest.good_run import Build
from tests.gate.headers.sparse import synthetic, write

GIB = 2**30
SLOT, TOKEN = 6 * (3 * 640 * 2 + 6 * 64 * 64 * 4), 1024
"""The tiny model: a state slot, and keys and values of a token in BF16."""


@pytest.fixture
def run(build: type[Build], tmp_path: Path) -> RunData:
    """A good run over a tiny checkpoint that is there."""
    folder = synthetic(tmp_path / "tiny", "tiny")
    made = build.run(max_num_seqs=8)
    arms = {arm: made.plan.arm(arm).model_copy(update={"checkpoint": str(folder)}) for arm in ("candidate", "oracle")}  # type: ignore[arg-type]
    return dataclasses.replace(made, plan=made.plan.model_copy(update=arms))


def said(run: RunData, arm: Arm, **extra: str) -> RunData:
    (identity,) = (one for one in run.identities if one.arm == arm)
    return Build.alter_identity(run, arm, extra=identity.extra | {f"config.{k}": v for k, v in extra.items()})


def measured(run: RunData, **columns: Any) -> RunData:
    """The legs' memory: columns of the first leg of each arm, the others half of it."""
    first: set[Arm] = set()
    legs = []
    for leg in run.legs:
        share = 2 if leg.arm in first else 1
        first.add(leg.arm)
        legs.append(leg.model_copy(update={k: None if v is None else v // share for k, v in columns.items()}))
    return dataclasses.replace(run, legs=tuple(legs))


def test_our_caches_are_its_blocks_and_its_slots(run: RunData) -> None:
    found = of_arm(said(run, "candidate", num_gpu_blocks="32", block_size="16"), "candidate", GIB)
    assert found.pool_bytes == 32 * 16 * TOKEN + 8 * SLOT
    assert found.need is not None
    assert found.need.kv + found.need.state == 8 * 64 * TOKEN + 8 * SLOT


def test_vllm_is_taken_at_its_word_or_counted_in_pages(run: RunData) -> None:
    told = said(run, "oracle", kv_cache_memory_bytes="1234", num_gpu_blocks="5", block_size="208")
    assert of_arm(told, "oracle", GIB).pool_bytes == 1234
    counted = said(run, "oracle", num_gpu_blocks="5", block_size="208")
    assert of_arm(counted, "oracle", GIB).pool_bytes == 5 * 208 * (TOKEN // 2) * 2
    assert of_arm(said(run, "oracle", num_gpu_blocks="5", block_size="256"), "oracle", GIB).pool_bytes is None
    assert of_arm(run, "oracle", GIB).pool_bytes is None


def test_the_largest_peak_of_the_most_trusted_source_counts(run: RunData) -> None:
    every = measured(run, gpu_peak_bytes=8 * GIB, gpu_reported_bytes=7 * GIB, gpu_start_bytes=6 * GIB)
    found = of_arm(every, "candidate", GIB)
    assert (found.memory_bytes, found.memory_source) == (8 * GIB, "GPU memory by process")
    own = of_arm(measured(every, gpu_peak_bytes=None), "candidate", GIB)
    assert (own.memory_bytes, own.memory_source) == (7 * GIB, "GPU memory by its own word")
    grown = of_arm(measured(every, gpu_peak_bytes=None, gpu_reported_bytes=None), "candidate", GIB)
    assert (grown.memory_bytes, grown.memory_source) == (6 * GIB, "GPU memory that its start added")
    none = measured(run, gpu_peak_bytes=None, gpu_reported_bytes=None, gpu_start_bytes=None)
    assert of_arm(none, "candidate", GIB).memory_bytes is None


def test_the_rest_is_told_only_where_all_of_it_is_known(run: RunData) -> None:
    whole = said(measured(run, gpu_peak_bytes=3 * GIB), "oracle", kv_cache_memory_bytes=str(GIB))
    assert of_arm(whole, "oracle", GIB).rest_bytes is None
    loaded = said(whole, "oracle")
    (identity,) = (one for one in loaded.identities if one.arm == "oracle")
    loaded = Build.alter_identity(loaded, "oracle", extra=identity.extra | {"log.weights_gib": "1.5"})
    assert of_arm(loaded, "oracle", GIB).rest_bytes == GIB // 2


def test_on_a_cpu_it_is_the_processes_memory_and_no_rest(build: type[Build]) -> None:
    made = measured(build.run(gpu=False), server_peak_rss_bytes=4 * GIB)
    found = of_arm(made, "candidate", GIB)
    assert (found.memory_bytes, found.is_gpu) == (4 * GIB, False)
    assert found.model_copy(update={"weights_bytes": 1, "pool_bytes": 1}).rest_bytes is None
    assert "host memory" in found.memory_source


def test_a_checkpoint_that_is_gone_or_another_server_leaves_no_need(run: RunData, build: type[Build]) -> None:
    assert of_arm(build.run(), "candidate", GIB).need is None
    other = run.plan.candidate.model_copy(update={"kind": "command"})
    moved = dataclasses.replace(run, plan=run.plan.model_copy(update={"candidate": other}))
    assert of_arm(moved, "candidate", GIB).need is None


@pytest.mark.parametrize(
    ("reported", "dtype"),
    [("bfloat16", "bfloat16"), ("fp8_e4m3", "fp8"), ("fp8", "fp8"), ("auto", "fp8"), (None, "fp8")],
)
def test_the_dtype_of_its_cache_is_what_it_says(reported: str | None, dtype: str, run: RunData) -> None:
    changed = Build.alter_identity(run, "candidate", kv_cache_dtype=reported)
    assert of_arm(changed, "candidate", GIB).kv_cache_dtype == dtype


def test_what_it_said_last_counts(run: RunData) -> None:
    (first,) = (one for one in run.identities if one.arm == "candidate")
    later = first.model_copy(update={"kv_cache_dtype": "fp8", "digest": "later"})
    assert (
        of_arm(dataclasses.replace(run, identities=(*run.identities, later)), "candidate", GIB).kv_cache_dtype == "fp8"
    )


GRIDS = {
    "27b": "20261130T092055Z-qwen3.6-27b-nvfp4-synthetic-3a955dc8",
    "35b": "20261130T090852Z-qwen3.6-35b-a3b-nvfp4-synthetic-d74c7f77",
}
ON_AN_H200 = {
    # GiB, used and need: weights, caches, rest, whole
    ("27b", "candidate"): ((19.12, 18.79), (8.59, 8.59), (3.44, 3.63), (31.15, 31.00)),
    ("27b", "oracle"): ((19.09, 18.77), (9.69, 9.24), (3.92, 2.17), (32.69, 30.17)),
    ("35b", "candidate"): ((19.54, 19.52), (3.17, 3.17), (2.77, 1.82), (25.48, 24.50)),
    ("35b", "oracle"): ((19.55, 19.39), (3.38, 3.22), (2.90, 1.79), (25.83, 24.41)),
}
NAMES = {"candidate": "engine", "oracle": "vLLM 0.25.0"}


@pytest.mark.parametrize("shape", GRIDS)
def test_what_both_servers_held_on_an_h200(shape: str, tmp_path: Path) -> None:
    """docs/fit.md's table, from the recorded grids and the headers of the checkpoint that they served."""
    folder = synthetic(tmp_path / shape, shape, vision=False, mtp=False)
    made = store.read_run(ROOT / "results" / "h200-x2" / GRIDS[shape])
    arms = {arm: made.plan.arm(arm).model_copy(update={"checkpoint": str(folder)}) for arm in ARMS}
    run = dataclasses.replace(made, plan=made.plan.model_copy(update=arms))
    page = (ROOT / "docs" / "fit.md").read_text()
    for arm in ARMS:
        one = of_arm(run, arm, GIB)
        assert one.need is not None
        need = one.need
        rest = need.activations + need.scratch + need.overhead
        pairs = (
            (one.weights_bytes, need.weights),
            (one.pool_bytes, need.kv + need.state),
            (one.rest_bytes, rest),
            (one.memory_bytes, need.total),
        )
        found = tuple((round((held or 0) / GIB, 2), round(needed / GIB, 2)) for held, needed in pairs)
        assert found == ON_AN_H200[shape, arm]
        assert one.limits.batched_tokens is not None
        cells = " | ".join((f"{one.limits.batched_tokens:,}", *(f"{held:.2f}, {needed:.2f}" for held, needed in found)))
        assert f"| {shape.upper()}, {NAMES[arm]} | {cells} |" in page
        assert (one.rest_bytes or 0) < rest + 3 * GIB - need.overhead


STARTS = sorted((ROOT / "results").glob("h200*/*/logs/oracle*.log"))


def test_the_recorded_starts_of_vllm_had_the_step_that_is_taken_for_it() -> None:
    """Each with 32 sequences of 4,096 tokens and no argument for it, on an H200."""
    assert len([log for log in STARTS if log.name == "oracle.log"]) >= 8  # each run that is kept adds one
    tokens, _ = step("vllm", Limits(context=4096, max_num_seqs=32, kv_bytes=1))
    for log in STARTS:
        told = log.read_text()
        assert f"Chunked prefill is enabled with max_num_batched_tokens={tokens}." in told
        assert f"compile range (1, {tokens})" in told
        assert "'max_num_batched_tokens'" not in told


def test_the_step_is_what_the_server_told_or_its_own(run: RunData) -> None:
    told = of_arm(said(run, "oracle", max_num_batched_tokens="256"), "oracle", GIB)
    silent = of_arm(dataclasses.replace(run, identities=()), "oracle", GIB)
    assert (told.limits.batched_tokens, silent.limits.batched_tokens) == (256, None)
    assert told.need is not None
    assert silent.need is not None
    # A whole step of vLLM's own would hold more than 8 sequences of the run's context do.
    assert step("vllm", silent.limits)[0] == 8 * silent.limits.context
    assert silent.need.activations > told.need.activations


def test_both_arms_of_a_folder(run: RunData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "read_run", lambda _folder: run)
    assert used_module.store is store
    assert [one.arm for one in used(tmp_path, GIB)] == ["candidate", "oracle"]
    assert {one.limits.max_num_seqs for one in used(tmp_path, GIB)} == {8}


def test_a_checkpoint_of_another_kind_leaves_no_need(run: RunData, tmp_path: Path) -> None:
    config = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "kv_lora_rank": 512}
    folder = write(tmp_path / "latent", {"config.json": config}, {"x": ("BF16", [4])})
    arm = run.plan.candidate.model_copy(update={"checkpoint": str(folder)})
    made = of_arm(dataclasses.replace(run, plan=run.plan.model_copy(update={"candidate": arm})), "candidate", GIB)
    assert (made.need, made.checkpoint) == (None, str(folder))
