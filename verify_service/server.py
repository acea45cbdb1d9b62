"""Puts the verifier together: load, warm up, listen, serve; on a signal drain and stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from paceline.admin import AdminServer
from paceline.errors import ConfigurationError, EngineFailed
from paceline.metrics import service_registry
from paceline.routing import follow_routing, read_routing
from paceline.serving import Server, settle_heap, termination_signal
from paceline.tls import channel_credentials, server_credentials
from paceline.tracing import open_tracer
from paceline.unreadable import ReadableCalls
from paceline.v1 import verify_service_pb2, verify_service_pb2_grpc
from verify_service.changing_pools import ChangingPools
from verify_service.cost_state import cost_state
from verify_service.draft_link import DraftLink
from verify_service.engine.draft_selection import BudgetMode
from verify_service.engine.engine_thread import EngineThread
from verify_service.engine.sampling import SamplingParams
from verify_service.engine.step_engine import EngineConfig, StepEngine
from verify_service.engine.steps import Command, StepOutput
from verify_service.engine_backend import EngineBackend
from verify_service.generation_defaults import generation_defaults
from verify_service.metrics import VerifyMetrics, calibration_reader, draft_tally
from verify_service.sequence_traces import SequenceTraces
from verify_service.servicer import VerifyServicer
from verify_service.settings import VerifySettings
from verify_service.step_router import StepRouter
from verify_service.targets.registry import load_target
from verify_service.targets.target import TargetInfo, TargetModel
from verify_service.warm_up import warm_up

if TYPE_CHECKING:
    from verify_service.grammar import GrammarCompiler

log: structlog.stdlib.BoundLogger = structlog.get_logger()

TOKENS_PER_SEQUENCE = 1024
MOST_DEFAULT_TOKENS = 32_768
SERVICE_NAME = verify_service_pb2.DESCRIPTOR.services_by_name["VerifyService"].full_name


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Loaded:
    """A warm engine and what it serves by default."""

    backend: EngineBackend
    defaults: SamplingParams
    grammars: GrammarCompiler | None = None
    """Compiles structured output; None: the target has no tokenizer."""
    when_stopped: Callable[[], None] = _nothing
    """Called once the engine has stopped for good."""


def engine_config(settings: VerifySettings, info: TargetInfo) -> EngineConfig:
    """Return the engine's limits for a target; raises ``ConfigurationError`` if it cannot fit."""
    size = settings.block_size
    per_sequence = min(TOKENS_PER_SEQUENCE, info.context_length)
    tokens = max(settings.max_running * per_sequence, min(info.context_length, MOST_DEFAULT_TOKENS))
    num_blocks = settings.num_kv_blocks or -(-tokens // size)
    if num_blocks * size < 2 * size:
        raise ConfigurationError("setting num_kv_blocks: at least 2 blocks are needed")
    return EngineConfig(
        num_blocks=num_blocks,
        block_size=size,
        max_running=settings.max_running,
        max_waiting=settings.max_waiting,
        max_prefill_rows=settings.max_prefill_rows,
        max_draft_tokens=settings.max_draft_tokens,
        max_draft_wait_seconds=settings.max_draft_wait_ms / 1000,
        budget=BudgetMode[settings.draft_budget.upper()],
        prefix_caching=settings.prefix_caching,
        draft_pools=tuple(settings.pools),
    )


def load(settings: VerifySettings) -> Loaded:
    """Load the engine and warm it up; raises ``ConfigurationError`` naming the cause."""
    _check_files(settings)
    if settings.engine == "tensorrt-llm":
        return _load_tensorrt_llm(settings)
    defaults = SamplingParams() if settings.model is None else generation_defaults(settings.model)
    target: TargetModel = load_target(settings)
    engine = StepEngine(target, engine_config(settings, target.info))
    warm_up(engine)
    keep = _kept_costs(settings, engine)
    if settings.model is None:
        return Loaded(EngineThread(engine), defaults, when_stopped=keep)
    return Loaded(
        EngineThread(engine),
        defaults,
        _grammars(settings.model, engine.info),
        keep,
    )


def _check_files(settings: VerifySettings) -> None:
    """Refuse what can be refused before a model is loaded, which takes minutes."""
    if settings.routing is not None:
        read_routing(settings.routing)
    if settings.link_tls is not None:
        channel_credentials(settings.link_tls)
    if settings.server_tls is not None:
        server_credentials(settings.server_tls)


def _kept_costs(settings: VerifySettings, engine: StepEngine) -> Callable[[], None]:
    """Restore what steps were known to cost; return how to keep it."""
    state = cost_state(settings, engine.info)
    if state is None:
        return _nothing
    state.restore(engine.costs)
    return lambda: state.keep(engine.costs)


def _load_tensorrt_llm(settings: VerifySettings) -> Loaded:
    # The package exists only in NVIDIA's image; nothing else may need it.
    from verify_service.engines.tensorrt_llm.loading import load_backend

    return Loaded(*load_backend(settings))


def _grammars(folder: Path, info: TargetInfo) -> GrammarCompiler | None:
    tokenizer_json = folder / "tokenizer.json"
    if not tokenizer_json.exists():
        return None
    # NVIDIA's image has a llguidance of its own, which the tensorrt-llm engine must not trip over.
    from verify_service.grammar import GrammarCompiler

    try:
        return GrammarCompiler(tokenizer_json, info.num_token_ids, info.eos_token_ids)
    except ConfigurationError as error:
        log.warning("no_structured_output", cause=error.message)
        return None


class VerifyServer:
    """One engine, its draft links and its gRPC server."""

    def __init__(self, loaded: Loaded, settings: VerifySettings) -> None:
        self._settings = settings
        self._when_stopped = loaded.when_stopped
        self._loop = asyncio.get_running_loop()
        self.backend = loaded.backend
        info = self.backend.info
        self._pools = ChangingPools(settings, self._make_link, self.backend.send)
        self.links = self._pools.links
        self._following: asyncio.Task[None] | None = None
        registry = service_registry("verifier")
        self.metrics = VerifyMetrics(
            registry, self.links, calibration_reader(self.backend), draft_tally(self.backend)
        )
        self.tracer = open_tracer("verifier", settings.otlp_endpoint, settings.trace_ratio)
        self.router = StepRouter(
            self._send,
            self.links,
            SequenceTraces(self.tracer),
            step_timeout_seconds=settings.step_timeout_seconds,
        )
        self.server = Server(
            [SERVICE_NAME], with_reflection=settings.reflection, interceptors=(ReadableCalls(),)
        )
        self._admin = AdminServer(
            registry, lambda: self.server.is_ready and not self.router.is_stuck
        )
        servicer = VerifyServicer(
            self.router,
            self.links,
            info,
            self.backend.capabilities,
            loaded.defaults,
            loaded.grammars,
        )
        verify_service_pb2_grpc.add_VerifyServiceServicer_to_server(servicer, self.server.grpc)

    async def start(self) -> int:
        """Listen, connect to the draft pools, say that it is ready; returns the port."""
        port = self.server.listen(self._settings.listen, self._settings.server_tls)
        await self.server.start()
        host = self._settings.listen.rpartition(":")[0]
        log.info("listening", address=f"{host}:{port}")
        if self._settings.admin_listen:
            await self._admin.start(self._settings.admin_listen)
        self.backend.start(self._on_output)
        for link in self.links.values():
            link.start()
        if self._settings.routing is not None:
            self._following = asyncio.create_task(
                follow_routing(self._settings.routing, self._pools.routing, self._pools.use)
            )
        await self.server.set_ready(True)
        log.info("ready", address=f"{host}:{port}")
        return port

    async def drain(self) -> None:
        """
        Say that no more is wanted, then refuse new requests, let running ones end, cut the rest.

        What arrives within the propagation delay is served: not everybody has heard of it yet.
        """
        await self.server.set_ready(False)
        self.router.is_draining = True
        self.router.deliver(StepOutput(load=self.router.load))
        await asyncio.sleep(self._settings.propagation_delay_seconds)
        self.router.is_closed = True
        try:
            async with asyncio.timeout(self._settings.drain_seconds):
                await self.router.wait_until_idle()
        except TimeoutError:
            log.warning("drain_timed_out", num_sequences=self.router.num_sequences)

    async def aclose(self) -> None:
        """Stop everything."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        for link in self.links.values():
            await link.aclose()
        await self.server.stop(0.5)
        await self._admin.aclose()
        await asyncio.to_thread(self.backend.stop)
        await asyncio.to_thread(self._when_stopped)
        if self.tracer is not None:
            await self.tracer.aclose()

    def _make_link(self, pool: str, address: str) -> DraftLink:
        link = DraftLink(
            pool,
            address,
            self.backend.info,
            self.backend.send,
            tls=self._settings.link_tls,
            is_trusted=pool in self._settings.trusted_pools,
        )
        link.on_round_trip = self._note_round_trip
        link.origin_of = lambda sequence_id: self.router.traces.origin(sequence_id)
        return link

    def _note_round_trip(self, pool: str, seconds: float) -> None:
        self.metrics.round_trip(pool, seconds)

    def _send(self, command: Command) -> None:
        self.backend.send(command)
        self.metrics.sent(command)

    def _on_output(self, output: StepOutput) -> None:
        # Called on a thread of the engine's; everything else here lives on the loop.
        try:
            self._loop.call_soon_threadsafe(self._deliver, output)
        except RuntimeError as error:
            raise EngineFailed("the event loop is closed") from error

    def _deliver(self, output: StepOutput) -> None:
        self.backend.output_read()
        self.metrics.observe(output)
        self.router.deliver(output)


async def serve(settings: VerifySettings) -> None:
    """Serve until SIGTERM or SIGINT, then drain."""
    loaded = await asyncio.to_thread(load, settings)
    settle_heap()
    async with termination_signal() as terminated:
        server = VerifyServer(loaded, settings)
        await server.start()
        await terminated.wait()
        log.info("draining")
        await server.drain()
        await server.aclose()
        log.info("stopped")
