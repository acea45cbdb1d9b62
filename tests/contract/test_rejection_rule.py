"""
What every verify service guarantees that offers the rule REJECTION.

It runs against a service in this process, or against any other with ``--verify-address``.
"""

from __future__ import annotations

import math

import grpc.aio
import pytest
import pytest_asyncio

from paceline.errors import InvalidRequest
from paceline.status import error_from_rpc
from paceline.v1 import types_pb2, verify_service_pb2
from tests.doubles.running_verifier import attached, start
from tests.doubles.verify_client import model_info, verify_client

pytestmark = pytest.mark.asyncio

PROMPT = [1, 2, 3, 4, 5]
NUM_TOKENS = 16
RULE = types_pb2.VERIFICATION_RULE_REJECTION
SAMPLED = types_pb2.SamplingParams(temperature=1.0, seed=7, verification_rule=RULE)
Drawn = types_pb2.DrawnChildren


@pytest_asyncio.fixture(autouse=True)
async def _offers_the_rule(verify_address: str) -> None:
    info = await model_info(verify_address)
    if RULE not in info.capabilities.verification_rules:
        pytest.skip("the service does not offer rejection sampling")


async def _verified(
    address: str, tree: types_pb2.TokenTree, sampling: types_pb2.SamplingParams
) -> list[int]:
    """Return the ids of a whole answer, the same tree being proposed each time."""
    async with verify_client(address) as client:
        await client.open(start(5, PROMPT, max_tokens=NUM_TOKENS, sampling=sampling))
        while len(client.token_ids) < NUM_TOKENS:
            proposal = verify_service_pb2.VerifyProposal(base_len=client.committed_len, tree=tree)
            await client.call.write(verify_service_pb2.VerifyRequest(proposal=proposal))
            answer = await client.call.read()
            assert isinstance(answer, verify_service_pb2.VerifyResponse)
            assert 1 <= len(answer.verdict.token_ids) <= 1 + len(tree.token_ids)
            client.token_ids.extend(answer.verdict.token_ids)
            client.committed_len += len(answer.verdict.token_ids)
        return client.token_ids


async def test_temperature_0_gives_the_default_rules_ids(verify_address: str) -> None:
    tree = types_pb2.TokenTree(token_ids=[1, 2, 3], parents=[0, 0, 1])
    greedy = types_pb2.SamplingParams(temperature=0.0)
    async with attached(verify_address) as gateway:
        await gateway.start(start(1, PROMPT, max_tokens=NUM_TOKENS, sampling=greedy))
        plain = (await gateway.result(1)).token_ids

    tried = await _verified(
        verify_address, tree, types_pb2.SamplingParams(temperature=0.0, verification_rule=RULE)
    )

    assert tried == plain


async def test_same_seed_and_drafts_give_the_same_ids(verify_address: str) -> None:
    """B026: numbers are keyed by seed, position and trial; another seed gives other ids."""
    tree = types_pb2.TokenTree(
        token_ids=[1, 2, 3],
        parents=[0, 0, 1],
        drawn_children=[Drawn(parent=0, token_ids=[1, 2, 9], probs=[0.5, 0.25, 0.25])],
    )
    other = types_pb2.SamplingParams(temperature=1.0, seed=8, verification_rule=RULE)

    first = await _verified(verify_address, tree, SAMPLED)

    assert await _verified(verify_address, tree, SAMPLED) == first
    assert await _verified(verify_address, tree, other) != first


async def test_a_resume_goes_on_within_the_vocabulary_and_limits(verify_address: str) -> None:
    """The ids after a resume are fresh draws; those before it count towards the limits."""
    info = await model_info(verify_address)
    async with attached(verify_address) as gateway:
        await gateway.start(start(1, PROMPT, max_tokens=NUM_TOKENS, sampling=SAMPLED))
        whole = (await gateway.result(1)).token_ids
        resumed = start(2, PROMPT, max_tokens=NUM_TOKENS, sampling=SAMPLED)
        resumed.emitted_token_ids.extend(whole[:6])
        await gateway.start(resumed)
        rest = (await gateway.result(2)).token_ids

    assert len(rest) == NUM_TOKENS - 6
    assert all(token_id < info.vocab_size for token_id in rest)


@pytest.mark.parametrize(
    "bad",
    [
        Drawn(parent=7, token_ids=[1], probs=[1.0]),
        Drawn(token_ids=[1, 2], probs=[1.0]),
        Drawn(token_ids=[1, 1], probs=[0.5, 0.5]),
        Drawn(token_ids=[1, 2], probs=[math.nan, 1.0]),
        Drawn(token_ids=[1, 2], probs=[1.5, -0.5]),
        Drawn(token_ids=[1, 2], probs=[0.5, 0.1]),
        Drawn(token_ids=[2**31], probs=[1.0]),
    ],
)
async def test_clients_distribution_that_is_none_is_refused_by_name(
    verify_address: str, bad: types_pb2.DrawnChildren
) -> None:
    """B018, B074: a client's own drafter is told; it would wonder about its acceptance else."""
    tree = types_pb2.TokenTree(token_ids=[1, 2], parents=[0, 0], drawn_children=[bad])
    async with verify_client(verify_address) as client:
        await client.open(start(5, PROMPT, max_tokens=NUM_TOKENS, sampling=SAMPLED))
        proposal = verify_service_pb2.VerifyProposal(base_len=client.committed_len, tree=tree)
        await client.call.write(verify_service_pb2.VerifyRequest(proposal=proposal))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.call.read()

    error = error_from_rpc(caught.value)
    assert isinstance(error, InvalidRequest)
    assert error.field == "tree.drawn_children"
