"""
What a verify service refuses, and how: by name, and without harm to the other requests.

It runs against a service in this process, or against any other with ``--verify-address``.
"""

from __future__ import annotations

import math

import grpc
import pytest

from paceline.v1 import types_pb2, verify_service_pb2
from tests.doubles.running_verifier import attached, eventually, served, start
from tests.doubles.verify_client import model_info

pytestmark = pytest.mark.asyncio

PROMPT = [1, 2, 3, 4, 5]
INVALID_ARGUMENT = grpc.StatusCode.INVALID_ARGUMENT.value[0]

Sampling = types_pb2.SamplingParams
Limits = types_pb2.TokenLimits
Start = verify_service_pb2.Start


async def refusal(address: str, bad: Start) -> verify_service_pb2.Failure:
    """Send a bad request beside a good one, which has to be served."""
    good, refused = await served(address, start(1, PROMPT, max_tokens=3), bad)
    assert good.failure is None
    assert len(good.token_ids) == 3
    assert refused.failure is not None
    assert refused.token_ids == []
    assert refused.failure.message
    return refused.failure


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 10.5),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_p", 0.0),
        ("top_p", -0.5),
        ("top_p", 1.1),
        ("top_p", math.nan),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", 1e-40),
        ("repetition_penalty", 10.5),
        ("presence_penalty", -2.1),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("frequency_penalty", 2.1),
        ("frequency_penalty", -math.inf),
        ("logit_bias", {1: 100.5}),
        ("logit_bias", {1: -100.5}),
        ("logit_bias", {1: math.nan}),
        ("logit_bias", {2**32 - 1: 1.0}),
        ("logit_bias", dict.fromkeys(range(1025), 1.0)),
        ("verification_rule", 99),
    ],
)
async def test_sampling_out_of_range_is_refused_by_name(
    verify_address: str, name: str, value: object
) -> None:
    """B022, B074, B094: never ignored, and the other requests of the stream go on."""
    bad = start(2, PROMPT, sampling=Sampling(**{name: value}))  # type: ignore[arg-type]  # field names

    failure = await refusal(verify_address, bad)

    assert failure.code == INVALID_ARGUMENT
    assert failure.field == f"sampling.{name}"


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        pytest.param(Start(request_id=2), "prompt_token_ids", id="no prompt"),
        pytest.param(start(2, [2**32 - 1]), "prompt_token_ids", id="prompt id"),
        pytest.param(
            start(2, PROMPT, emitted_token_ids=[2**32 - 1]), "emitted_token_ids", id="emitted id"
        ),
        pytest.param(
            start(2, PROMPT, limits=Limits(stop_token_ids=[2**32 - 1])),
            "limits.stop_token_ids",
            id="stop id",
        ),
        pytest.param(
            start(2, PROMPT, limits=Limits(stop_token_ids=range(1000))),
            "limits.stop_token_ids",
            id="too many stop ids",
        ),
        pytest.param(start(2, PROMPT, max_tokens=0), "limits.max_tokens", id="no tokens"),
        pytest.param(start(2, PROMPT, num_logprobs=1000), "num_logprobs", id="logprobs"),
        pytest.param(start(2, PROMPT, priority=77), "priority", id="unknown priority"),
    ],
)
async def test_request_that_cannot_be_is_refused_by_name(
    verify_address: str, bad: Start, field: str
) -> None:
    failure = await refusal(verify_address, bad)

    assert failure.code == INVALID_ARGUMENT
    assert failure.field == field


async def test_prompt_that_leaves_no_room_is_refused(verify_address: str) -> None:
    info = await model_info(verify_address)

    whole = await refusal(verify_address, start(2, [1] * info.context_length))
    resumed = await refusal(
        verify_address, start(2, PROMPT, emitted_token_ids=[1] * info.context_length)
    )

    assert (whole.field, whole.reason) == ("prompt_token_ids", "PROMPT_TOO_LONG")
    assert resumed.code == INVALID_ARGUMENT


async def test_rule_that_is_not_offered_is_refused(verify_address: str) -> None:
    info = await model_info(verify_address)
    rule = types_pb2.VERIFICATION_RULE_REJECTION
    if rule in info.capabilities.verification_rules:
        pytest.skip("the service offers rejection sampling")

    failure = await refusal(
        verify_address, start(2, PROMPT, sampling=Sampling(verification_rule=rule))
    )

    assert failure.code == INVALID_ARGUMENT
    assert failure.field == "sampling.verification_rule"


async def test_request_id_in_use_is_refused_and_the_first_goes_on(verify_address: str) -> None:
    (plain,) = await served(verify_address, start(1, PROMPT, max_tokens=9))
    async with attached(verify_address) as gateway:
        await gateway.start(start(1, PROMPT, max_tokens=9), start(1, PROMPT, max_tokens=9))
        await eventually(lambda: bool(gateway.received[1].finish_reason))
        received = gateway.received[1]

    assert received.failure is not None
    assert (received.failure.code, received.failure.field) == (INVALID_ARGUMENT, "request_id")
    assert received.token_ids == plain.token_ids
