"""`engine serve` in a process of its own, with the loader replaced: python served.py slow|quick|broken|crash ARGS…"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from engine import cli
from engine.errors import PreconditionError
from engine.server import serve
from engine.server.loading import Loaded
from tests.engine.server import fakes


class Loop(fakes.FakeEngine):
    def stop(self, *, drain: bool) -> None:
        assert not drain
        if "long-step" in sys.argv:
            time.sleep(60)


def quick(*_: object) -> Loaded:
    import threading

    return Loaded(Loop(hold=threading.Event()), fakes.model_info(), {"device": "none"})  # type: ignore[arg-type]


def slow(*_: object) -> Loaded:
    time.sleep(60)
    return quick()


def broken(*_: object) -> Loaded:
    raise PreconditionError("model.safetensors ends in the middle; expected 10 bytes more; download it again")


def crash(*_: object) -> Loaded:
    raise ZeroDivisionError("a bug")


if __name__ == "__main__":
    serve.load_engine = globals()[sys.argv[1]]
    arguments = [a for a in sys.argv[2:] if a != "long-step"]
    sys.exit(cli.run(arguments))
