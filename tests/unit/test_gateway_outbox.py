"""What waits to be sent to a verifier."""

from __future__ import annotations

import asyncio

import pytest

from gateway.generation import (
    DraftFallback,
    DraftingChoice,
    DraftingMode,
    FinishReason,
    PriorityClass,
    Sampling,
    SequenceRequest,
    StatisticsLevel,
    TokenLimits,
    VerificationRule,
)
from gateway.outbox import MAX_TOKENS_PER_MESSAGE, Outbox
from paceline.v1 import generation_service_pb2, types_pb2


def request(num_tokens: int) -> SequenceRequest:
    """Return a request with a prompt of some length."""
    return SequenceRequest((1,) * num_tokens, (), Sampling(), TokenLimits(4))


@pytest.mark.asyncio
async def test_all_that_waits_goes_out_in_one_message() -> None:
    outbox = Outbox()
    outbox.start(1, request(3), now=0.0)
    outbox.start(2, request(3), now=0.0)
    outbox.set_drafting(1, DraftingChoice(fallback=DraftFallback.LOAD))
    outbox.cancel(2)

    batch = await anext(aiter(outbox.batches()))

    assert [start.request_id for start in batch.starts] == [1, 2]
    assert batch.set_draftings[0].drafting.fallback == types_pb2.DRAFT_FALLBACK_LOAD
    assert [cancel.request_id for cancel in batch.cancels] == [2]


@pytest.mark.asyncio
async def test_a_message_is_bounded_and_no_cancel_overtakes_its_start() -> None:
    outbox = Outbox()
    for number in range(4):
        outbox.start(number, request(MAX_TOKENS_PER_MESSAGE // 2), now=0.0)
    outbox.cancel(3)
    batches = aiter(outbox.batches())

    first, second = await anext(batches), await anext(batches)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(batches), 0.01)

    assert [start.request_id for start in first.starts] == [0, 1, 2]
    assert not first.cancels
    assert [start.request_id for start in second.starts] == [3]
    assert [cancel.request_id for cancel in second.cancels] == [3]


@pytest.mark.parametrize(
    ("kind", "wire", "prefix"),
    [
        (FinishReason, types_pb2.FinishReason, "FINISH_REASON_"),
        (DraftFallback, types_pb2.DraftFallback, "DRAFT_FALLBACK_"),
        (PriorityClass, types_pb2.PriorityClass, "PRIORITY_CLASS_"),
        (VerificationRule, types_pb2.VerificationRule, "VERIFICATION_RULE_"),
        (DraftingMode, generation_service_pb2.DraftingMode, "DRAFTING_MODE_"),
        (StatisticsLevel, generation_service_pb2.StatisticsLevel, "STATISTICS_LEVEL_"),
    ],
)
def test_enums_have_the_numbers_of_the_wire(kind: type, wire: object, prefix: str) -> None:
    ours = {member.name: member.value for member in kind}  # type: ignore[attr-defined]
    theirs = {
        name.removeprefix(prefix): number
        for name, number in wire.items()  # type: ignore[attr-defined]
    }

    assert ours == {name: theirs[name] for name in ours}
    assert set(theirs) - set(ours) <= {"UNSPECIFIED"}
