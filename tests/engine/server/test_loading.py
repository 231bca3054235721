"""What the checkpoint folder gives to the text side, and how loading fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from engine import runner
from engine.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from engine.errors import PreconditionError
from engine.kernels.build import BuildError
from engine.server.loading import check_folder, load_runner, load_text_side, warm_up


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
    ("error", "word"),
    [
        (BuildError("found no nvcc on PATH"), "nvcc"),
        (MemoryError("no room"), "--max-model-len"),
        (torch.OutOfMemoryError("CUDA out of memory.\nTried"), "memory. Tried"),
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


@pytest.mark.parametrize(("block_tokens", "max_model_len"), [(1, 8), (2, 8), (16, 64), (16, 4), (16, 1)])
def test_warm_up_fits_one_block_and_the_context(tiny_bf16_checkpoint, block_tokens, max_model_len):
    model, limits = ModelConfig(tiny_bf16_checkpoint, device="cpu"), SchedulerConfig(max_model_len=max_model_len)
    loaded = load_runner(EngineConfig(model, CacheConfig(block_tokens, num_blocks=1), limits))
    warm_up(loaded, block_tokens)
