"""A verifier that stalls and goes on: the gateway gives it up, and takes it again."""

from __future__ import annotations

import asyncio
import signal

import pytest

import paceline
from paceline.errors import InvalidRequest, Unavailable
from tests.doubles.service_process import service_process
from tests.doubles.up_command import TINY_MODEL

MODEL = ("--model", str(TINY_MODEL))


@pytest.mark.asyncio
@pytest.mark.timeout(240)
async def test_a_stalled_verifier_is_given_up_and_used_again_when_it_goes_on() -> None:
    """The link must outlive a call that its own watchdog cancelled."""
    async with service_process("verify_service", *MODEL) as verifier:
        address = (await verifier.event("ready"))["address"]
        arguments = (*MODEL, "--verifiers", address, "--failover-wait-seconds", "1")
        async with service_process("gateway", *arguments) as gateway:
            listening = (await gateway.event("ready"))["address"]
            async with paceline.AsyncClient(listening, max_resumes=0) as client:
                before = await client.generate("import os", max_tokens=8, temperature=0, timeout=60)
                verifier.signal(signal.SIGSTOP)
                with pytest.raises(Unavailable):
                    await client.generate("import os", max_tokens=400, temperature=0, timeout=90)

                verifier.signal(signal.SIGCONT)
                await asyncio.wait_for(gateway.event("verifier_connected"), 30)
                await asyncio.wait_for(gateway.event("ready"), 30)
                after = await client.generate("import os", max_tokens=8, temperature=0, timeout=60)

    assert after.token_ids == before.token_ids


@pytest.mark.asyncio
@pytest.mark.parametrize("prompt", ["\ud800", 5])
async def test_a_prompt_that_is_no_text_is_refused_before_it_is_sent(prompt: object) -> None:
    """Undecoded bytes of a terminal arrive as lone surrogates."""
    async with paceline.AsyncClient("127.0.0.1:1") as client:
        with pytest.raises(InvalidRequest) as caught:
            await client.generate(prompt, max_tokens=1)  # type: ignore[arg-type]  # that is the point

    assert caught.value.field == "prompt"


@pytest.mark.asyncio
@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
async def test_a_timeout_that_is_no_time_is_refused(seconds: float) -> None:
    """A deadline that passed before the call began would only mislead."""
    async with paceline.AsyncClient("127.0.0.1:1") as client:
        with pytest.raises(InvalidRequest) as caught:
            await client.generate("x", timeout=seconds)

    assert caught.value.field == "timeout"
