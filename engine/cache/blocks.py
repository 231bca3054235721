"""BlockPool: which KV blocks are free. Integers only; the runner owns the memory they index."""

from __future__ import annotations

from collections.abc import Iterable

from engine.cache.errors import PoolError


class BlockPool:
    """`num_blocks` KV blocks of `block_tokens` tokens each, ids 0..num_blocks-1.

    No block is reserved: graphs of decoding are captured per exact batch size, and a padding row of a prompt's graph
    writes nowhere.
    Freed ids are reused last in, first out: a stale read then meets a new owner's data soon, where a test sees it,
    and recently written memory is reused while it is still in cache.

    A request's block table is a plain list that the pool grows in place; token t of the sequence lives in
    `table[t // block_tokens]` at offset `t % block_tokens`.
    """

    def __init__(self, num_blocks: int, block_tokens: int) -> None:
        if num_blocks < 1 or block_tokens < 1:
            raise ValueError(
                f"KV pool of {num_blocks} blocks × {block_tokens} tokens; both must be at least 1: "
                "raise --num-blocks or --block-tokens"
            )
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        self._free = list(range(num_blocks - 1, -1, -1))
        self._used = bytearray(num_blocks)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def usage(self) -> float:
        """Share of blocks in use, 0..1."""
        return 1.0 - len(self._free) / self.num_blocks

    def blocks_for(self, tokens: int) -> int:
        """Blocks that `tokens` tokens occupy."""
        return -(-tokens // self.block_tokens)

    def allocate(self, count: int) -> list[int] | None:
        """`count` block ids that nobody else holds, or None, with nothing taken, when fewer are free."""
        if count > len(self._free):
            return None
        ids = [self._free.pop() for _ in range(count)]
        for block in ids:
            self._used[block] = 1
        return ids

    def extend(self, table: list[int], tokens: int) -> bool:
        """Grow `table` to cover `tokens` tokens; False, with nothing changed, when the pool is short.

        All or nothing: a half-grown table would hold blocks for tokens that are not going to be computed.
        """
        new = self.allocate(max(0, self.blocks_for(tokens) - len(table)))
        if new is None:
            return False
        table.extend(new)
        return True

    def free(self, ids: Iterable[int]) -> None:
        """Return `ids`. PoolError, naming the block, for an id that is not in use."""
        for block in ids:
            if not 0 <= block < self.num_blocks or not self._used[block]:
                raise PoolError(f"KV block {block} was freed but is not in use; a block is freed once by its owner")
            self._used[block] = 0
            self._free.append(block)
