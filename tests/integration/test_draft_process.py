"""The draft service as a process: how it starts, drains, and says what is wrong."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from paceline.channels import open_link
from paceline.v1.draft_service_pb2 import SessionCommit, SessionOpen
from tests.doubles.played_verifier import PlayedVerifier, played_verifier
from tests.doubles.service_process import ServiceProcess, service_process

PROMPT = [1, 2, 3, 4, 5, 6] * 10


async def started(service: ServiceProcess) -> str:
    """Wait until the service is ready and return its address."""
    listening = await service.event("listening")
    await service.event("ready")
    return str(listening["address"])


async def readiness(address: str) -> health_pb2.HealthCheckResponse.ServingStatus.ValueType:
    """Return what the service says about its readiness."""
    async with open_link(address) as channel:
        response = await health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(service="readiness"), timeout=10
        )
    return response.status


async def drafts_for(verifier: PlayedVerifier, session_id: int) -> int:
    """Open a session and return how many nodes its first tree has."""
    await verifier.send(opens=[SessionOpen(session_id=session_id, committed_token_ids=PROMPT)])
    return (await verifier.proposal(session_id, len(PROMPT))).num_nodes


def run_to_exit(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the service with arguments that end it at once."""
    return subprocess.run(  # noqa: S603  # our own interpreter and module
        [sys.executable, "-m", "draft_service", *arguments],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.asyncio
async def test_it_says_where_it_listens_and_that_it_is_ready() -> None:
    """B103: it is ready only after it has drafted once for itself."""
    async with service_process("draft_service") as service:
        address = await started(service)

        assert await readiness(address) == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.asyncio
async def test_sigterm_lets_the_open_stream_finish() -> None:
    async with service_process("draft_service") as service:
        address = await started(service)
        async with played_verifier(address) as verifier:
            await drafts_for(verifier, 1)
            service.signal(signal.SIGTERM)
            news = await verifier.receive()

            await verifier.send(
                commits=[SessionCommit(session_id=1, base_len=len(PROMPT), token_ids=PROMPT[:2])]
            )
            tree = await verifier.proposal(1, len(PROMPT) + 2)
            await verifier.end()

        assert await service.exit_code() == 0
    assert news.draining
    assert tree.num_nodes > 0


@pytest.mark.asyncio
async def test_sigterm_ends_streams_that_outlast_the_drain_time() -> None:
    async with (
        service_process("draft_service", "--drain-seconds", "0.3") as service,
        played_verifier(await started(service)) as verifier,
    ):
        await drafts_for(verifier, 1)

        service.signal(signal.SIGTERM)

        assert await service.exit_code() == 0
        assert (await verifier.receive()).draining
        with pytest.raises((ConnectionError, grpc.aio.AioRpcError)):
            await verifier.receive()


@pytest.mark.asyncio
async def test_it_is_not_ready_while_load_balancers_take_notice() -> None:
    waiting = ("--propagation-delay-seconds", "5", "--drain-seconds", "0")
    async with service_process("draft_service", *waiting) as service:
        address = await started(service)

        service.signal(signal.SIGTERM)
        await service.event("draining")
        await asyncio.sleep(0.1)

        assert await readiness(address) == health_pb2.HealthCheckResponse.NOT_SERVING
        async with played_verifier(address) as verifier:
            assert await drafts_for(verifier, 1) > 0


@pytest.mark.asyncio
async def test_a_restarted_service_reports_old_sessions_as_unknown() -> None:
    """B073: a killed draft service costs a re-open and nothing else."""
    async with service_process("draft_service") as service:
        address = await started(service)
        async with played_verifier(address) as verifier:
            await drafts_for(verifier, 1)
            service.signal(signal.SIGKILL)
            with pytest.raises((ConnectionError, grpc.aio.AioRpcError)):
                await verifier.receive()

    async with service_process("draft_service", "--listen", address) as service:
        await started(service)
        async with played_verifier(address) as verifier:
            await verifier.send(
                commits=[SessionCommit(session_id=1, base_len=len(PROMPT), token_ids=[1])]
            )
            response = await verifier.receive()
            num_nodes = await drafts_for(verifier, 1)

    assert list(response.unknown_session_ids) == [1]
    assert num_nodes > 0


@pytest.mark.asyncio
async def test_a_port_in_use_is_one_clear_line() -> None:
    async with service_process("draft_service") as service:
        address = await started(service)

        second = await asyncio.to_thread(run_to_exit, "--listen", address)

    assert second.returncode == 2
    assert second.stderr.count("\n") == 1
    assert address in second.stderr
    assert "--listen" in second.stderr


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--no-such-flag"], "--no-such-flag"),
        (["--drafter", "crystal-ball"], "known: composite, ngram"),
    ],
    ids=["flag", "drafter"],
)
def test_what_cannot_be_is_one_line_that_names_it(arguments: list[str], named: str) -> None:
    result = run_to_exit(*arguments)

    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert named in result.stderr


def test_the_service_imports_no_tensor_library() -> None:
    program = (
        "import sys, draft_service.__main__;"
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'onnxruntime')))"
    )

    result = subprocess.run(  # noqa: S603  # our own interpreter
        [sys.executable, "-c", program], timeout=60, check=False
    )

    assert result.returncode == 0
