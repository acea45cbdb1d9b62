"""Putting a gateway together, and its way from start to drain. What it does is elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, MutableMapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from gateway.admission import Admission
from gateway.changing_verifiers import ChangingVerifiers
from gateway.counters import Counters
from gateway.credentials import Credentials
from gateway.door import Door
from gateway.drafting_controller import DraftingController
from gateway.failover_budget import FailoverBudget
from gateway.generator import Generator
from gateway.live_settings import LiveSettings, failover_limits, policy_limits, request_limits
from gateway.metrics import GatewayMetrics
from gateway.policy_report import policy_report
from gateway.reloading import Source, SourceKind, follow
from gateway.servicer import GenerationServicer
from gateway.settings import GatewaySettings
from gateway.tokenization import PromptTokenizer
from gateway.verifier_link import LinkTimes, VerifierLink
from gateway.verifier_pool import VerifierPool
from paceline.admin import AdminServer
from paceline.file_watch import FileWatch
from paceline.metrics import service_registry
from paceline.serving import Server, settle_heap, termination_signal
from paceline.tls import channel_credentials
from paceline.tracing import open_tracer
from paceline.v1.generation_service_pb2_grpc import add_GenerationServiceServicer_to_server

SERVICE_NAME = "paceline.v1.GenerationService"

FAREWELL_SECONDS: Final = 1.0
"""After the drain, for the statuses of what it cut short to reach their callers."""

log: structlog.stdlib.BoundLogger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The file that settings came from, and how to read it again."""

    path: Path
    read: Callable[[], GatewaySettings]


class Gateway:
    """A gateway that serves; ``aclose`` ends it at once, ``drain`` lets requests finish."""

    def __init__(
        self,
        settings: GatewaySettings,
        generator: Generator,
        servicer: GenerationServicer,
        server: Server,
        changing: ChangingVerifiers,
        live: LiveSettings,
        sources: Sequence[Source],
        refused: MutableMapping[str, str],
    ) -> None:
        """``refused`` holds what is wrong with files whose latest state is not in force."""
        self.settings = settings
        self.generator = generator
        self._servicer = servicer
        self._changing = changing
        self.live = live
        self._sources = sources
        self._refused = refused
        self.port = 0
        self._server = server
        self.metrics = service_registry("gateway")
        self._admin = AdminServer(
            self.metrics,
            lambda: server.is_ready,
            {"/policy": self._policy_report},
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._is_draining = False

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"{self.settings.listen.rpartition(':')[0]}:{self.port}"

    def _policy_report(self) -> bytes:
        generator = self.generator
        links = generator.verifiers.links
        return policy_report(generator.controller, links, generator.counters, self._refused)

    async def start(self) -> None:
        """Bind, answer, and connect to the verifiers; raises ``ConfigurationError``."""
        if self.settings.link_tls is not None:
            channel_credentials(self.settings.link_tls)
        self.port = self._server.listen(self.settings.listen, self.settings.server_tls)
        await self._server.start()
        log.info("listening", address=self.address, model=str(self.settings.model))
        if self.settings.admin_listen:
            await self._admin.start(self.settings.admin_listen)
        self._tasks = [asyncio.create_task(self._keep_readiness(), name="readiness")]
        self._tasks += [asyncio.create_task(work) for work in self._changing.work()]
        looks = follow(self._sources, self.settings.reload_seconds, self._refused)
        self._tasks.append(asyncio.create_task(looks, name="reloading"))

    async def wait_for_fault(self) -> None:
        """Return only when a part of the gateway has ended by itself; raises its exception."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def drain(self) -> None:
        """Say that no more is wanted, let that be noticed, and let running requests finish."""
        self._is_draining = True
        await self._server.set_ready(False)
        log.info("draining", num_running=self.generator.admission.num_running)
        await asyncio.sleep(self.settings.propagation_delay_seconds)
        stopping = asyncio.create_task(
            self._server.stop(self.settings.drain_seconds + FAREWELL_SECONDS)
        )
        await asyncio.wait((stopping,), timeout=self.settings.drain_seconds)
        self._servicer.stop()
        await stopping

    async def aclose(self) -> None:
        """End everything."""
        await self._server.stop(0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._admin.aclose()
        await self.generator.tokenizer.aclose()
        if self.generator.tracer is not None:
            await self.generator.tracer.aclose()

    async def _keep_readiness(self) -> None:
        verifiers, was_ready = self.generator.verifiers, False
        while True:
            is_ready = verifiers.is_ready
            if is_ready != was_ready and not self._is_draining:
                was_ready = is_ready
                await self._server.set_ready(is_ready)
                log.info("ready" if is_ready else "not_ready", address=self.address)
                continue
            await verifiers.wait_for_change()


class _Observer:
    """Passes news of a link on to the pool and the drafting policy."""

    def __init__(self, verifiers: VerifierPool, controller: DraftingController) -> None:
        self._verifiers = verifiers
        self._controller = controller

    def on_change(self, link: VerifierLink) -> None:
        self._verifiers.announce_change()
        # A link that was given up tells of its end after the policy has forgotten it.
        if link in self._verifiers.links:
            self._controller.refresh(link, pools_changed=True)

    def on_load(self, link: VerifierLink) -> None:
        self._controller.refresh(link)


@asynccontextmanager
async def open_gateway(
    settings: GatewaySettings, config: ConfigFile | None = None
) -> AsyncIterator[Gateway]:
    """Serve until the block ends; raises ``ConfigurationError`` for what cannot work."""
    credentials = Credentials(settings.credential_files)
    tokenizer = PromptTokenizer.load(settings.model, num_threads=settings.tokenizer_threads)
    generator = _assemble(settings, tokenizer)
    refused: dict[str, str] = {}
    changing = ChangingVerifiers(
        settings,
        generator.verifiers,
        generator.controller,
        _link_maker(settings, generator),
        refused,
    )
    server = Server(
        (SERVICE_NAME,),
        with_reflection=settings.reflection,
        interceptors=(Door(credentials, generator.counters),),
    )
    servicer = GenerationServicer(
        generator, default_deadline_seconds=settings.default_deadline_seconds
    )
    add_GenerationServiceServicer_to_server(servicer, server.grpc)
    live = LiveSettings(settings, generator=generator, servicer=servicer, fixed=changing.fixed)
    sources = [_credential_source(credentials), *_config_sources(config, live)]
    gateway = Gateway(settings, generator, servicer, server, changing, live, sources, refused)
    servicer.on_request_end = GatewayMetrics(gateway.metrics, generator, refused).request_ended
    try:
        await gateway.start()
        yield gateway
    finally:
        await gateway.aclose()


async def serve(settings: GatewaySettings, config: ConfigFile | None = None) -> None:
    """Serve until SIGTERM or SIGINT, then drain."""
    async with termination_signal() as terminated, open_gateway(settings, config) as gateway:
        settle_heap()
        fault = asyncio.create_task(gateway.wait_for_fault())
        signal = asyncio.create_task(terminated.wait())
        await asyncio.wait((fault, signal), return_when=asyncio.FIRST_COMPLETED)
        signal.cancel()
        if fault.done():
            fault.result()
        fault.cancel()
        await gateway.drain()
    log.info("stopped")


def _assemble(settings: GatewaySettings, tokenizer: PromptTokenizer) -> Generator:
    counters, verifiers = Counters(), VerifierPool()
    clock = asyncio.get_running_loop().time
    controller = DraftingController(
        policy_limits(settings),
        default_pool=settings.default_pool,
        counters=counters,
        clock=clock,
    )
    failover = failover_limits(settings)
    return Generator(
        tokenizer=tokenizer,
        verifiers=verifiers,
        admission=Admission(max_running=settings.max_running, max_waiting=settings.max_waiting),
        controller=controller,
        counters=counters,
        limits=request_limits(settings),
        failover=failover,
        budget=FailoverBudget(failover.burst, failover.per_second, clock),
        tracer=open_tracer("gateway", settings.otlp_endpoint, settings.trace_ratio),
    )


def _credential_source(credentials: Credentials) -> Source:
    watch = FileWatch(credentials.paths)
    return Source(SourceKind.CREDENTIALS, watch, credentials.reload, lambda _: None)


def _config_sources(config: ConfigFile | None, live: LiveSettings) -> list[Source]:
    if config is None:
        return []
    return [Source(SourceKind.SETTINGS, FileWatch([config.path]), config.read, live.apply)]


def _link_maker(settings: GatewaySettings, generator: Generator) -> Callable[[str], VerifierLink]:
    observer = _Observer(generator.verifiers, generator.controller)
    times = LinkTimes(
        handshake_seconds=settings.verifier_timeout_seconds,
        refresh_seconds=settings.verifier_refresh_seconds,
    )
    return lambda address: VerifierLink(
        address,
        tokenizer_fingerprint=generator.tokenizer.fingerprint,
        observer=observer,
        counters=generator.counters,
        times=times,
        tls=settings.link_tls,
    )
