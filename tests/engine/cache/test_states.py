"""StatePool: one slot per request, and none changes hands while a step still writes it."""

from __future__ import annotations

import pytest

from engine.cache.errors import PoolError
from engine.cache.states import StatePool


def test_all_slots_are_usable_from_zero() -> None:
    pool = StatePool(3)
    assert sorted(pool.assign(name) for name in "abc") == [0, 1, 2]
    assert pool.num_free == 0


def test_a_released_slot_is_assigned_again() -> None:
    pool = StatePool(1)
    slot = pool.assign("a")
    pool.release("a")
    assert pool.assign("b") == slot


def test_a_request_holds_one_slot() -> None:
    pool = StatePool(2)
    pool.assign("a")
    with pytest.raises(PoolError, match="request a already holds state slot"):
        pool.assign("a")


def test_assigning_from_an_empty_pool_is_an_error() -> None:
    pool = StatePool(1)
    pool.assign("a")
    with pytest.raises(PoolError, match="no state slot is free of 1"):
        pool.assign("b")


def test_double_release_is_an_error() -> None:
    pool = StatePool(1)
    pool.assign("a")
    pool.release("a")
    with pytest.raises(PoolError, match="request a holds no state slot"):
        pool.release("a")
    assert pool.num_free == 1


def test_a_slot_is_kept_until_the_last_step_that_uses_it_has_completed() -> None:
    pool = StatePool(2)
    pool.assign("a")
    pool.assign("b")
    pool.launch(1, ["a", "b"])
    pool.launch(2, ["a"])
    pool.complete(1)
    with pytest.raises(PoolError, match="state slot of a released while step 2 uses it"):
        pool.release("a")
    pool.release("b")
    pool.complete(2)
    pool.release("a")
    assert pool.num_free == 2


def test_a_step_must_not_use_a_request_without_a_slot() -> None:
    pool = StatePool(1)
    with pytest.raises(PoolError, match="step 4 uses the state of ghost, which hold no slot"):
        pool.launch(4, ["ghost"])


def test_a_step_completes_once() -> None:
    pool = StatePool(1)
    pool.assign("a")
    pool.launch(7, ["a"])
    pool.complete(7)
    with pytest.raises(PoolError, match="step 7 completed but was not launched, or completed twice"):
        pool.complete(7)


def test_a_pool_without_slots_is_refused() -> None:
    with pytest.raises(ValueError, match="0 state slots"):
        StatePool(0)
