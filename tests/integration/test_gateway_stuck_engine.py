"""An engine that hangs while its process still answers: its requests go on elsewhere."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from paceline.v1 import generation_service_pb2 as messages
from tests.doubles.model_folders import write_model_folder
from tests.doubles.running_gateway import running_gateway
from tests.doubles.running_verifier import VOCAB, make_engine, running_verifier
from verify_service.targets.table import LogitsFunction, markov_logits

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(60)]

NUM_TOKENS = 60


class HangingModel:
    """A model that, from some length on, does not answer until released; the first one only."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.hangs = threading.Event()
        self._logits_of = markov_logits(VOCAB, seed=1, order=3)
        self._victims: list[LogitsFunction] = []

    def logits_of(self) -> LogitsFunction:
        """Return the model for one verifier."""

        def answer(tokens: tuple[int, ...]) -> Sequence[float]:
            if len(tokens) > NUM_TOKENS // 2 and self._is_victim(answer):
                self.hangs.set()
                self.released.wait(30)
            return self._logits_of(tokens)

        return answer

    def _is_victim(self, answer: LogitsFunction) -> bool:
        if not self._victims:
            self._victims.append(answer)
        return self._victims[0] is answer


def asking() -> messages.GenerateRequest:
    """Return a request that passes the length at which the model hangs."""
    request = messages.GenerateRequest(token_ids=messages.TokenIds(ids=[3, 4, 5]))
    request.stopping.max_tokens = NUM_TOKENS
    request.stopping.ignore_eos = True
    request.output.return_token_ids = True
    request.sampling.seed = 7
    return request


async def test_requests_of_a_stuck_engine_go_on_elsewhere_and_it_is_used_again_later(
    tmp_path: Path,
) -> None:
    model = HangingModel()
    with capture_logs() as logs:
        async with AsyncExitStack() as stack:
            addresses = []
            for _ in range(2):
                running = running_verifier(make_engine(model.logits_of()), step_timeout_seconds=0.5)
                addresses.append((await stack.enter_async_context(running))[1])
            gateway = await stack.enter_async_context(
                running_gateway(
                    write_model_folder(tmp_path), *addresses, verifier_refresh_seconds=0.1
                )
            )
            stack.callback(model.released.set)
            moved = await gateway.stub.Generate(asking(), timeout=30)
            assert model.hangs.is_set()
            ready_beside = await gateway.stub.GetModel(messages.GetModelRequest(), timeout=5)
            meanwhile = [await gateway.stub.Generate(asking(), timeout=5) for _ in range(3)]

            model.released.set()
            async with asyncio.timeout(20):
                while True:
                    found = await gateway.stub.GetModel(messages.GetModelRequest(), timeout=5)
                    if found.model.num_ready_verifiers == 2:
                        break
                    await asyncio.sleep(0.05)
            after = await gateway.stub.Generate(asking(), timeout=10)

    expected = list(after.outputs[0].token_ids)
    assert len(expected) == NUM_TOKENS
    assert list(moved.outputs[0].token_ids) == expected
    assert [list(each.outputs[0].token_ids) for each in meanwhile] == [expected] * 3
    finished = [line for line in logs if line["event"] == "request_finished"]
    assert next(line["failovers"] for line in finished if line["rpc"] == "Generate") == 1
    assert ready_beside.model.num_ready_verifiers == 1
    assert [line["event"] for line in logs if line["event"].startswith("engine_")] == [
        "engine_stuck",
        "engine_goes_on",
    ]
