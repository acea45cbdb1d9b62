"""
What every verify service guarantees to clients with their own drafter (``Verify``).

It runs against a service in this process, or against any other with ``--verify-address``.
"""

from __future__ import annotations

import grpc
import grpc.aio
import pytest

from paceline.errors import InvalidRequest, PacelineError
from paceline.status import error_from_rpc
from paceline.v1 import types_pb2, verify_service_pb2
from tests.doubles.running_verifier import attached, eventually, start
from tests.doubles.verify_client import VerifyClient, model_info, verify_client

pytestmark = pytest.mark.asyncio

PROMPT = [1, 2, 3, 4, 5]
NUM_TOKENS = 24
SAMPLED = types_pb2.SamplingParams(temperature=1.0, seed=7)
GREEDY = types_pb2.SamplingParams(temperature=0.0)


async def plain_ids(address: str, sampling: types_pb2.SamplingParams = GREEDY) -> list[int]:
    """Return what the service says without any drafts."""
    async with attached(address) as gateway:
        await gateway.start(start(1, PROMPT, max_tokens=NUM_TOKENS, sampling=sampling))
        return (await gateway.result(1)).token_ids


def opening(**fields: object) -> verify_service_pb2.Start:
    """Return the message that opens a session."""
    return start(5, PROMPT, max_tokens=NUM_TOKENS, **fields)  # type: ignore[arg-type]  # field names


async def refused(client: VerifyClient, request: verify_service_pb2.VerifyRequest) -> PacelineError:
    """Send a message that ends the session and return why it did."""
    await client.call.write(request)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.call.read()
    return error_from_rpc(caught.value)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("kind", ["none", "right", "wrong", "mixed"])
async def test_ids_are_those_of_plain_decoding_whatever_is_proposed(
    verify_address: str, sampling: types_pb2.SamplingParams, kind: str
) -> None:
    truth = await plain_ids(verify_address, sampling)
    async with verify_client(verify_address) as client:
        await client.open(opening(sampling=sampling))
        while len(client.token_ids) < NUM_TOKENS:
            following = truth[len(client.token_ids) :][:3]
            wrong = [(token_id + 1) % (max(PROMPT) + 1) for token_id in following]
            mixed = following[:1] + wrong[1:]
            chain = {"none": [], "right": following, "wrong": wrong, "mixed": mixed}[kind]
            verdict = await client.propose(chain)

        assert client.token_ids == truth
        assert verdict.finish_reason == types_pb2.FINISH_REASON_LENGTH


async def test_each_proposal_gets_one_verdict_in_step(verify_address: str) -> None:
    truth = await plain_ids(verify_address)
    async with verify_client(verify_address) as client:
        opened_len = await client.open(opening())
        empty = await client.propose()
        right = await client.propose(truth[1:3])
        wrong = await client.propose([(truth[4] + 1) % 6])

    assert opened_len == len(PROMPT)
    assert (list(empty.token_ids), empty.num_drafted) == (truth[:1], 0)
    assert (list(right.token_ids), right.num_drafted, right.num_accepted) == (truth[1:4], 2, 2)
    assert (list(wrong.token_ids), wrong.num_drafted, wrong.num_accepted) == (truth[4:5], 1, 0)
    assert {each.request_id for each in (empty, right, wrong)} == {5}
    assert not any(each.is_prefill for each in (empty, right, wrong))


async def test_right_branch_is_found_among_siblings(verify_address: str) -> None:
    """B049, B050: the accepted path may be the last sibling at each level."""
    info = await model_info(verify_address)
    if not info.capabilities.trees:
        pytest.skip("the service verifies chains only")
    truth = await plain_ids(verify_address)
    first, second = truth[:2]
    tokens = [(first + 1) % 6 + 6, first, (second + 1) % 6 + 6, second]
    async with verify_client(verify_address) as client:
        await client.open(opening())
        verdict = await client.propose(tokens, [0, 0, 2, 2])
        following = await client.propose(truth[3:5])

    assert list(verdict.token_ids) == truth[:3]
    assert (verdict.num_drafted, verdict.num_accepted) == (4, 2)
    assert list(following.token_ids) == truth[3:6]


async def test_tree_for_an_older_length_is_rerooted(verify_address: str) -> None:
    truth = await plain_ids(verify_address)
    async with verify_client(verify_address) as client:
        base_len = await client.open(opening())
        await client.propose()
        late = await client.propose(truth[:3], base_len=base_len)
        stale = await client.propose([(truth[0] + 1) % 6, 1], base_len=base_len)

    assert list(late.token_ids) == truth[1:4]
    assert (late.num_drafted, late.num_accepted) == (2, 2)
    assert list(stale.token_ids) == truth[4:5]
    assert stale.num_drafted == 0


async def test_session_resumes_after_emitted_tokens(verify_address: str) -> None:
    truth = await plain_ids(verify_address, SAMPLED)
    async with verify_client(verify_address) as client:
        opened_len = await client.open(opening(sampling=SAMPLED, emitted_token_ids=truth[:10]))
        await client.propose(truth[10:12])

    assert opened_len == len(PROMPT) + 10
    assert client.token_ids == truth[10:13]


async def test_first_message_must_open_a_session(verify_address: str) -> None:
    proposal = verify_service_pb2.VerifyProposal(base_len=0)
    async with verify_client(verify_address) as client:
        error = await refused(client, verify_service_pb2.VerifyRequest(proposal=proposal))

    assert isinstance(error, InvalidRequest)
    assert error.field == "operation"


async def test_session_is_opened_once(verify_address: str) -> None:
    async with verify_client(verify_address) as client:
        await client.open(opening())
        error = await refused(client, verify_service_pb2.VerifyRequest(open=opening()))

    assert isinstance(error, InvalidRequest)
    assert error.field == "operation"


async def test_bad_field_of_the_opening_is_named(verify_address: str) -> None:
    bad = opening(sampling=types_pb2.SamplingParams(top_p=1.5))
    async with verify_client(verify_address) as client:
        error = await refused(client, verify_service_pb2.VerifyRequest(open=bad))

    assert isinstance(error, InvalidRequest)
    assert error.field == "sampling.top_p"


@pytest.mark.parametrize(
    ("token_ids", "parents"),
    [
        pytest.param([1, 2], [0, 2], id="own parent"),
        pytest.param([1, 2], [2, 0], id="later parent"),
        pytest.param([1, 1], [0, 0], id="equal siblings"),
        pytest.param([1, 2], [0], id="unequal lists"),
        pytest.param([2**32 - 1], [0], id="token out of range"),
        pytest.param([1] * 10_000, range(10_000), id="10 000 nodes"),
    ],
)
async def test_what_is_no_tree_is_refused(
    verify_address: str, token_ids: list[int], parents: list[int]
) -> None:
    """B074: the session ends with the cause, nobody else notices."""
    tree = types_pb2.TokenTree(token_ids=token_ids, parents=parents)
    proposal = verify_service_pb2.VerifyProposal(base_len=len(PROMPT), tree=tree)
    async with verify_client(verify_address) as client:
        await client.open(opening())
        error = await refused(client, verify_service_pb2.VerifyRequest(proposal=proposal))

    assert isinstance(error, InvalidRequest)
    assert error.field == "tree"


async def test_length_that_was_never_reached_is_refused(verify_address: str) -> None:
    proposal = verify_service_pb2.VerifyProposal(base_len=len(PROMPT) + 1)
    async with verify_client(verify_address) as client:
        await client.open(opening())
        error = await refused(client, verify_service_pb2.VerifyRequest(proposal=proposal))

    assert isinstance(error, InvalidRequest)
    assert error.field == "base_len"


async def test_session_that_ends_frees_its_blocks(verify_address: str) -> None:
    """B045: hung up in the middle, or half closed."""
    async with verify_client(verify_address) as client:
        await client.open(opening())
        await client.propose()
    async with verify_client(verify_address) as client:
        await client.open(opening())
        await client.call.done_writing()
        await client.call.read()

    async with attached(verify_address) as observer:
        await eventually(
            lambda: bool(observer.messages) and observer.messages[-1].load.kv_utilization == 0
        )


async def test_sessions_and_streams_share_the_engine(verify_address: str) -> None:
    """B063: drafted in lockstep, plain and sampled in one batch, each as if alone."""
    greedy, sampled = await plain_ids(verify_address), await plain_ids(verify_address, SAMPLED)
    async with attached(verify_address) as gateway, verify_client(verify_address) as client:
        await client.open(opening(sampling=SAMPLED))
        await gateway.start(start(1, PROMPT, max_tokens=NUM_TOKENS))
        while len(client.token_ids) < NUM_TOKENS:
            await client.propose(sampled[len(client.token_ids) + 1 :][:2])
        received = await gateway.result(1)

    assert client.token_ids == sampled
    assert received.token_ids == greedy
