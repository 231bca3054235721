"""The scripted server with /start_profile and /stop_profile, writing the tiny model's trace: fake_profiled.py PORT.

A window's length is what its requests asked for; ENGINE_PROFILE_DIR names the folder, as for the engine.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from gate.arm import fake
from gate.arm.fake_connection import Connection
from tests.gate.profile.tiny import write_chrome


class Profiled(Connection):
    seen = 0
    written = 0

    async def _answer(self, method: str, path: str, body: bytes) -> None:
        if method != "POST" or path not in ("/start_profile", "/stop_profile"):
            await super()._answer(method, path, body)
            return
        folder = Path(os.environ["ENGINE_PROFILE_DIR"])
        if path == "/start_profile":
            Profiled.seen = len(self._server.requests)
        else:
            tokens = int(self._server.requests[Profiled.seen]["max_tokens"])
            Profiled.written += 1
            write_chrome(folder / f"{Profiled.written}.json.gz", tokens, slow="candidate" in folder.name)
            (folder / f"{Profiled.written}-frontend.json").write_text('{"traceEvents": []}')
        self._reply(200, "application/json", b"{}")


if __name__ == "__main__":
    print("Model loading took 0.5 GiB memory", flush=True)  # vLLM's words for what its weights take
    fake.Connection = Profiled  # type: ignore[misc]
    sys.exit(fake.main(["--port", sys.argv[1], "--preset", "instant"]))
