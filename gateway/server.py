"""Putting a gateway together, and its way from start to drain. What it does is elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog

from gateway.admission import Admission
from gateway.counters import Counters
from gateway.drafting_controller import DraftingController
from gateway.drafting_policy import PolicyLimits
from gateway.generator import Generator
from gateway.preparation import RequestLimits
from gateway.relay import FailoverLimits
from gateway.servicer import GenerationServicer
from gateway.settings import GatewaySettings
from gateway.tokenization import PromptTokenizer
from gateway.verifier_link import LinkTimes, VerifierLink
from gateway.verifier_pool import VerifierPool
from paceline.serving import Server, termination_signal
from paceline.v1.generation_service_pb2_grpc import add_GenerationServiceServicer_to_server

SERVICE_NAME = "paceline.v1.GenerationService"

log: structlog.stdlib.BoundLogger = structlog.get_logger()


class Gateway:
    """A gateway that serves; ``aclose`` ends it at once, ``drain`` lets requests finish."""

    def __init__(self, settings: GatewaySettings, generator: Generator, server: Server) -> None:
        self.settings = settings
        self.generator = generator
        self.port = 0
        self._server = server
        self._tasks: list[asyncio.Task[None]] = []
        self._is_draining = False

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"{self.settings.listen.rpartition(':')[0]}:{self.port}"

    async def start(self) -> None:
        """Bind, answer, and connect to the verifiers; raises ``ConfigurationError``."""
        self.port = self._server.listen(self.settings.listen)
        await self._server.start()
        log.info("listening", address=self.address, model=str(self.settings.model))
        links = self.generator.verifiers.links
        self._tasks = [asyncio.create_task(link.run(), name=link.address) for link in links]
        self._tasks.append(asyncio.create_task(self._keep_readiness(), name="readiness"))

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
        await self._server.stop(self.settings.drain_seconds)

    async def aclose(self) -> None:
        """End everything."""
        await self._server.stop(0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.generator.tokenizer.aclose()

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
        self._controller.refresh(link, pools_changed=True)

    def on_load(self, link: VerifierLink) -> None:
        self._controller.refresh(link)


@asynccontextmanager
async def open_gateway(settings: GatewaySettings) -> AsyncIterator[Gateway]:
    """Serve until the block ends; raises ``ConfigurationError`` for what cannot work."""
    tokenizer = PromptTokenizer.load(settings.model, num_threads=settings.tokenizer_threads)
    generator = _assemble(settings, tokenizer)
    server = Server((SERVICE_NAME,), with_reflection=settings.reflection)
    servicer = GenerationServicer(
        generator, default_deadline_seconds=settings.default_deadline_seconds
    )
    add_GenerationServiceServicer_to_server(servicer, server.grpc)
    gateway = Gateway(settings, generator, server)
    try:
        await gateway.start()
        yield gateway
    finally:
        await gateway.aclose()


async def serve(settings: GatewaySettings) -> None:
    """Serve until SIGTERM or SIGINT, then drain."""
    async with termination_signal() as terminated, open_gateway(settings) as gateway:
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
    controller = DraftingController(
        PolicyLimits(
            max_running_to_draft=settings.max_running_to_draft,
            min_acceptance_length=settings.min_acceptance_length,
            min_dwell_seconds=settings.drafting_dwell_seconds,
            probe_interval_seconds=settings.probe_interval_seconds,
        ),
        default_pool=settings.default_pool,
        counters=counters,
        clock=asyncio.get_running_loop().time,
    )
    for address in settings.verifiers:
        verifiers.add(
            VerifierLink(
                address,
                tokenizer_fingerprint=tokenizer.fingerprint,
                observer=_Observer(verifiers, controller),
                counters=counters,
                times=LinkTimes(
                    handshake_seconds=settings.verifier_timeout_seconds,
                    refresh_seconds=settings.verifier_refresh_seconds,
                ),
            )
        )
    return Generator(
        tokenizer=tokenizer,
        verifiers=verifiers,
        admission=Admission(max_running=settings.max_running, max_waiting=settings.max_waiting),
        controller=controller,
        counters=counters,
        limits=RequestLimits(settings.default_max_tokens, settings.max_prompt_characters),
        failover=FailoverLimits(settings.max_failovers, settings.failover_wait_seconds),
    )
