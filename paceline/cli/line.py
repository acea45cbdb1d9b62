"""The line on one machine: gateway, verifier and draft service as child processes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, NoReturn, Self

from paceline.async_client import AsyncClient
from paceline.cli.address import bindable_address
from paceline.cli.health import wait_until_serving
from paceline.cli.service_process import ServiceProcess, ServiceSpec
from paceline.cli.terminal import progress, say
from paceline.errors import ConfigurationError, EngineFailed, PacelineError, Unavailable
from paceline.events import DraftPool
from paceline.model_folder import read_model_folder
from paceline.settings import USAGE_EXIT_CODE

LOOPBACK: Final = "127.0.0.1:0"
START_SECONDS: Final = 600.0
"""A large model takes minutes to load; longer than this is a hang."""
GRACE_SECONDS: Final = 35.0
"""Slightly longer than a service's own drain."""
POOL_SECONDS: Final = 5.0
"""How long the verifier gets to find its draft service before ``up`` reports."""
POLL_SECONDS: Final = 0.2
MIN_RESTART_SECONDS: Final = 0.5
MAX_RESTART_SECONDS: Final = 30.0
NO_DRAFTER: Final = "none"
LOCAL_DRAFTERS: Final = ("ngram", "suffix", "onnx", "composite")
MODEL_DRAFTERS: Final = ("onnx", "composite")
"""Drafters that need a model of their own."""


@dataclass(frozen=True, slots=True)
class LinePlan:
    """What to start."""

    model: Path
    log_folder: Path
    listen: str = LOOPBACK
    draft: str = LOCAL_DRAFTERS[0]
    """A drafter of the draft service's registry, ``none``, or the address of a draft service."""
    verify_arguments: tuple[str, ...] = ()
    draft_arguments: tuple[str, ...] = ()
    gateway_arguments: tuple[str, ...] = ()
    max_restart_seconds: float = MAX_RESTART_SECONDS
    """Longest pause before a draft service that keeps dying is started again."""

    @property
    def is_drafted_elsewhere(self) -> bool:
        """Whether ``draft`` is an address: no name of a drafter holds a colon."""
        return ":" in self.draft

    @property
    def pool(self) -> str:
        """The name of the draft pool; empty without one."""
        if self.draft == NO_DRAFTER:
            return ""
        return "remote" if self.is_drafted_elsewhere else self.draft


class Line:
    """
    Owns the child processes: they run inside ``async with`` and no longer.

    The draft service is restarted when it dies, since nothing but speed depends on it. One that
    refuses its settings at the first start would do so for ever, and ends the line.
    """

    def __init__(self, plan: LinePlan, report: Callable[[str], None] = say) -> None:
        self.plan = plan
        self._report = report
        try:
            plan.log_folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"--log-dir {plan.log_folder}: {error.strerror}; name a folder that can be written"
            ) from None
        self.draft = self._draft_process()
        draft_address = self.draft.spec.address if self.draft else plan.draft
        pools = ("--pools", f"{plan.pool}={draft_address}") if plan.pool else ()
        default_pool = ("--default-pool", plan.pool) if plan.pool else ()
        model = ("--model", str(plan.model))
        self.verifier = self._process(
            "verifier", "verify_service", LOOPBACK, (*model, *pools, *plan.verify_arguments)
        )
        verifiers = ("--verifiers", self.verifier.spec.address)
        arguments = (*verifiers, *model, *default_pool, *plan.gateway_arguments)
        self.gateway = self._process("gateway", "gateway", plan.listen, arguments)
        self._draft_keeper: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """The address of the gateway."""
        return self.gateway.spec.address

    async def start(self) -> None:
        """Start all processes and return once the gateway can serve."""
        for process in (self.draft, self.verifier, self.gateway):
            if process is not None:
                await process.start()
        if self.draft is not None:
            self._draft_keeper = asyncio.create_task(self._keep_running(self.draft))
        async with progress(f"loading {read_model_folder(self.plan.model).name} into the verifier"):
            await self._unless_refused(
                _first_failure_of(_until_serving(self.verifier), _until_serving(self.gateway))
            )

    async def until_broken(self) -> NoReturn:
        """Wait for the death of the gateway or the verifier and raise its cause."""
        await self._unless_refused(
            _first_failure_of(_until_dead(self.verifier), _until_dead(self.gateway))
        )
        raise EngineFailed("the line ended")

    async def draft_pool(self, patience_seconds: float = POOL_SECONDS) -> DraftPool | None:
        """Return the draft pool as the gateway sees it, once the verifier has tried to reach it."""
        deadline = time.monotonic() + patience_seconds
        async with AsyncClient(self.address) as client:
            while True:
                pools = [pool for model in await client.models() for pool in model.draft_pools]
                pool = next((pool for pool in pools if pool.name == self.plan.pool), None)
                settled = pool is not None and (pool.available or pool.cause == "mismatch")
                if settled or time.monotonic() > deadline:
                    return pool
                await asyncio.sleep(POLL_SECONDS)

    async def aclose(self) -> None:
        """Drain and end all processes, the door first."""
        if self._draft_keeper is not None:
            self._draft_keeper.cancel()
            await asyncio.gather(self._draft_keeper, return_exceptions=True)
        for process in (self.gateway, self.verifier, self.draft):
            if process is not None:
                await process.stop(GRACE_SECONDS)

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def _draft_process(self) -> ServiceProcess | None:
        if not self.plan.pool or self.plan.is_drafted_elsewhere:
            return None
        arguments = ("--drafter", self.plan.draft, *self.plan.draft_arguments)
        return self._process("draft", "draft_service", LOOPBACK, arguments)

    def _process(
        self, name: str, module: str, listen: str, arguments: tuple[str, ...]
    ) -> ServiceProcess:
        address = bindable_address(listen, "--listen")
        log_path = self.plan.log_folder / f"{name}.log"
        log_path.write_bytes(b"")
        return ServiceProcess(ServiceSpec(name, module, address, arguments, log_path))

    async def _unless_refused(self, wait: asyncio._CoroutineLike[None]) -> None:
        """Wait, but raise as soon as the draft service has refused its settings."""
        waiting = asyncio.create_task(wait)
        watched = {waiting, self._draft_keeper} if self._draft_keeper else {waiting}
        try:
            done, _ = await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    async def _keep_running(self, process: ServiceProcess) -> None:
        pause = MIN_RESTART_SECONDS
        if await process.wait() == USAGE_EXIT_CODE:
            _raise_failure(process)
        while True:
            begun = time.monotonic()
            await process.wait()
            if time.monotonic() - begun > self.plan.max_restart_seconds:
                pause = MIN_RESTART_SECONDS
            self._report(f"serving without drafts: {process.obituary()}; restarting in {pause:g} s")
            await asyncio.sleep(pause)
            pause = min(2 * pause, self.plan.max_restart_seconds)
            await process.start()
            self._report("draft service started again; drafts come back once it answers")


async def _first_failure_of(*waits: asyncio._CoroutineLike[None]) -> None:
    try:
        async with asyncio.TaskGroup() as group:
            for wait in waits:
                group.create_task(wait)
    except* PacelineError as failures:
        raise failures.exceptions[0] from None


async def _until_serving(process: ServiceProcess) -> None:
    ready = asyncio.create_task(wait_until_serving(process.spec.address))
    dead = asyncio.create_task(process.wait())
    try:
        await asyncio.wait(
            {ready, dead}, timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        if dead.done():
            _raise_failure(process)
        if not ready.done():
            raise Unavailable(f"{process.spec.name} is not ready after {START_SECONDS:g} s")
    finally:
        ready.cancel()
        dead.cancel()


async def _until_dead(process: ServiceProcess) -> None:
    await process.wait()
    raise EngineFailed(process.obituary())


def _raise_failure(process: ServiceProcess) -> NoReturn:
    kind = ConfigurationError if process.exit_code == USAGE_EXIT_CODE else EngineFailed
    raise kind(process.obituary())
