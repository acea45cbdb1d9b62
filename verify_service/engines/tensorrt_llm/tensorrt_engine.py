"""
TensorRT-LLM behind ``EngineBackend``: a thread with an event loop of its own around ``LLM``.

Not run against the real package yet; see the package docstring.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque

import structlog

from paceline.errors import EngineFailed, Overloaded
from verify_service.engine.steps import Command, Submit, TreeFact
from verify_service.engine_backend import EngineCapabilities, OnOutput
from verify_service.engines.tensorrt_llm import admission
from verify_service.engines.tensorrt_llm.mailbox_server import SocketFolder
from verify_service.engines.tensorrt_llm.package import Package
from verify_service.engines.tensorrt_llm.package_view import Llm
from verify_service.engines.tensorrt_llm.request_loop import LoopConfig, RequestLoop
from verify_service.targets.target import TargetInfo

log: structlog.stdlib.BoundLogger = structlog.get_logger()

MAX_INBOX = 65_536
START_SECONDS = 30.0
STOP_SECONDS = 10.0
SHUTDOWN_SECONDS = 30.0
"""Longest wait for the package to end its workers; a dead executor may never answer."""


class TensorRtEngine:
    """An ``LLM`` and the loop that feeds it."""

    def __init__(
        self,
        llm: Llm,
        package: Package,
        info: TargetInfo,
        config: LoopConfig,
        sockets: SocketFolder,
    ) -> None:
        self._llm = llm
        self._package = package
        self._info = info
        self._config = config
        self._sockets = sockets
        self._inbox: deque[Command] = deque()
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._requests: RequestLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    @property
    def info(self) -> TargetInfo:
        """What is fixed about the model."""
        return self._info

    @property
    def capabilities(self) -> EngineCapabilities:
        """What this engine can promise; a seed changes nothing here, so neither is it promised."""
        limits = self._config.limits
        return EngineCapabilities(
            max_running=limits.max_running,
            max_draft_tokens=limits.max_draft_tokens,
            trees=False,
            max_logprobs=0,
            penalties=False,
            logit_bias=False,
            structured_output=False,
            seeded_invariance=False,
            prefix_caching=limits.prefix_caching,
        )

    def start(self, on_output: OnOutput) -> None:
        """Start the loop and return once it takes commands; raises ``EngineFailed`` if never."""
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run(on_output)), name="tensorrt-llm", daemon=True
        )
        self._thread.start()
        if not self._ready.wait(START_SECONDS):
            raise EngineFailed("the loop around TensorRT-LLM did not start")

    def send(self, command: Command) -> None:
        """Hand over a command; raises ``InvalidRequest`` and ``Overloaded``."""
        if isinstance(command, Submit):
            admission.check(command.request)
        if len(self._inbox) >= MAX_INBOX:
            if isinstance(command, TreeFact):
                return
            raise Overloaded("the engine's inbox is full", retry_after_seconds=1.0)
        self._inbox.append(command)
        self._call(self._drain)

    def output_read(self) -> None:
        """Say that one output was taken over."""
        self._call(self._read)

    def stop(self) -> None:
        """End every sequence, the loop and the package's workers."""
        self._call(self._stop)
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)
        ending = threading.Thread(target=self._llm.shutdown, name="tensorrt-llm-end", daemon=True)
        ending.start()
        ending.join(SHUTDOWN_SECONDS)
        if ending.is_alive():
            log.warning("tensorrt_llm_shutdown_hangs", seconds=SHUTDOWN_SECONDS)
        self._sockets.remove()

    async def _run(self, on_output: OnOutput) -> None:
        self._stopping = asyncio.Event()
        requests = RequestLoop(
            self._llm, self._package, self._config, self._sockets.address, on_output
        )
        await requests.worker.start()
        self._requests = requests
        self._loop = asyncio.get_running_loop()
        self._ready.set()
        self._drain()
        await self._stopping.wait()
        self._loop = None
        await requests.aclose()

    def _call(self, function: object) -> None:
        loop = self._loop
        if loop is None or not callable(function):
            return
        try:
            loop.call_soon_threadsafe(function)
        except RuntimeError:
            log.debug("engine_loop_closed")

    def _drain(self) -> None:
        while self._requests is not None and self._inbox:
            self._requests.apply(self._inbox.popleft())

    def _read(self) -> None:
        if self._requests is not None:
            self._requests.outputs.read()

    def _stop(self) -> None:
        if self._stopping is not None:
            self._stopping.set()
