"""What the checkpoint folder gives to the text side, and how loading fails."""

from __future__ import annotations

import json
import queue
from pathlib import Path

import pytest
import torch

from engine import runner
from engine.batch import Delivery
from engine.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from engine.errors import PreconditionError, UsageError
from engine.kernels.build import BuildError
from engine.request import FinishReason, Request, SamplingParams
from engine.server.errors import ApiError
from engine.server.loading import check_folder, check_limits, load_engine, load_runner, load_text_side


def test_a_folder_without_a_checkpoint(tmp_path):
    with pytest.raises(PreconditionError, match="no folder"):
        check_folder(tmp_path / "none")
    with pytest.raises(PreconditionError, match=r"config\.json"):
        check_folder(tmp_path)


def test_what_is_absent_is_none(tmp_path):
    text = load_text_side(tmp_path)
    assert (text.tokenizer, text.template, text.sampling_defaults) == (None, None, {})


def test_sampling_defaults_are_generation_config_s(tmp_path):
    values = {"temperature": 0.6, "top_k": 20, "eos_token_id": [2], "do_sample": True, "min_p": None}
    (tmp_path / "generation_config.json").write_text(json.dumps(values))
    assert load_text_side(tmp_path).sampling_defaults == {"temperature": 0.6, "top_k": 20.0}


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "generation_config.json"])
def test_a_broken_file_is_named_by_its_folder(tmp_path, name):
    (tmp_path / name).write_text("{")
    with pytest.raises(PreconditionError, match=tmp_path.name):
        load_text_side(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", "-1"),
        ("temperature", '"1"'),
        ("temperature", "true"),
        ("temperature", "[1]"),
        ("top_p", "NaN"),
        ("top_p", "2"),
        ("top_k", "1e300"),
        ("min_p", "5"),
        ("repetition_penalty", "0"),
    ],
)
def test_sampling_defaults_that_no_request_may_have_are_refused(tmp_path, name, value):
    """They would reach every request that leaves the field out, unchecked."""
    (tmp_path / "generation_config.json").write_text(f'{{"{name}": {value}}}')
    with pytest.raises(PreconditionError, match=f"generation_config.json has {name} = "):
        load_text_side(tmp_path)


def test_a_top_k_of_minus_one_is_the_whole_vocabulary(tmp_path):
    (tmp_path / "generation_config.json").write_text('{"top_k": -1}')
    assert load_text_side(tmp_path).sampling_defaults == {"top_k": 0.0}


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "generation_config.json"])
@pytest.mark.parametrize("content", ["[]", "5", "null", "[" * 100_000], ids=lambda v: v[:5])
def test_json_of_another_shape_is_one_line(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    with pytest.raises(PreconditionError, match=tmp_path.name) as caught:
        load_text_side(tmp_path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("template", ["5", "[1]", "true"])
def test_a_chat_template_that_is_no_text_is_one_line(tmp_path, template):
    (tmp_path / "tokenizer_config.json").write_text(f'{{"chat_template": {template}}}')
    with pytest.raises(PreconditionError, match="chat template"):
        load_text_side(tmp_path)


BOMBS = [
    "{% for i in range(10**9) %}x{% endfor %}",
    "{{ 'x' * 10**13 }}",
    "{{ 1 / 0 }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__ }}",
    "{% include '/etc/passwd' %}",
]


@pytest.mark.parametrize("source", BOMBS)
def test_a_template_that_fails_refuses_the_messages(tmp_path, source):
    (tmp_path / "chat_template.jinja").write_text(source)
    template = load_text_side(tmp_path).template
    assert template is not None
    with pytest.raises(ApiError, match="the chat template refuses"):
        template.render([{"role": "user", "content": "x"}], add_generation_prompt=True, kwargs={})


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (BuildError("found no nvcc on PATH"), "nvcc on PATH; --allow-reference runs the slow torch references"),
        (BuildError("nvcc failed on a.cu for sm_90a:\na.cu(3): error: " + "x" * 5000), r"sm_90a: a\.cu\(3\): error"),
        (MemoryError("no room"), "--max-model-len"),
        (torch.OutOfMemoryError("CUDA out of memory.\nTried"), "memory. Tried"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "--num-blocks"),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be"), "memory .*; lower --max-model-len"),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "--max-num-seqs"),
        (RecursionError("too deep"), "nests too deeply"),
        (OSError("x" * 5000), "xxx"),
        (ValueError("shape [3]\nis odd"), r"ValueError: shape \[3\] is odd"),
        (PreconditionError("as it is"), "^as it is$"),
    ],
)
def test_why_a_model_does_not_load_is_one_line(monkeypatch, error, word):
    def fail(_: EngineConfig) -> None:
        raise error

    monkeypatch.setattr(runner, "load_runner", fail)
    with pytest.raises(PreconditionError, match=word) as caught:
        load_runner(EngineConfig(ModelConfig(Path("/m"))))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


def test_a_fault_of_the_engine_keeps_its_traceback(monkeypatch):
    def fail(_: EngineConfig) -> None:
        raise RuntimeError("expected scalar type Float but found BFloat16")

    monkeypatch.setattr(runner, "load_runner", fail)
    with pytest.raises(RuntimeError, match="scalar type"):
        load_runner(EngineConfig(ModelConfig(Path("/m"))))


def test_a_step_too_small_for_its_batch_is_a_usage_error():
    config = EngineConfig(
        ModelConfig(Path("/m")), scheduler=SchedulerConfig(max_num_seqs=32, max_num_batched_tokens=31)
    )
    with pytest.raises(UsageError, match="31 is below --max-num-seqs 32"):
        check_limits(config)


@pytest.mark.parametrize(("num_blocks", "context"), [(2, 33), (3, 49), (4, 64), (9, 64)])
def test_the_context_is_no_larger_than_the_pool(tiny_bf16_checkpoint, num_blocks, context):
    """Else a request that leaves max_tokens out is refused for a length it never asked for."""
    model = ModelConfig(tiny_bf16_checkpoint, device="cpu")
    limits = SchedulerConfig(max_num_seqs=1, max_model_len=64)
    loaded = load_engine(EngineConfig(model, CacheConfig(16, num_blocks), limits), {})
    try:
        assert loaded.info.max_model_len == context
        ended: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
        loaded.loop.submit(Request("whole", (1,), SamplingParams(context - 1, ignore_eos=True)), ended.put)
        deliveries = [ended.get(timeout=60) for _ in range(context - 1)]
        assert deliveries[-1].finish_reason is FinishReason.LENGTH
    finally:
        loaded.loop.stop(drain=False)
