"""One trace shows a request on its way through gateway, verifier and drafter."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest
from structlog.testing import capture_logs

from draft_service.registry import create_drafter
from draft_service.server import running_server
from draft_service.settings import DraftSettings
from paceline import otlp_tracing
from paceline.v1 import generation_service_pb2 as messages
from tests.doubles.model_folders import write_model_folder
from tests.doubles.running_gateway import RunningGateway, running_gateway
from tests.doubles.running_verifier import POOL, make_engine, running_drafter, running_verifier
from tests.doubles.scripted_drafter import ScriptedDrafter
from tests.doubles.trace_collector import (
    SeenSpan,
    TraceCollector,
    running_collector,
    wait_for_exports,
)
from verify_service.server import VerifyServer, load
from verify_service.settings import VerifySettings

pytestmark = pytest.mark.asyncio

TINY = Path(__file__).resolve().parents[1] / "models" / "tiny"
STATE = "vendor=opaque,tenant@system=1"
CALLER = f"00-{'a1' * 16}-{'b2' * 8}-01"
GENERATE = "paceline.v1.GenerationService/Generate"
ATTACH = "paceline.v1.VerifyService/Attach"
DRAFT = "paceline.v1.DraftService/Draft"


@pytest.fixture(autouse=True)
def _no_exports_left() -> Iterator[None]:
    yield
    wait_for_exports()


@asynccontextmanager
async def traced_line(endpoint: str, ratio: float = 1.0) -> AsyncIterator[RunningGateway]:
    """Run the three services on the tiny model, all sending their spans to one place."""
    draft = DraftSettings(listen="127.0.0.1:0", otlp_endpoint=endpoint, trace_ratio=ratio)
    async with running_server(draft, create_drafter(draft)) as drafter:
        settings = VerifySettings(
            model=TINY,
            num_threads=1,
            draft_budget="fixed",
            max_draft_wait_ms=200.0,
            pools={"ngram": drafter.address},
            otlp_endpoint=endpoint,
            trace_ratio=ratio,
        )
        verifier = VerifyServer(await asyncio.to_thread(load, settings), settings)
        address = f"127.0.0.1:{await verifier.start()}"
        try:
            async with running_gateway(
                TINY, address, default_pool="ngram", otlp_endpoint=endpoint, trace_ratio=ratio
            ) as gateway:
                yield gateway
        finally:
            await verifier.aclose()


def asking(max_tokens: int = 24) -> messages.GenerateRequest:
    request = messages.GenerateRequest(text="one two three one two three one two three one two")
    request.stopping.max_tokens = max_tokens
    request.stopping.ignore_eos = True
    request.drafting.mode = messages.DRAFTING_MODE_ON
    return request


async def generated(
    gateway: RunningGateway,
    request: messages.GenerateRequest,
    *metadata: tuple[str, str],
) -> tuple[messages.GenerateResponse, dict[str, str]]:
    """Return the answer and the trailers."""
    call = gateway.stub.Generate(request, metadata=metadata, timeout=20)
    answer = await call
    return answer, {str(key): str(value) for key, value in await call.trailing_metadata()}


def only(spans: list[SeenSpan]) -> SeenSpan:
    assert len(spans) == 1, [span.name for span in spans]
    return spans[0]


async def test_one_trace_holds_the_work_of_all_three_services() -> None:
    """B097."""
    with running_collector() as collector:
        async with traced_line(collector.endpoint) as gateway:
            answer, trailers = await generated(
                gateway, asking(), ("traceparent", CALLER), ("tracestate", STATE)
            )

        root = only(collector.spans("paceline-gateway", GENERATE))
        stay = only(collector.spans("paceline-gateway", ATTACH))
        sequence = only(collector.spans("paceline-verifier", ATTACH))
        session = only(collector.spans("paceline-draft", DRAFT))
        phases = {
            name: only(collector.spans("paceline-verifier", name))
            for name in ("queue", "prefill", "decode")
        }

        assert {span.trace_id for span in collector.spans()} == {"a1" * 16}
        assert {span.state for span in collector.spans()} == {STATE}
        assert root.parent_id == "b2" * 8
        assert stay.parent_id == root.span_id
        assert sequence.parent_id == stay.span_id
        assert session.parent_id == sequence.span_id
        assert {span.parent_id for span in phases.values()} == {sequence.span_id}
        assert trailers["traceparent"] == f"00-{'a1' * 16}-{root.span_id}-01"
        assert answer.usage.completion_tokens == 24


@pytest.mark.parametrize(
    ("traceparent", "state", "arriving"),
    [(CALLER, STATE, (CALLER, STATE)), (CALLER, "No State", (CALLER, "")), ("no", STATE, ("", ""))],
)
async def test_services_that_trace_nothing_hand_the_context_on(
    tmp_path: Path, traceparent: str, state: str, arriving: tuple[str, str]
) -> None:
    drafter = ScriptedDrafter()
    async with (
        running_drafter(drafter) as draft_address,
        running_verifier(make_engine(), {POOL: draft_address}) as (_, address),
        running_gateway(write_model_folder(tmp_path), address) as gateway,
    ):
        request = messages.GenerateRequest(token_ids=messages.TokenIds(ids=[3, 4, 5]))
        request.stopping.max_tokens = 8
        request.drafting.pool = POOL
        await generated(gateway, request, ("traceparent", traceparent), ("tracestate", state))

    opened = next(message.opens[0] for message in drafter.requests if message.opens)
    assert (opened.traceparent, opened.tracestate) == arriving


async def test_steps_tell_what_was_drafted_and_accepted() -> None:
    """B097: with their nodes and what was accepted of them."""
    with running_collector() as collector:
        async with traced_line(collector.endpoint) as gateway:
            answer, _ = await generated(gateway, asking())

        decode = only(collector.spans(name="decode"))
        queue, prefill = only(collector.spans(name="queue")), only(collector.spans(name="prefill"))
        session = only(collector.spans(name=DRAFT))
        steps = [event.attributes for event in decode.events if event.name == "step"]
        speculation = answer.speculation

        assert len(steps) == speculation.num_spec_steps > 0
        assert sum(int(step["drafted"]) for step in steps) == speculation.num_draft_tokens > 0
        accepted = sum(int(step["accepted"]) for step in steps)
        assert accepted == speculation.num_accepted_draft_tokens > 0
        assert sum(int(step["tokens"]) for step in steps) == answer.usage.completion_tokens - 1
        assert queue.start_ns <= queue.end_ns == prefill.start_ns <= prefill.end_ns
        assert prefill.end_ns == decode.start_ns <= decode.end_ns
        proposals = [event for event in session.events if event.name == "proposal"]
        assert len(proposals) == session.attributes["paceline.proposals"] != 0


async def test_a_request_that_moves_to_another_verifier_stays_in_its_trace(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path)
    request = messages.GenerateRequest(token_ids=messages.TokenIds(ids=[3, 4, 5]))
    request.stopping.max_tokens = 40
    request.stopping.ignore_eos = True
    with running_collector() as collector:
        endpoint = collector.endpoint
        async with AsyncExitStack() as stack:
            servers = {}
            for _ in range(2):
                running = running_verifier(make_engine(pace_seconds=0.01), otlp_endpoint=endpoint)
                server, address = await stack.enter_async_context(running)
                servers[address] = server
            gateway = await stack.enter_async_context(
                running_gateway(folder, *servers, otlp_endpoint=endpoint)
            )
            call = gateway.stub.Generate(request, timeout=30)
            chosen = await _busy(servers)
            await servers.pop(chosen).server.stop(0)
            answer = await call

        root = only(collector.spans("paceline-gateway", GENERATE))
        stays = collector.spans("paceline-gateway", ATTACH)

        assert answer.usage.completion_tokens == 40
        assert [span.attributes["paceline.failovers"] for span in stays] == [0, 1]
        assert [span.has_failed for span in stays] == [True, False]
        assert {span.parent_id for span in stays} == {root.span_id}
        assert root.attributes["paceline.failovers"] == 1
        assert {span.trace_id for span in collector.spans()} == {root.trace_id}
        ends = {span.parent_id for span in collector.spans("paceline-verifier", ATTACH)}
        assert ends == {span.span_id for span in stays}


async def _busy(servers: dict[str, VerifyServer]) -> str:
    async with asyncio.timeout(10):
        while True:
            for address, server in servers.items():
                if server.router.num_sequences:
                    await asyncio.sleep(0.1)
                    return address
            await asyncio.sleep(0.005)


async def test_log_lines_of_all_services_name_the_request_and_its_trace() -> None:
    with running_collector() as collector, capture_logs() as logs:
        async with traced_line(collector.endpoint) as gateway:
            _, trailers = await generated(
                gateway, asking(), ("x-request-id", "from-a-proxy"), ("traceparent", CALLER)
            )

    lines = {line["event"]: line for line in logs}
    for event in ("request_finished", "sequence_ended", "session_closed"):
        assert lines[event]["request_id"] == "from-a-proxy"
        assert lines[event]["trace_id"] == "a1" * 16
    assert trailers["paceline-request-id"] == "from-a-proxy"


async def test_a_trace_that_is_not_sampled_sends_nothing_and_is_still_in_the_logs() -> None:
    with running_collector() as collector, capture_logs() as logs:
        async with traced_line(collector.endpoint, ratio=0.0) as gateway:
            await generated(gateway, asking())

        assert collector.spans() == []
    lines = {line["event"]: line for line in logs}
    assert len(lines["request_finished"]["trace_id"]) == 32
    assert lines["session_closed"]["trace_id"] == lines["request_finished"]["trace_id"]


async def test_a_failed_call_says_its_ids_and_its_span_says_how_it_ended(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path)
    with running_collector() as collector:
        async with running_gateway(
            folder, "127.0.0.1:1", wait_until_ready=False, otlp_endpoint=collector.endpoint
        ) as gateway:
            call = gateway.stub.Generate(
                messages.GenerateRequest(text="a"),
                metadata=(("traceparent", CALLER), ("x-request-id", "two words")),
                timeout=5,
            )
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await call
            trailers = dict(failure.value.trailing_metadata() or ())

        root = only(collector.spans("paceline-gateway", GENERATE))

        assert root.has_failed
        assert root.attributes["rpc.grpc.status"] == "UNAVAILABLE"
        assert trailers["paceline-request-id"] == root.attributes["paceline.request_id"]
        assert str(trailers["traceparent"]).startswith(f"00-{'a1' * 16}-{root.span_id}")
        assert len(str(trailers["paceline-request-id"])) == 32


@pytest.mark.parametrize("collector_is", ["gone", "stalled"])
async def test_a_collector_that_does_not_answer_delays_nobody(
    collector_is: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp_tracing, "FLUSH_SECONDS", 0.3)
    with running_collector() as collector:
        _break(collector, collector_is)
        endpoint = collector.endpoint if collector_is == "stalled" else "http://127.0.0.1:1"
        async with AsyncExitStack() as stack:
            gateway = await stack.enter_async_context(traced_line(endpoint))
            answers = [await generated(gateway, asking()) for _ in range(3)]
            closing = time.monotonic()
        seconds = time.monotonic() - closing

    assert [answer.usage.completion_tokens for answer, _ in answers] == [24, 24, 24]
    # Far less than the SDK's own 30 seconds for each of the three.
    assert seconds < 15


def _break(collector: TraceCollector, how: str) -> None:
    if how == "stalled":
        collector.stalled.set()
