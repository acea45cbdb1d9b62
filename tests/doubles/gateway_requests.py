"""What tests ask of a gateway in front of a scripted verifier, and how they wait for its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from paceline.v1 import generation_service_pb2 as messages
from tests.doubles.running_gateway import RunningGateway

PROMPT: Final = [10, 20, 30]


def asking(
    max_tokens: int = 12, *, stop: tuple[str, ...] = (), include_stop: bool = False
) -> messages.GenerateRequest:
    """Return a request with a prompt in ids that wants ids back."""
    return messages.GenerateRequest(
        token_ids=messages.TokenIds(ids=PROMPT),
        stopping=messages.StoppingOptions(
            max_tokens=max_tokens, stop=stop, include_stop=include_stop
        ),
        output=messages.OutputOptions(return_token_ids=True),
    )


async def eventually(condition: Callable[[], object]) -> None:
    """Wait until a condition holds that announces itself to nobody."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - nothing to wait on
            await asyncio.sleep(0.01)


async def wait_for_empty(running: RunningGateway) -> None:
    """Wait until the gateway holds nothing for any request."""
    generator = running.gateway.generator
    links = generator.verifiers.links
    await eventually(
        lambda: not generator.admission.num_running and not any(x.num_sequences for x in links)
    )
