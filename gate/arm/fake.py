"""4 A scripted OpenAI-compatible server, exact to the byte: what the gate is tested with, by users too.

    with FakeServer(preset("drop")) as server: run_leg(LoadSpec(url=server.url, ...))
    python -m gate.arm.fake --port 8123 --preset drop

An asyncio protocol of its own, since no framework lets a test cut a write in the middle of a character.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Self

from gate.arm.fake_connection import Connection
from gate.arm.fake_script import PRESETS, Script, load, preset
from gate.errors import GateError
from gate.interrupt import deferred


class FakeServer:
    """Serves on 127.0.0.1 in a thread of its own while the context is open."""

    def __init__(self, script: Script | None = None, port: int = 0) -> None:
        self.script = script or Script()
        self.port = port
        self.requests: list[dict[str, Any]] = []
        """Bodies of the completion requests, in order of arrival."""
        self._answered: Counter[tuple[int, ...]] = Counter()
        self.running = self.waiting = 0
        self.peak_running = 0
        self.disconnects = 0
        """Streams that the client left before their end."""
        self.generated = self.prompted = self.hits = 0
        self.started_at = time.time()
        self.born = time.monotonic()
        self.may_exit = False
        """Only a process of its own ends for `exit_after_requests`; in a test the server just closes."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self.serve()), name="fake-server", daemon=True)
        self.slots: asyncio.Semaphore
        self.transports: set[asyncio.Transport] = set()
        self.failure: BaseException | None = None
        """A fault of the fake itself, raised when the context is left."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        with deferred():  # cut while it waits for the thread, Python's own lock raises an error of its own
            self._thread.start()
            self._ready.wait()
        if self.failure is not None:
            raise self.failure
        return self

    def __exit__(self, *_: object) -> None:
        with deferred():
            self.stop()
            self._thread.join()
        if self.failure is not None:
            raise self.failure

    def stop(self) -> None:
        if self._loop is not None and self._stop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop.set)

    async def serve(self) -> None:
        """Until stop()."""
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self.slots = asyncio.Semaphore(self.script.slots or sys.maxsize)
        tasks: set[asyncio.Task[None]] = set()
        try:
            server = await self._loop.create_server(lambda: Connection(self, tasks), "127.0.0.1", self.port)
        except OSError as error:
            self.failure = error
            self._ready.set()
            return
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        for transport in list(self.transports):
            transport.abort()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def answers_otherwise(self, prompt: tuple[int, ...]) -> bool:
        """Every second time for each prompt, whatever comes between; which time first depends on the prompt."""
        self._answered[prompt] += 1
        return (self._answered[prompt] + sum(prompt)) % 2 == 0

    def admit(self, body: dict[str, Any]) -> bool:
        """Count a completion request; whether the script's fault is for it."""
        script, index = self.script, len(self.requests)
        if script.exit_after_requests is not None and index >= script.exit_after_requests:
            if self.may_exit:
                os._exit(1)
            self.stop()
        if index == script.restart_after_requests:
            self.generated = self.prompted = self.hits = 0
            self.started_at = time.time()
        self.requests.append(body)
        last = None if script.fault_count is None else script.fault_first + script.fault_count
        return index >= script.fault_first and (last is None or index < last)

    def factor(self) -> float:
        return self.script.slow_down + self.script.slow_down_per_stream * max(self.running - 1, 0)

    def get(self, path: str) -> tuple[int, str, bytes]:
        """(status, content type, body) of the endpoints that are not timed."""
        script, plain = self.script, "text/plain; charset=utf-8"
        if path == "/health":
            return (503 if time.monotonic() - self.born < script.unhealthy_s else 200), plain, b""
        if path == "/version":
            return 200, "application/json", json.dumps(self._version()).encode()
        if path == "/v1/models":
            model = {"id": script.model, "object": "model", "root": script.model, "max_model_len": script.max_model_len}
            return 200, "application/json", json.dumps({"object": "list", "data": [model]}).encode()
        if path == "/metrics":
            return 200, plain, self._metrics().encode()
        return 404, "application/json", b'{"detail":"Not Found"}'

    def _version(self) -> dict[str, Any]:
        script = self.script
        changed = script.identity_changes_after is not None and len(self.requests) >= script.identity_changes_after
        version = script.version + (".changed" if changed else "")
        if script.flavour == "vllm":
            return {"version": version}
        config = {
            "enable_prefix_caching": script.prefix_caching,
            "kv_cache_dtype": script.kv_cache_dtype,
            "max_model_len": script.max_model_len,
        }
        return {"version": version, "engine": "gate-and-engine", "manifest": {}, "config": config}

    def _metrics(self) -> str:
        script, prefix = self.script, self.script.flavour
        label = f'{{engine="0",model_name="{script.model}"}}'
        values = {
            f"{prefix}:num_requests_running": self.running,
            f"{prefix}:num_requests_waiting": self.waiting,
            f"{prefix}:kv_cache_usage_perc": 0.0,
            f"{prefix}:prompt_tokens_total": self.prompted,
            f"{prefix}:generation_tokens_total": self.generated,
            f"{prefix}:prefix_cache_queries_total": self.prompted,
            f"{prefix}:prefix_cache_hits_total": self.hits,
            f"{prefix}:num_preemptions_total": 0,
        }
        lines = []
        for name, value in values.items():
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# TYPE {name.removesuffix('_total')} {kind}", f"{name}{label} {float(value)}"]
        config = (
            f'{{block_size="16",cache_dtype="{script.kv_cache_dtype}",enable_prefix_caching="{script.prefix_caching}",'
            'engine="0",num_gpu_blocks="1024"}'
        )
        lines += [f"# TYPE {prefix}:cache_config_info gauge", f"{prefix}:cache_config_info{config} 1.0"]
        lines += ["# TYPE process_start_time_seconds gauge", f"process_start_time_seconds {self.started_at}", ""]
        return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m gate.arm.fake", description=(__doc__ or "").removeprefix("4 "), allow_abbrev=False
    )
    parser.add_argument("--port", type=int, default=0, help="0: a free one, printed")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--preset", default="good", help=", ".join(PRESETS))
    source.add_argument("--script", type=Path, help="TOML file with fields of gate.arm.fake_script.Script")
    parser.add_argument("--model", help="the name the script's model is served under")
    args = parser.parse_args(argv)
    try:
        script = load(args.script) if args.script else preset(args.preset)
    except GateError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    if args.model:
        script = script.model_copy(update={"model": args.model})
    server = FakeServer(script, args.port)
    server.may_exit = True
    try:
        with server:
            print(server.url, flush=True)
            threading.Event().wait()
    except OSError as error:
        print(f"cannot listen on port {args.port}: {error.strerror}", file=sys.stderr)
        return GateError.exit_code
    except KeyboardInterrupt:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
