"""4 One scenario against one server, untimed: staggered streams, some left in the middle -> sequence rows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import httpx
import orjson

from gate.client import eventloop, openai, sse
from gate.client.stream import error_message, read_stream
from gate.observe import control
from gate.observe.rows import Arm
from gate.observe.tokenrows import SequenceRow
from gate.tokenrun.scenario import STAGGER_TOKENS, Call, Scenario

HEADERS = {"content-type": "application/json"}
MAX_ERROR_CHARS = 200


class Driver:
    """Sends scenarios to one server under one model name."""

    def __init__(self, url: str, model: str, timeout_s: float) -> None:
        self._url, self._model, self._timeout_s = url, model, timeout_s

    def run(self, scenario: Scenario, arm: Arm, take: int) -> list[SequenceRow]:
        """Every call once; one that fails has an error and fails nobody else. One row a call, in order."""
        return eventloop.run(lambda: self._run(scenario, arm, take))

    async def _run(self, scenario: Scenario, arm: Arm, take: int) -> list[SequenceRow]:
        waiting = iter(scenario.calls)
        rows: list[SequenceRow] = []
        limits = httpx.Limits(max_connections=scenario.concurrency)
        begun = [asyncio.Event() for _ in range(scenario.concurrency)]

        async def stream(number: int) -> None:
            if number and scenario.kind == "churn":
                await begun[number - 1].wait()
            try:
                for call in waiting:
                    ids, error = await self._call(client, call, begun[number])
                    rows.append(_row(scenario, arm, take, call, ids, error))
            finally:
                begun[number].set()

        async with (
            httpx.AsyncClient(
                base_url=self._url,
                timeout=self._timeout_s,
                trust_env=False,
                limits=limits,
                verify=control.tls_context(),
            ) as client,
            asyncio.TaskGroup() as group,
        ):
            for number in range(scenario.concurrency):
                group.create_task(stream(number))
        return sorted(rows, key=lambda row: row.index)

    async def _call(
        self, client: httpx.AsyncClient, call: Call, begun: asyncio.Event
    ) -> tuple[tuple[int, ...] | None, str | None]:
        """(ids, error). A call that is to be cancelled closes its connection as soon as it has what it keeps."""
        body = openai.body(self._model, call.prompt.token_ids, call.asked)
        chunks: list[tuple[int, bytes]] = []
        parser, seen = sse.Parser(), 0
        error = None
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                client.stream("POST", openai.PATH, content=body, headers=HEADERS) as response,
            ):
                if response.status_code != 200:
                    text = (await response.aread()).decode("utf-8", "replace")
                    return None, f"HTTP {response.status_code}: {' '.join(text.split())[:MAX_ERROR_CHARS]}"
                async for read in response.aiter_raw():
                    chunks.append((0, read))
                    seen += sum(map(_carried, parser.feed(read)))
                    if seen >= STAGGER_TOKENS:
                        begun.set()
                    if call.cancelled and seen >= call.kept:
                        break
        except (httpx.HTTPError, TimeoutError) as problem:
            error = " ".join(str(problem).split()) or type(problem).__name__
        stream = read_stream(chunks)
        echoed = stream.prompt_token_ids
        if echoed is not None and tuple(echoed) != call.prompt.token_ids:
            error = error or f"the server read another prompt: {len(echoed)} ids, contents differ"
        ids = stream.token_ids
        whole = ids is not None and len(ids) >= call.kept
        if not (call.cancelled and whole):
            error = error or stream.error
        # Of a stream that was left the rest is chance; of one that ran to its end too many ids are a fault.
        return ids[: call.kept] if ids is not None and call.cancelled else ids, error


def _carried(event: sse.Event) -> int:
    """Ids in one event; what is wrong with it, read_stream says afterwards."""
    try:
        value = orjson.loads(event.data)
    except orjson.JSONDecodeError:
        return 0
    if not isinstance(value, dict) or error_message(value) is not None:
        return 0
    return sum(len(ids) for ids in _id_lists(value.get("choices")))


def _id_lists(choices: object) -> Iterator[list[object]]:
    for choice in choices if isinstance(choices, list) else ():
        ids = choice.get("token_ids") if isinstance(choice, dict) else None
        if isinstance(ids, list):
            yield ids


def _row(
    scenario: Scenario, arm: Arm, take: int, call: Call, ids: tuple[int, ...] | None, error: str | None
) -> SequenceRow:
    return SequenceRow(
        kind=scenario.kind,
        concurrency=scenario.concurrency,
        repetition=scenario.repetition,
        index=call.prompt.index,
        arm=arm,
        take=take,
        prompt_sha256=call.prompt.sha256,
        output_tokens=call.kept,
        cancelled=call.cancelled,
        token_ids=ids,
        error=error,
    )
