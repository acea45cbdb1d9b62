"""The KV block manager under any order of calls, against a model of what each block holds."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from paceline.errors import EngineFailed
from verify_service.engine.block_manager import BlockManager

SALTS = st.sampled_from(["alice", "bob"])
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=14)


class Table:
    """One block table with the tokens whose KV it is said to hold."""

    def __init__(self, token_ids: list[int], salt: str, blocks: list[int], num_stored: int) -> None:
        self.token_ids = token_ids
        self.salt = salt
        self.blocks = blocks
        self.num_stored = num_stored


class BlockManagerMachine(RuleBasedStateMachine):
    """Sequences come, store, publish, shrink and go; ``contents`` remembers every slot."""

    tables: Bundle[Table] = Bundle("tables")

    @initialize(num_blocks=st.integers(1, 9), block_size=st.integers(1, 4))
    def start(self, num_blocks: int, block_size: int) -> None:
        """Create an empty cache."""
        self.manager = BlockManager(num_blocks, block_size)
        self.block_size = block_size
        self.contents: dict[int, tuple[str, tuple[int, ...]]] = {}
        self.published: set[tuple[str, tuple[int, ...]]] = set()
        self.held: list[Table] = []

    @rule(target=tables, token_ids=TOKENS, salt=SALTS)
    def admit(self, token_ids: list[int], salt: str) -> MultipleResults[Table] | Table:
        """Take hold of a known prefix; its blocks hold exactly these tokens of this tenant."""
        blocks = self.manager.match_prefix(token_ids, salt)

        assert len(blocks) * self.block_size < len(token_ids)
        for index, block in enumerate(blocks):
            prefix = tuple(token_ids[: (index + 1) * self.block_size])
            assert self.contents[block] == (salt, prefix)
            assert (salt, prefix) in self.published
        table = Table(list(token_ids), salt, blocks, len(blocks) * self.block_size)
        self.held.append(table)
        if not self.manager.can_grow(blocks, len(token_ids)):
            self._release(table)
            return multiple()
        return table

    @rule(table=tables, more=st.lists(st.integers(0, 1), max_size=4))
    def store(self, table: Table, more: list[int]) -> None:
        """Grow by committed tokens and store the KV of all of them."""
        token_ids = [*table.token_ids, *more]
        needed = self.manager.blocks_for(len(token_ids)) - len(table.blocks)
        assert self.manager.can_grow(table.blocks, len(token_ids)) == (
            needed <= self.manager.num_free
        )
        if needed > self.manager.num_free:
            return
        self.manager.grow(table.blocks, len(token_ids))
        first_new = table.num_stored // self.block_size
        table.token_ids, table.num_stored = token_ids, len(token_ids)
        for index in range(first_new, len(table.blocks)):
            prefix = tuple(token_ids[: (index + 1) * self.block_size])
            self.contents[table.blocks[index]] = (table.salt, prefix)

    @rule(table=tables, is_put_off=st.booleans())
    def publish(self, table: Table, is_put_off: bool) -> None:
        """Make what is stored reusable, now or in time."""
        publish = self.manager.publish_later if is_put_off else self.manager.publish
        publish(table.blocks, table.token_ids, table.num_stored, table.salt)
        for end in range(self.block_size, table.num_stored + 1, self.block_size):
            self.published.add((table.salt, tuple(table.token_ids[:end])))

    @rule(table=tables, extra=st.integers(0, 9))
    def speculate(self, table: Table, extra: int) -> None:
        """Take blocks for drafted nodes and give them back."""
        before = list(table.blocks)
        num_tokens = len(table.token_ids) + extra
        if self.manager.can_grow(table.blocks, num_tokens):
            self.manager.grow(table.blocks, num_tokens)
            for block in table.blocks[len(before) :]:
                self.contents[block] = ("draft", ())
        self.manager.shrink(table.blocks, len(before) * self.block_size)
        assert table.blocks == before

    @rule(table=consumes(tables))
    def end(self, table: Table) -> None:
        """End a sequence."""
        self._release(table)

    @rule()
    def settle(self) -> None:
        """Do what was put off."""
        self.manager.settle()

    @rule()
    def forget(self) -> None:
        """Drop every cached prefix that nobody holds."""
        self.manager.forget_cached()

    @invariant()
    def blocks_are_accounted_for(self) -> None:
        """Every block is in one state, and no two tenants hold one block."""
        if not hasattr(self, "held"):
            return
        self.manager.check_integrity([table.blocks for table in self.held])
        owners: dict[int, str] = {}
        for table in self.held:
            for block in table.blocks:
                assert owners.setdefault(block, table.salt) == table.salt
        assert self.manager.num_in_use == len(owners)

    @invariant()
    def stored_tokens_are_still_there(self) -> None:
        """Nobody wrote into a block that another sequence holds."""
        for table in getattr(self, "held", []):
            for index in range(table.num_stored // self.block_size):
                prefix = tuple(table.token_ids[: (index + 1) * self.block_size])
                assert self.contents[table.blocks[index]] == (table.salt, prefix)

    def teardown(self) -> None:
        """B045, B046: when all have ended, every block is free again."""
        for table in list(getattr(self, "held", [])):
            self._release(table)
        if hasattr(self, "manager"):
            self.manager.check_integrity([])
            assert self.manager.num_free == self.manager.num_blocks

    def _release(self, table: Table) -> None:
        self.held.remove(table)
        self.manager.free(table.blocks)


TestBlockManager = BlockManagerMachine.TestCase
TestBlockManager.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def _published(manager: BlockManager, token_ids: list[int], salt: str = "") -> list[int]:
    table: list[int] = []
    manager.grow(table, len(token_ids))
    manager.publish(table, token_ids, len(token_ids), salt)
    return table


def test_freed_prefix_is_found_again_and_leaves_the_last_token_out() -> None:
    manager = BlockManager(8, 2)
    table = _published(manager, [1, 2, 3, 4])
    held = list(table)
    manager.free(table)

    assert manager.match_prefix([1, 2, 3, 4], "") == held[:1]
    assert manager.match_prefix([1, 2, 3, 4, 5], "") == held


def test_other_tenant_does_not_see_the_prefix() -> None:
    manager = BlockManager(8, 2)
    _published(manager, [1, 2, 3, 4], "alice\0")

    assert manager.match_prefix([1, 2, 3, 4, 5], "bob\0") == []
    assert len(manager.match_prefix([1, 2, 3, 4, 5], "alice\0")) == 2


def test_same_tokens_after_another_start_are_another_prefix() -> None:
    manager = BlockManager(8, 2)
    _published(manager, [1, 2, 3, 4])

    assert manager.match_prefix([9, 9, 3, 4, 5], "") == []


def test_oldest_cached_prefix_is_evicted_first_and_its_tail_before_its_head() -> None:
    manager = BlockManager(4, 1)
    for token_ids in ([1, 2], [3, 4]):
        manager.free(_published(manager, token_ids))
    table: list[int] = []

    manager.grow(table, 1)

    assert len(manager.match_prefix([1, 2, 0], "")) == 1
    assert len(manager.match_prefix([3, 4, 0], "")) == 2


def test_prefix_published_in_parts_is_one_prefix() -> None:
    manager = BlockManager(8, 2)
    table: list[int] = []
    for num_stored in (1, 2, 5, 6):
        manager.grow(table, num_stored)
        manager.publish(table, [1, 2, 3, 4, 5, 6], num_stored, "")

    assert manager.match_prefix([1, 2, 3, 4, 5, 6, 7], "") == table


def test_a_prefix_that_was_put_off_is_found_as_if_it_had_not_been() -> None:
    managers = [BlockManager(8, 2), BlockManager(8, 2)]
    for manager, is_put_off in zip(managers, (False, True), strict=True):
        table: list[int] = []
        manager.grow(table, 4)
        publish = manager.publish_later if is_put_off else manager.publish
        publish(table, [1, 2, 3, 4], 4, "")
        if is_put_off:
            manager.free(table)

    assert [manager.match_prefix([1, 2, 3, 4, 5], "") for manager in managers] == [[0, 1]] * 2


def test_twin_sequences_publish_once_and_both_go_on() -> None:
    manager = BlockManager(8, 2)
    first, second = _published(manager, [1, 2, 3, 4]), _published(manager, [1, 2, 3, 4])

    manager.grow(second, 6)
    manager.publish(second, [1, 2, 3, 4, 5, 6], 6, "")

    manager.check_integrity([first, second])
    assert manager.match_prefix([1, 2, 3, 4, 5, 6, 7], "") == [*first, second[2]]


def test_without_prefix_caching_nothing_is_found() -> None:
    manager = BlockManager(4, 1, prefix_caching=False)
    manager.free(_published(manager, [1, 2]))

    assert manager.match_prefix([1, 2, 3], "") == []
    assert manager.num_free == 4


def test_growing_prefers_consecutive_blocks() -> None:
    manager = BlockManager(8, 1)
    first: list[int] = []
    second: list[int] = []
    manager.grow(first, 2)
    manager.grow(second, 2)
    manager.free(first)

    manager.grow(second, 4)

    assert second == [2, 3, 4, 5]


def test_growing_beyond_the_cache_is_a_fault() -> None:
    manager = BlockManager(2, 1)

    with pytest.raises(EngineFailed, match="no KV block"):
        manager.grow([], 3)


def test_lost_block_is_noticed() -> None:
    manager = BlockManager(4, 1)
    table: list[int] = []
    manager.grow(table, 2)

    with pytest.raises(EngineFailed, match="held by other counts"):
        manager.check_integrity([])
