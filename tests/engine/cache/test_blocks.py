"""BlockPool: no id is handed out twice, none is lost, and misuse is loud."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.cache.blocks import BlockPool
from engine.cache.errors import PoolError


def test_every_block_can_be_taken_once_and_zero_is_one_of_them() -> None:
    pool = BlockPool(5, 4)
    ids = pool.allocate(5)
    assert ids is not None
    assert sorted(ids) == [0, 1, 2, 3, 4]
    assert pool.num_free == 0
    assert pool.usage == 1.0


def test_a_short_pool_gives_nothing_at_all() -> None:
    pool = BlockPool(3, 4)
    assert pool.allocate(4) is None
    table = pool.allocate(2)
    assert table is not None
    before = list(table)
    assert pool.extend(table, 16) is False
    assert table == before
    assert pool.num_free == 1


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_blocks_for_rounds_up(tokens: int, blocks: int) -> None:
    pool = BlockPool(4, 4)
    table: list[int] = []
    assert pool.blocks_for(tokens) == blocks
    assert pool.extend(table, tokens)
    assert len(table) == blocks


def test_extend_to_fewer_tokens_keeps_the_table() -> None:
    pool = BlockPool(4, 4)
    table: list[int] = []
    assert pool.extend(table, 9)
    assert pool.extend(table, 1)
    assert len(table) == 3


def test_double_free_is_an_error_and_names_the_block() -> None:
    pool = BlockPool(2, 4)
    ids = pool.allocate(1)
    assert ids is not None
    pool.free(ids)
    with pytest.raises(PoolError, match=f"KV block {ids[0]} was freed but is not in use"):
        pool.free(ids)
    assert pool.num_free == 2


@pytest.mark.parametrize("block", [-1, 2, 1])
def test_freeing_a_foreign_or_unused_block_is_an_error(block: int) -> None:
    pool = BlockPool(2, 4)
    assert pool.allocate(1) == [0]
    with pytest.raises(PoolError, match=f"KV block {block} was freed"):
        pool.free([block])


@pytest.mark.parametrize(("num_blocks", "block_tokens"), [(0, 16), (4, 0)])
def test_an_empty_pool_is_refused(num_blocks: int, block_tokens: int) -> None:
    with pytest.raises(ValueError, match="both must be at least 1"):
        BlockPool(num_blocks, block_tokens)


class Tables(RuleBasedStateMachine):
    """Any sequence of grow and free against a model that knows each owner's tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(7, 3)
        self.tables: list[tuple[list[int], int]] = []

    @rule(tokens=st.integers(0, 24))
    def open(self, tokens: int) -> None:
        table: list[int] = []
        fits = -(-tokens // 3) <= self.pool.num_free
        assert self.pool.extend(table, tokens) is fits
        self.tables.append((table, tokens if fits else 0))

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), more=st.integers(1, 9))
    def grow(self, data: st.DataObject, more: int) -> None:
        index = data.draw(st.integers(0, len(self.tables) - 1))
        table, tokens = self.tables[index]
        prefix = list(table)
        if self.pool.extend(table, tokens + more):
            self.tables[index] = table, tokens + more
        assert table[: len(prefix)] == prefix

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        table, _ = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        self.pool.free(table)

    @invariant()
    def nothing_overlaps_and_nothing_is_lost(self) -> None:
        held = [block for table, _ in self.tables for block in table]
        assert len(set(held)) == len(held)
        assert set(held) <= set(range(7))
        assert self.pool.num_free == 7 - len(held)
        assert all(len(table) == -(-tokens // 3) for table, tokens in self.tables)

    def teardown(self) -> None:
        for table, _ in self.tables:
            self.pool.free(table)
        assert self.pool.num_free == 7


Tables.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestTables = Tables.TestCase
