"""engine/runner.load_runner: what the configuration decides, and what it refuses."""

from __future__ import annotations

import dataclasses
import gc
import json
import math
import shutil
from types import SimpleNamespace

import make_checkpoint
import pytest
import torch

from engine import runner as runners
from engine.batch import Batch, Segment
from engine.census import Census, WidenedError
from engine.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from engine.errors import PreconditionError
from engine.kernels import build, library
from engine.kernels.build import BuildError
from engine.models.fused import FusedForCausalLM
from engine.request import SamplingParams
from engine.runner import load_runner
from engine.server.loading import load_runner as load_for_server
from engine.weights.checkpoint import Checkpoint
from tests.engine.weights.stored import read_all


def config(path, *, model=None, cache=None, scheduler=None):
    return EngineConfig(
        ModelConfig(path, device="cpu", **(model or {})),
        CacheConfig(**(cache or {})),
        SchedulerConfig(**{"max_num_seqs": 3, "max_model_len": 100, **(scheduler or {})}),
    )


def first_token(runner):
    params = SamplingParams(max_tokens=1, temperature=0.0)
    ids = tuple(range(20, 60))
    segment = Segment("a", ids, 0, tuple(range(3)), 0, True, True, params, ids)
    return runner.run(Batch(0, (segment,))).sampled[0].token_id


def test_attributes_follow_checkpoint_and_configuration(tiny_checkpoint):
    runner = load_runner(config(tiny_checkpoint))
    text = json.loads((tiny_checkpoint / "config.json").read_text())["text_config"]
    assert runner.vocab_size == text["vocab_size"]
    assert text["eos_token_id"] in runner.eos_ids
    assert runner.max_model_len == 100
    assert runner.num_blocks == 3 * 7
    assert 0 <= first_token(runner) < runner.vocab_size


def test_max_model_len_is_clamped_to_the_checkpoint(tiny_checkpoint, tmp_path):
    copy = shutil.copytree(tiny_checkpoint, tmp_path / "short")
    text = json.loads((copy / "config.json").read_text())
    text["text_config"]["max_position_embeddings"] = 64
    (copy / "config.json").write_text(json.dumps(text))
    assert load_runner(config(copy)).max_model_len == 64


@pytest.mark.parametrize(
    ("asked", "dtype", "expected"),
    [
        ("auto", "bfloat16", torch.float8_e4m3fn),
        ("fp8", "bfloat16", torch.float8_e4m3fn),
        ("bfloat16", "bfloat16", torch.bfloat16),
        ("bfloat16", "float32", torch.float32),
    ],
)
def test_kv_dtype(tiny_checkpoint, asked, dtype, expected):
    """The tiny checkpoint, as nvidia's dense one, asks for FP8."""
    runner = load_runner(config(tiny_checkpoint, model={"dtype": dtype}, cache={"kv_cache_dtype": asked}))
    assert runner.caches.kv.dtype == expected
    assert runner.info()["kv_cache_dtype"] == {torch.float8_e4m3fn: "fp8"}.get(expected, str(expected)[6:])


def test_info_is_json_and_says_what_is_resident(tiny_checkpoint):
    info = json.loads(json.dumps(load_runner(config(tiny_checkpoint)).info()))
    assert info["device"] == "cpu"
    assert info["reference_ops"] == []
    assert (info["kernels"], info["kernels_called"], info["kernel_build"]) == ([], [], None)
    assert info["shipped_bytes"] <= info["resident_bytes"] < 1.1 * info["shipped_bytes"]
    assert info["dequantised_copy_bytes"] > 0


def test_what_the_binary_says_it_was_made_from_is_in_the_manifest(monkeypatch):
    made = {"arch": "sm_90a", "flags": ["-O3"], "nvcc": "13", "source_sha256": "d"}
    monkeypatch.setattr(runners.library, "arch_of", lambda _: "90a")
    monkeypatch.setattr(
        runners.library, "manifest", lambda _: {**made, "kernels": {"moe/kernel": ["f"], "gdn/scan": []}}
    )
    monkeypatch.setattr(runners.library, "_called", set())
    monkeypatch.setattr(runners.library, "load", lambda _: SimpleNamespace(engine_moe_route=1, engine_gdn_scan=2))
    runners.library._function.cache_clear()
    fused, cuda = object.__new__(FusedForCausalLM), torch.device("cuda")
    assert runners._compiled(fused, cuda)["kernels_called"] == []
    assert [runners.library._function(name, "90a") for name in ("engine_moe_route", "engine_gdn_scan")] == [1, 2]
    runners.library._function.cache_clear()
    told = runners._compiled(fused, cuda)
    called = ["gdn_scan", "moe_route"]
    assert told == {"kernels": ["gdn/scan", "moe/kernel"], "kernels_called": called, "kernel_build": made}


def test_results_do_not_depend_on_the_dequantised_copies(tiny_checkpoint):
    cached = load_runner(config(tiny_checkpoint))
    remade = load_runner(config(tiny_checkpoint, model={"dequant_cache_bytes": 0}))
    assert remade.info()["dequantised_copy_bytes"] == 0
    assert first_token(remade) == first_token(cached)


def test_pool_takes_at_most_a_quarter_of_the_free_memory(tiny_checkpoint, monkeypatch):
    # One block of 16 tokens: 2 attention layers, keys and values, 2 heads of 64, bfloat16.
    block_bytes = 2 * 2 * 16 * 2 * 64 * 2
    settings = config(tiny_checkpoint, cache={"kv_cache_dtype": "bfloat16"})

    def after_the_weights(free):
        answers = iter([2**40, free])
        monkeypatch.setattr("engine.runner.free_bytes", lambda _: next(answers))

    after_the_weights(4 * 10 * block_bytes)
    assert load_runner(settings).num_blocks == 10
    after_the_weights(4 * 6 * block_bytes)
    with pytest.raises(PreconditionError, match="holds 6 KV blocks of 16384 bytes, but one sequence of 100 tokens"):
        load_runner(settings)
    after_the_weights(2**40)
    given = dataclasses.replace(settings, cache=CacheConfig(kv_cache_dtype="bfloat16", num_blocks=20))
    assert load_runner(given).num_blocks == 20


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"model": {"dtype": "float16"}}, "dtype float16: activations are bfloat16 or float32"),
        ({"cache": {"kv_cache_dtype": "int8"}}, "kv_cache_dtype int8: expected auto, bfloat16 or fp8"),
    ],
)
def test_unknown_dtypes_are_refused(tiny_checkpoint, part, message):
    with pytest.raises(PreconditionError, match=message):
        load_runner(config(tiny_checkpoint, **part))


def test_widened_modules_are_refused(tiny_checkpoint, monkeypatch):
    monkeypatch.setattr(Census, "widened", property(lambda _: ("layers.1.mlp.down_proj", "lm_head")))
    with pytest.raises(WidenedError, match=r"layers.1.mlp.down_proj takes more memory .* \(2 such modules\)") as caught:
        load_runner(config(tiny_checkpoint))
    assert "lm_head" in {row.module for row in caught.value.census.rows}


def test_a_pool_larger_than_memory_is_one_line_with_what_fits(tiny_checkpoint):
    huge = config(tiny_checkpoint, cache={"block_tokens": 10**6, "num_blocks": 10**12})
    with pytest.raises(PreconditionError, match=r"--num-blocks 1000000000000: \d+ bytes of KV cache, but \d+ are free"):
        load_runner(huge)


def stored_bytes(folder):
    """Tensors of the text model, by the library that wrote them."""
    return sum(t.nbytes for name, t in read_all(folder).items() if "visual" not in name and not name.startswith("mtp."))


def test_weights_a_state_slot_and_a_block_must_fit_before_anything_is_read(tiny_checkpoint, monkeypatch):
    # 6 GDN layers: 3 raw inputs of 640 channels in bfloat16, 6 heads of 64 x 64 in fp32. A block as above, in FP8.
    slot, block = 6 * (3 * 640 * 2 + 6 * 64 * 64 * 4), 2 * 2 * 16 * 2 * 64
    need = stored_bytes(tiny_checkpoint) + slot + block
    answers = iter([need, 2**40])
    monkeypatch.setattr("engine.runner.free_bytes", lambda _: next(answers))
    load_runner(config(tiny_checkpoint))
    monkeypatch.setattr("engine.runner.free_bytes", lambda _: need - 1)
    monkeypatch.setattr(Checkpoint, "read_stack", lambda *_: pytest.fail("a weight was read"))
    numbers = rf"{need} bytes \({need - slot - block} of weights, {slot} for a state slot, {block} for a KV block\)"
    with pytest.raises(PreconditionError, match=rf"needs {numbers}, but {need - 1} are free on cpu; free memory"):
        load_runner(config(tiny_checkpoint))


def test_a_missing_kernel_library_is_told_before_anything_is_read(tiny_checkpoint, monkeypatch):
    def none(_):
        raise BuildError("found no nvcc on PATH; expected the CUDA toolkit")

    monkeypatch.setattr("engine.runner.resolve_device", lambda *_: torch.device("cuda"))
    monkeypatch.setattr("engine.runner.obstacle", lambda *_: None)
    monkeypatch.setattr("engine.runner.free_bytes", lambda _: 2**40)
    monkeypatch.setattr(library, "arch_of", lambda _: "90a")
    monkeypatch.setattr(library, "load", none)
    monkeypatch.setattr(Checkpoint, "read_stack", lambda *_: pytest.fail("a weight was read"))
    with pytest.raises(PreconditionError, match="the kernels for this device are not there: found no nvcc on PATH"):
        load_for_server(config(tiny_checkpoint))


@pytest.fixture
def another_gpu(monkeypatch):
    """One that no library is built for."""
    monkeypatch.setattr(runners, "resolve_device", lambda *_: torch.device("cuda"))
    monkeypatch.setattr(runners, "obstacle", lambda *_: None)
    monkeypatch.setattr(runners, "free_bytes", lambda _: 2**40)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA A100")
    library.arch_of.cache_clear()
    yield
    library.arch_of.cache_clear()


@pytest.mark.usefixtures("another_gpu")
def test_a_gpu_that_no_kernel_is_built_for_is_told_before_anything_is_read(tiny_checkpoint, monkeypatch):
    monkeypatch.setattr(Checkpoint, "read_stack", lambda *_: pytest.fail("a weight was read"))
    said = r"found NVIDIA A100 \(sm_80a\); expected sm_90a or sm_121a; --allow-reference runs the slow torch references"
    with pytest.raises(PreconditionError, match=said):
        load_for_server(config(tiny_checkpoint))


@pytest.mark.usefixtures("another_gpu")
def test_nothing_is_compiled_where_memory_is_too_small(tiny_checkpoint, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(library, "load", lambda _: pytest.fail("kernels were compiled"))
    monkeypatch.setattr(runners, "free_bytes", lambda _: 1)
    with pytest.raises(PreconditionError, match="but 1 are free on"):
        load_for_server(config(tiny_checkpoint))


@pytest.mark.usefixtures("another_gpu")
@pytest.mark.parametrize("fault", ["no library", "no folder", "no compiler"])
def test_a_library_that_cannot_be_had_is_no_fault_of_the_checkpoint(tiny_checkpoint, monkeypatch, tmp_path, fault):
    """Of the linker, of a folder that cannot be made, of a compiler that is not there."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(build, "BUILD", tmp_path)
    if fault == "no library":
        build.library_path("90a").write_text("not one")
    elif fault == "no folder":
        (tmp_path / "sm_90a").write_text("a file where the folder goes")
    else:
        monkeypatch.setenv("NVCC", str(tmp_path / "none"))
    library.load.cache_clear()
    said = "does not run" if fault == "no compiler" else "`engine build --force` makes it anew"
    with pytest.raises(PreconditionError, match=f"the kernels for this device are not there: found .*{said}"):
        load_for_server(config(tiny_checkpoint))


@pytest.mark.usefixtures("another_gpu")
def test_there_references_run_where_they_are_asked_for(tiny_checkpoint, monkeypatch, caplog):
    def reached(*_):
        raise LookupError("the references")

    monkeypatch.setattr(runners, "FusedForCausalLM", lambda *_: pytest.fail("the kernels"))
    monkeypatch.setattr(runners, "build_model", reached)
    with pytest.raises(LookupError, match="the references"):
        load_runner(config(tiny_checkpoint, model={"allow_reference": True}))
    assert "the slow torch references run, as --allow-reference asks for: found NVIDIA A100" in caplog.text


@pytest.mark.usefixtures("another_gpu")
def test_kernels_run_where_there_are_some_though_references_were_allowed(tiny_checkpoint, monkeypatch):
    def reached(*_):
        raise LookupError("the kernels")

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(library, "load", lambda _: SimpleNamespace())
    monkeypatch.setattr(runners, "FusedForCausalLM", reached)
    monkeypatch.setattr(runners, "build_model", lambda *_: pytest.fail("the references"))
    with pytest.raises(LookupError, match="the kernels"):
        load_runner(config(tiny_checkpoint, model={"allow_reference": True}))


def resident_bytes():
    """Of all tensors that anything in this process can still reach."""
    gc.collect()
    storages = [o.untyped_storage() for o in gc.get_objects() if type(o) is torch.Tensor]
    return sum({s.data_ptr(): s.nbytes() for s in storages}.values())


def test_what_was_read_before_a_fault_is_freed(tiny_checkpoint, monkeypatch):
    """The last weight that is read is wrong: none of those before it stays."""
    whole = Checkpoint.read_stack

    def spoiled(self, parts, device):
        wrong = parts[0].name == "lm_head.weight_scale_2"
        return torch.tensor([math.nan]) if wrong else whole(self, parts, device)

    monkeypatch.setattr(Checkpoint, "read_stack", spoiled)
    before = resident_bytes()
    with pytest.raises(PreconditionError, match=r"lm_head\.weight_scale_2: found nan") as caught:
        load_runner(config(tiny_checkpoint))
    held = resident_bytes() - before  # by the traceback: the measure is not blind
    del caught
    assert held > 4_000_000
    assert resident_bytes() - before < 1000


def test_which_file_decides_the_kv_cache_is_said(tmp_path):
    """nvidia's 35B: config.json has no KV scheme, hf_quant_config.json says FP8. vLLM follows the former, so do we."""
    make_checkpoint.main(["--shape", "tiny-moe", "--layers", "4", "--device", "cpu", str(tmp_path / "moe")])
    info = load_runner(config(tmp_path / "moe")).info()
    assert info["kv_cache_dtype"] == "bfloat16"
    assert info["notes"] == [
        "KV cache: config.json asks no KV quantisation, hf_quant_config.json FP8; config.json wins, as in vLLM"
    ]
    assert load_runner(config(tmp_path / "moe", cache={"kv_cache_dtype": "fp8"})).info()["kv_cache_dtype"] == "fp8"
