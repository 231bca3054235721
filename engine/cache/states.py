"""StatePool: which recurrent-state slot belongs to which request. Integers only; the runner owns the memory."""

from __future__ import annotations

from collections.abc import Iterable

from engine.cache.errors import PoolError


class StatePool:
    """`num_slots` recurrent-state slots, ids 0..num_slots-1, each holding one request's conv and delta-rule state.

    Slots are keyed by request, not by KV block: the state summarises the whole prefix, so it has one owner and one
    lifetime, and tying it to attention pages would force odd block sizes.

    Slot 0 is not reserved. A null slot is needed where the sequences of a graph are padded; ours are captured per exact
    batch size, and a slot costs 154 MB on the 27B (64 MB on the 35B). Warm-up and graph capture may scribble on any
    slot: the runner clears a slot on the first segment after assignment (Segment.zero_state), so nothing survives.

    A step that was launched and not completed still writes its slots. Handing such a slot to another request is the
    classic corruption of hybrid models, so `release` refuses it; the scheduler waits for the step instead.
    """

    def __init__(self, num_slots: int) -> None:
        if num_slots < 1:
            raise ValueError(f"{num_slots} state slots; a hybrid model needs at least 1: raise --max-num-seqs")
        self.num_slots = num_slots
        self._free = list(range(num_slots - 1, -1, -1))
        self._slots: dict[str, int] = {}
        self._launched: dict[int, frozenset[str]] = {}

    @property
    def num_free(self) -> int:
        return len(self._free)

    def assign(self, request_id: str) -> int:
        """A free slot for `request_id`. PoolError when none is free or the request holds one already."""
        if request_id in self._slots:
            raise PoolError(f"request {request_id} already holds state slot {self._slots[request_id]}; it may hold one")
        if not self._free:
            raise PoolError(f"no state slot is free of {self.num_slots}; ask num_free before assigning")
        self._slots[request_id] = self._free.pop()
        return self._slots[request_id]

    def launch(self, step: int, request_ids: Iterable[str]) -> None:
        """Note that `step`, which reads and writes these requests' slots, is about to run."""
        ids = frozenset(request_ids)
        strangers = sorted(ids - self._slots.keys())
        if strangers:
            raise PoolError(f"step {step} uses the state of {', '.join(strangers)}, which hold no slot")
        self._launched[step] = ids

    def complete(self, step: int) -> None:
        """Note that `step` has finished on the device. PoolError when it was never launched."""
        if self._launched.pop(step, None) is None:
            raise PoolError(f"step {step} completed but was not launched, or completed twice")

    def release(self, request_id: str) -> None:
        """Return the request's slot. PoolError when it holds none, or a launched step still uses it."""
        if request_id not in self._slots:
            raise PoolError(f"request {request_id} holds no state slot; a slot is released once by its owner")
        for step, ids in self._launched.items():
            if request_id in ids:
                raise PoolError(
                    f"state slot of {request_id} released while step {step} uses it; complete the step first"
                )
        self._free.append(self._slots.pop(request_id))
