"""Whatever a drafter does, the ids are those of plain decoding, and nothing hangs or leaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from paceline.v1 import draft_service_pb2, types_pb2, verify_service_pb2
from tests.doubles.running_verifier import (
    POOL,
    VOCAB,
    AttachedGateway,
    attached,
    eventually,
    make_engine,
    running_drafter,
    running_verifier,
    start,
)
from tests.doubles.scripted_drafter import Proposals, Propose, ScriptedDrafter, chain, oracle
from verify_service.engine.step_engine import StepEngine
from verify_service.server import VerifyServer

pytestmark = pytest.mark.asyncio

PROMPT = [1, 2, 3, 4, 5]
NUM_TOKENS = 60


@asynccontextmanager
async def drafting(
    drafter: ScriptedDrafter, engine: StepEngine
) -> AsyncIterator[tuple[VerifyServer, AttachedGateway]]:
    """Run a drafter and a verifier that knows it, and attach once the two are connected."""
    async with (
        running_drafter(drafter) as pool,
        running_verifier(engine, {POOL: pool}) as (server, address),
        attached(address) as gateway,
    ):
        await eventually(lambda: server.links[POOL].status.cause is None)
        yield server, gateway


async def _plain_ids() -> list[int]:
    async with running_verifier(make_engine()) as (_, address), attached(address) as gateway:
        await gateway.start(start(1, PROMPT, max_tokens=NUM_TOKENS))
        return (await gateway.result(1)).token_ids


def _raw(token_ids: list[int], parents: list[int], log_probs: list[float] | None = None) -> Propose:
    def propose(session_id: int, committed: list[int]) -> Proposals:
        tree = types_pb2.TokenTree(token_ids=token_ids, parents=parents, log_probs=log_probs or [])
        base_len = len(committed)
        return [draft_service_pb2.Proposal(session_id=session_id, base_len=base_len, tree=tree)]

    return propose


def _beyond(session_id: int, committed: list[int]) -> Proposals:
    return [chain(session_id, len(committed) + 1_000, [1, 2])]


def _foreign(session_id: int, committed: list[int]) -> Proposals:
    return [chain(session_id + 999, len(committed), [1, 2])]


@pytest.mark.parametrize(
    ("propose", "counter"),
    [
        pytest.param(_raw([1, 2], [0, 2]), "invalid_forward_parent", id="cycle"),
        pytest.param(_raw([1, 2], [5, 0]), "invalid_forward_parent", id="forward parent"),
        pytest.param(_raw([VOCAB], [0]), "invalid_token_out_of_range", id="token out of range"),
        pytest.param(_raw([1, 1], [0, 0]), "invalid_duplicate_sibling", id="equal siblings"),
        pytest.param(_raw([1, 2], [0]), "invalid_length_mismatch", id="unequal lists"),
        pytest.param(
            _raw([1], [0], [float("nan")]), "invalid_log_prob_out_of_range", id="NaN log-prob"
        ),
        pytest.param(
            _raw([1] * 10_000, list(range(10_000))), "invalid_too_many_nodes", id="10 000 nodes"
        ),
        pytest.param(_beyond, "trees", id="base_len never reached"),
        pytest.param(_foreign, "trees", id="session of nobody"),
    ],
)
async def test_hostile_trees_are_dropped_and_counted(propose: Propose, counter: str) -> None:
    """B074: each malformed tree is dropped with a named counter, the ids stay the plain ones."""
    expected = await _plain_ids()
    engine = make_engine()
    async with drafting(ScriptedDrafter(propose), engine) as (server, gateway):
        await gateway.start(start(1, PROMPT, max_tokens=NUM_TOKENS, pool=POOL))
        received = await gateway.result(1)

        assert received.token_ids == expected
        assert received.num_accepted == 0
        assert server.links[POOL].counts[counter] > 0


async def test_an_honest_drafter_shortens_the_run() -> None:
    """The control: with the oracle's drafts the same ids need far fewer steps."""
    expected = await _plain_ids()
    drafter = ScriptedDrafter(oracle([*PROMPT, *expected], depth=6))
    async with drafting(drafter, make_engine(pace_seconds=0.002)) as (_, gateway):
        await gateway.start(start(1, PROMPT, max_tokens=NUM_TOKENS, pool=POOL))
        received = await gateway.result(1)

        assert received.token_ids == expected
        assert len(received.results) < NUM_TOKENS / 2
        await eventually(lambda: len(drafter.closed) == 1)


async def test_stale_trees_still_help_and_change_nothing() -> None:
    """A late tree is re-rooted along what was committed since it was asked for."""
    expected = await _plain_ids()
    truth = [*PROMPT, *expected]

    def late(session_id: int, committed: list[int]) -> Proposals:
        base_len = max(len(committed) - 4, len(PROMPT))
        return [chain(session_id, base_len, truth[base_len : base_len + 12])]

    async with drafting(ScriptedDrafter(late), make_engine(pace_seconds=0.002)) as (_, gateway):
        await gateway.start(start(1, PROMPT, max_tokens=NUM_TOKENS, pool=POOL))
        received = await gateway.result(1)

        assert received.token_ids == expected
        assert received.num_accepted > 0


@pytest.mark.parametrize(
    "drafter",
    [
        pytest.param(ScriptedDrafter(hangs=True), id="hangs"),
        pytest.param(ScriptedDrafter(close_after=3), id="closes the stream"),
        pytest.param(ScriptedDrafter(knows_sessions=False), id="forgets sessions"),
        pytest.param(ScriptedDrafter(delay_seconds=0.3), id="is slow"),
    ],
)
async def test_a_failing_drafter_costs_no_token(drafter: ScriptedDrafter) -> None:
    """B070, B072, B073: hung, gone, forgetful or slow, the answer is the plain one."""
    expected = await _plain_ids()
    engine = make_engine()
    async with drafting(drafter, engine) as (_, gateway):
        await gateway.start(*(start(i, PROMPT, max_tokens=NUM_TOKENS, pool=POOL) for i in (1, 2)))

        assert (await gateway.result(1)).token_ids == expected
        assert (await gateway.result(2)).token_ids == expected
        await eventually(lambda: engine.blocks.num_in_use == 0)


async def test_a_drafter_that_comes_back_is_used_again() -> None:
    """B073: drafting resumes for the running request once the pool is back."""
    expected = await _plain_ids()
    truth = [*PROMPT, *expected]
    slow = ScriptedDrafter(oracle(truth, depth=1), delay_seconds=0.02)
    async with running_drafter(slow) as pool:
        port = int(pool.rpartition(":")[2])
        verifier = running_verifier(make_engine(pace_seconds=0.002), {POOL: pool})
        server, address = await verifier.__aenter__()
        await eventually(lambda: server.links[POOL].status.cause is None)
    try:
        await eventually(lambda: server.links[POOL].status.cause is not None)
        async with attached(address) as gateway:
            await gateway.start(start(1, PROMPT, max_tokens=8, pool=POOL))
            without = await gateway.result(1)
            async with running_drafter(ScriptedDrafter(oracle(truth, depth=4)), port):
                await eventually(lambda: server.links[POOL].status.cause is None)
                await gateway.start(start(2, PROMPT, max_tokens=NUM_TOKENS, pool=POOL))
                received = await gateway.result(2)

        assert without.results[-1].fallback == types_pb2.DRAFT_FALLBACK_UNREACHABLE
        assert received.token_ids == expected
        assert received.num_accepted > 0
    finally:
        await verifier.__aexit__(None, None, None)


@pytest.mark.parametrize(
    "drafter",
    [
        pytest.param(ScriptedDrafter(fingerprint="0" * 64), id="tokenizer"),
        pytest.param(
            ScriptedDrafter(protocol=types_pb2.ProtocolRange(min_version=7, max_version=9)),
            id="protocol",
        ),
    ],
)
async def test_a_drafter_that_does_not_fit_is_refused(drafter: ScriptedDrafter) -> None:
    """B113, B116: another tokenizer or protocol is refused with the reason, not used."""
    async with (
        running_drafter(drafter) as pool,
        running_verifier(make_engine(), {POOL: pool}) as (server, address),
        attached(address) as gateway,
    ):
        await eventually(lambda: "connected" not in server.links[POOL].status.detail)
        await gateway.start(start(1, PROMPT, max_tokens=8, pool=POOL))
        received = await gateway.result(1)

        assert received.results[-1].fallback == types_pb2.DRAFT_FALLBACK_MISMATCH
        assert drafter.num_streams == 0


async def test_exactly_one_message_per_step_and_direction() -> None:
    """However many sequences run, a step costs one message on each internal stream."""
    expected = await _plain_ids()
    drafter = ScriptedDrafter(oracle([*PROMPT, *expected], depth=2))
    engine = make_engine(max_running=12)
    steps = 0
    run_step = engine.step

    def counted_step() -> object:
        nonlocal steps
        output = run_step()
        steps += bool(output.session_events)
        return output

    engine.step = counted_step  # type: ignore[method-assign, assignment]  # counts, then passes on
    async with drafting(drafter, engine) as (_, gateway):
        await gateway.start(*(start(i, PROMPT, max_tokens=24, pool=POOL) for i in range(1, 13)))
        for i in range(1, 13):
            assert (await gateway.result(i)).token_ids == expected[:24]
        with_results = [message for message in gateway.messages if message.results]

        assert len(drafter.requests) <= steps
        assert len(drafter.responses) <= len(drafter.requests)
        assert len(with_results) <= steps + 1
        # A writer that falls behind sends the results of two steps in one message, never in more.
        assert max(len(message.results) for message in with_results) >= 12
        assert max(len(request.commits) for request in drafter.requests) >= 12


async def test_client_disconnect_frees_the_blocks() -> None:
    """B045: a gateway that hangs up leaves no KV and no draft session behind."""
    engine = make_engine(
        lambda tokens: [float(t == (tokens[-1] + 1) % VOCAB) for t in range(VOCAB)]
    )
    drafter = ScriptedDrafter()
    async with (
        running_drafter(drafter) as pool,
        running_verifier(engine, {POOL: pool}) as (server, address),
    ):
        await eventually(lambda: server.links[POOL].status.cause is None)
        async with attached(address) as gateway:
            await gateway.start(start(1, PROMPT, max_tokens=480, pool=POOL))
            await eventually(lambda: len(gateway.received[1].token_ids) > 3)

        await eventually(lambda: engine.blocks.num_in_use == 0 and engine.num_sequences == 0)
        await eventually(lambda: len(drafter.closed) == 1)


async def test_drafting_can_be_switched_while_running() -> None:
    """``SetDrafting`` reaches a running request; the ids do not change."""
    expected = await _plain_ids()
    drafter = ScriptedDrafter(oracle([*PROMPT, *expected], depth=1), delay_seconds=0.001)
    async with drafting(drafter, make_engine()) as (_, gateway):
        await gateway.start(start(1, PROMPT, max_tokens=NUM_TOKENS))
        for name in (POOL, "", POOL):
            policy = types_pb2.DraftingPolicy(pool=name, fallback=types_pb2.DRAFT_FALLBACK_LOAD)
            change = verify_service_pb2.SetDrafting(request_id=1, drafting=policy)
            await gateway.send(verify_service_pb2.AttachRequest(set_draftings=[change]))
            await asyncio.sleep(0.003)

        assert (await gateway.result(1)).token_ids == expected


async def test_drafting_switched_off_and_on_within_a_step_keeps_its_session() -> None:
    """A message is taken in field order: a close of before must not follow the opening."""
    expected = await _plain_ids()
    drafter = ScriptedDrafter(oracle([*PROMPT, *expected], depth=1))
    async with drafting(drafter, make_engine(pace_seconds=0.002)) as (_, gateway):
        await gateway.start(start(1, PROMPT, max_tokens=NUM_TOKENS, pool=POOL))
        for _ in range(5):
            changes = [
                verify_service_pb2.SetDrafting(
                    request_id=1, drafting=types_pb2.DraftingPolicy(pool=name)
                )
                for name in ("", POOL)
            ]
            await gateway.send(verify_service_pb2.AttachRequest(set_draftings=changes))
            await asyncio.sleep(0.003)

        assert (await gateway.result(1)).token_ids == expected
    assert sum(len(message.opens) for message in drafter.requests) > 1
    for message in drafter.requests:
        opened = {each.session_id: len(each.committed_token_ids) for each in message.opens}
        assert not opened.keys() & {each.session_id for each in message.closes}
        for commit in message.commits:
            assert commit.base_len >= opened.get(commit.session_id, 0)
