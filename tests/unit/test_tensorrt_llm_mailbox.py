"""Frames, the mailbox in the worker, and the socket between worker and verifier."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.errors import InvalidTree
from paceline.tree import TokenTree
from verify_service.engine.draft_trie import MergeOutcome
from verify_service.engines.tensorrt_llm import mailbox as mailbox_module
from verify_service.engines.tensorrt_llm.mailbox import MAX_TAIL, Mailbox, RequestDrafts
from verify_service.engines.tensorrt_llm.mailbox_link import close_link, link_at
from verify_service.engines.tensorrt_llm.mailbox_server import MailboxServer, SocketFolder
from verify_service.engines.tensorrt_llm.wire_frames import (
    Closed,
    Committed,
    Count,
    Fact,
    Forget,
    Frame,
    FrameError,
    FrameReader,
    Hello,
    Limit,
    Placed,
    decode,
    encode,
)

TREE = TokenTree((5, 6, 7), (0, 1, 1), (-0.5, -0.25, -2.0))
FRAMES: list[Frame] = [
    Hello(0, 8),
    Fact(7, 12, TREE),
    Fact(8, 3, TokenTree.chain([1, 2])),
    Fact(9, 3, TokenTree()),
    Limit(7, 0),
    Forget(1 << 40),
    Placed(7, 12, 3),
    Committed(7, 12, 2, (5, 6, 9)),
    Committed(7, 12, 0, ()),
    Closed(7),
    Count(2, 1000),
]


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_frames_survive_the_wire_in_any_pieces(size: int) -> None:
    data = b"".join(encode(frame) for frame in FRAMES)
    reader = FrameReader()

    received = [
        decode(kind, payload)
        for start in range(0, len(data), size)
        for kind, payload in reader.feed(data[start : start + size])
    ]

    assert received == FRAMES


def test_a_huge_frame_is_refused_before_it_is_read() -> None:
    with pytest.raises(FrameError, match="at most"):
        list(FrameReader().feed(b"\xff\xff\xff\x7f\x00"))


@pytest.mark.parametrize(("kind", "payload"), [(200, b""), (4, b"\0" * 8), (1, b"\0" * 3)])
def test_garbage_is_refused(kind: int, payload: bytes) -> None:
    with pytest.raises(FrameError):
        decode(kind, payload)


def test_a_fact_that_is_no_tree_is_refused() -> None:
    good = encode(Fact(1, 1, TokenTree.chain([1, 2])))
    reader = FrameReader()
    ((kind, payload),) = reader.feed(good)
    bad = payload[:40] + b"\x09" + payload[41:]  # the first node's parent

    with pytest.raises(InvalidTree):
        decode(kind, bad)


def test_a_fact_ahead_of_the_executor_waits_for_it() -> None:
    drafts = RequestDrafts(8)
    drafts.commit(3, [10])
    outcome = drafts.merge(Fact(1, 5, TokenTree.chain([12, 13])))
    before = drafts.path(8)

    drafts.commit(4, [11])

    assert outcome is MergeOutcome.AHEAD
    assert before == []
    assert drafts.path(8) == [12, 13]


def test_a_commit_told_twice_changes_nothing() -> None:
    drafts = RequestDrafts(8)
    drafts.commit(3, [10, 11])
    drafts.merge(Fact(1, 5, TokenTree.chain([12, 13])))

    drafts.commit(3, [10, 11])
    drafts.commit(4, [11, 12])

    assert drafts.committed_len == 6
    assert drafts.path(8) == [13]


def test_a_gap_in_what_was_committed_drops_the_drafts() -> None:
    drafts = RequestDrafts(8)
    drafts.commit(3, [10])
    drafts.merge(Fact(1, 4, TokenTree.chain([12, 13])))

    drafts.commit(9, [40])

    assert drafts.committed_len == 10
    assert drafts.path(8) == []


def test_a_fact_older_than_the_memory_is_stale() -> None:
    drafts = RequestDrafts(8)
    drafts.commit(3, list(range(MAX_TAIL + 10)))

    assert drafts.merge(Fact(1, 4, TokenTree.chain([1, 2]))) is MergeOutcome.STALE


def test_the_best_path_may_start_with_the_less_likely_token() -> None:
    drafts = RequestDrafts(8)
    drafts.commit(1, [9])
    tree = TokenTree((1, 2, 3, 4), (0, 0, 2, 3), (-0.6, -0.8, -0.01, -0.01))
    drafts.merge(Fact(1, 2, tree))

    assert drafts.path(8) == [2, 3, 4]
    assert drafts.path(1) == [1]


def test_requests_are_bounded_and_closed_ones_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox_module, "MAX_REQUESTS", 3)
    mailbox = Mailbox(4, lambda frame: None)
    kept = [mailbox.request(client) for client in (1, 2, 3)]
    kept[1].is_closed = True

    mailbox.request(4)

    assert mailbox.request(1) is kept[0]
    assert mailbox.request(3) is kept[2]
    assert mailbox.request(2) is not kept[1]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 the other side is a thread
            await asyncio.sleep(0.01)


@pytest.mark.asyncio
async def test_worker_and_verifier_find_each_other_again_and_again() -> None:
    folder = SocketFolder()
    received: list[Frame] = []
    link = link_at(folder.address, 4)  # the worker may come first
    try:
        for round_number in (1, 2):
            server = MailboxServer(folder.address, received.append)
            await server.start()
            await until(lambda server=server: server.is_connected)  # type: ignore[misc]  # lambda
            server.post(Fact(round_number, 2, TREE))
            link.mailbox.request(round_number).commit(1, [3])
            drafts = link.mailbox.request(round_number)
            await until(lambda drafts=drafts: not drafts.is_empty)  # type: ignore[misc]  # lambda
            link.mailbox.send(Placed(round_number, 2, 2))
            await until(lambda count=round_number: len(received) == count)  # type: ignore[misc]
            await server.aclose()
    finally:
        await asyncio.to_thread(close_link, folder.address)
        folder.remove()

    assert received == [Placed(1, 2, 2), Placed(2, 2, 2)]


@pytest.mark.asyncio
async def test_without_a_worker_facts_are_dropped_and_counted(tmp_path: Path) -> None:
    server = MailboxServer(str(tmp_path / "s"), lambda frame: None)
    await server.start()

    server.post(Fact(1, 2, TREE))
    await server.aclose()

    assert server.counts["dropped_no_worker"] == 1


@pytest.mark.asyncio
async def test_the_worker_tells_why_chains_stay_empty(tmp_path: Path) -> None:
    address = str(tmp_path / "s")
    server = MailboxServer(address, lambda frame: None)
    await server.start()
    link = link_at(address, 4)
    try:
        link.mailbox.counts["empty"] += 3
        await until(lambda: server.counts["chain_empty"] == 3)
    finally:
        await asyncio.to_thread(close_link, address)
        await server.aclose()


@pytest.mark.asyncio
async def test_garbage_from_a_worker_ends_its_connection_only(tmp_path: Path) -> None:
    address = str(tmp_path / "s")
    server = MailboxServer(address, lambda frame: None)
    await server.start()
    reader, writer = await asyncio.open_unix_connection(address)
    writer.write(b"\0\0\0\0\xff")
    ended = await reader.read()
    writer.close()
    await until(lambda: not server.is_connected)
    await server.aclose()

    assert ended == b""


@pytest.mark.asyncio
async def test_a_second_rank_is_turned_away_and_the_first_stays(tmp_path: Path) -> None:
    """Every rank would have to set identical chains; one that tries is not listened to."""
    address = str(tmp_path / "s")
    received: list[Frame] = []
    server = MailboxServer(address, received.append)
    await server.start()
    _, first = await asyncio.open_unix_connection(address)
    first.write(encode(Hello(0, 4)))
    await until(lambda: server.is_connected)

    reader, second = await asyncio.open_unix_connection(address)
    second.write(encode(Hello(1, 4)) + encode(Placed(7, 2, 1)))
    ended = await reader.read()
    first.write(encode(Placed(1, 2, 2)))
    await until(lambda: bool(received))
    for writer in (first, second):
        writer.close()
    await server.aclose()

    assert ended == b""
    assert received == [Placed(1, 2, 2)]


@pytest.mark.asyncio
async def test_a_fault_while_taking_a_fact_does_not_end_the_workers_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = str(tmp_path / "s")
    server = MailboxServer(address, lambda frame: None)
    await server.start()
    link = link_at(address, 4)
    receive = link.mailbox.receive

    def failing_once(frame: Frame) -> None:
        monkeypatch.setattr(link.mailbox, "receive", receive)
        raise RuntimeError("a fault")

    monkeypatch.setattr(link.mailbox, "receive", failing_once)
    try:
        await until(lambda: server.is_connected)
        server.post(Fact(1, 2, TREE))
        await until(lambda: link.mailbox.counts["error"] == 1)
        await until(lambda: server.is_connected)
        link.mailbox.request(2).commit(1, [3])
        await until(lambda: _posted(server, link.mailbox))
    finally:
        await asyncio.to_thread(close_link, address)
        await server.aclose()


def _posted(server: MailboxServer, mailbox: Mailbox) -> bool:
    server.post(Fact(2, 2, TREE))
    return not mailbox.request(2).is_empty
