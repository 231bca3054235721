"""Canonical names."""

from __future__ import annotations

import pytest

from engine.weights.names import canonical, is_skipped, parents


@pytest.mark.parametrize("root", ["model.language_model.", "language_model.model.", "model.", ""])
def test_every_root_gives_the_same_name(root: str) -> None:
    assert canonical(f"{root}layers.3.mlp.up_proj.weight") == "layers.3.mlp.up_proj.weight"


@pytest.mark.parametrize("stored", ["lm_head.weight", "model.lm_head.weight", "language_model.lm_head.weight"])
def test_the_head_may_stand_beside_or_inside_the_model(stored: str) -> None:
    assert canonical(stored) == "lm_head.weight"


@pytest.mark.parametrize("place", ["self_attn.k_proj.k_scale", "self_attn.k_scale", "self_attn.attn.k_scale"])
def test_kv_scales_have_one_name(place: str) -> None:
    assert canonical(f"model.layers.3.{place}") == "layers.3.self_attn.k_proj.k_scale"


def test_vision_and_mtp_are_told_by_their_root_alone() -> None:
    assert is_skipped("model.visual.blocks.0.attn.qkv.weight")
    assert is_skipped("mtp.layers.0.self_attn.q_proj.weight")
    assert not is_skipped("model.language_model.layers.0.mlp.up_proj.weight")
    assert not is_skipped("model.language_model.visualizer.weight")


def test_parents_are_whole_dotted_names() -> None:
    assert list(parents("layers.10.mlp")) == ["layers.10.mlp", "layers.10", "layers"]
