"""The allocator's setting is the engine's unless the user has one, and is made before torch is imported."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from engine import allocator

TOLD = """
import os, sys
from engine import cli
assert "torch" not in sys.modules
assert cli.run(["version"]) == 0
assert "torch" not in sys.modules
print(os.environ["PYTORCH_CUDA_ALLOC_CONF"])
"""


def test_the_engine_chooses_where_nobody_has():
    environment = {"PATH": "/bin"}
    allocator.choose(environment)
    assert environment == {"PATH": "/bin", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}


@pytest.mark.parametrize("name", allocator.VARIABLES)
def test_a_users_setting_stays_as_it_is(name):
    environment = {name: "max_split_size_mb:64"}
    allocator.choose(environment)
    assert environment == {name: "max_split_size_mb:64"}


def test_the_command_line_settles_it_before_torch_is_there():
    without = {name: value for name, value in os.environ.items() if name not in allocator.VARIABLES}
    done = subprocess.run([sys.executable, "-c", TOLD], env=without, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "expandable_segments:True"
