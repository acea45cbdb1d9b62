"""
The thread that turns the engine's crank. It never awaits and knows no transport: commands come in
through a bounded inbox, outputs leave through one callback, called on this thread.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque

import structlog

from paceline.errors import EngineFailed, Overloaded
from verify_service.engine.draft_tally import DraftTally, Fate
from verify_service.engine.sampling import Rule
from verify_service.engine.step_engine import StepEngine
from verify_service.engine.steps import Command, StepOutput, TreeFact
from verify_service.engine_backend import EngineCapabilities, OnOutput
from verify_service.request_limits import MAX_LOGPROBS
from verify_service.targets.target import TargetInfo

log: structlog.stdlib.BoundLogger = structlog.get_logger()

MAX_INBOX = 65_536
MAX_UNREAD_OUTPUTS = 256
IDLE_SECONDS = 0.1
STALLED_SECONDS = 0.002
TELLING_SECONDS = 0.001
"""So long the interpreter is left to who tells drafters; put-off work done next costs no time."""
SWITCH_INTERVAL_SECONDS = 0.0005
"""How soon the other thread gets the interpreter; the default 5 ms would delay every step."""


class EngineThread:
    """Owns a ``StepEngine``; everyone else talks to it through ``send``."""

    def __init__(self, engine: StepEngine) -> None:
        self._engine = engine
        self._on_output: OnOutput | None = None
        self._inbox: deque[Command] = deque()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._unread = threading.Semaphore(MAX_UNREAD_OUTPUTS)
        self._is_checked = False
        self._untold: StepOutput | None = None
        """What came of the step before, kept until a device is busy with the next."""
        engine.beside = self._work_beside
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def info(self) -> TargetInfo:
        """What is fixed about the model."""
        return self._engine.info

    def calibration_errors(self) -> dict[str, float]:
        """Return how far each pool's estimates were off; may be called from any thread."""
        pools = list(self._engine.pools.pools.values())
        return {pool.name: pool.calibration.calibration_error for pool in pools}

    @property
    def draft_tally(self) -> DraftTally:
        """What became of drafters' trees; may be read on any thread."""
        return self._engine.tally

    @property
    def capabilities(self) -> EngineCapabilities:
        """What the engine can do with its target."""
        config = self._engine.config
        return EngineCapabilities(
            max_running=config.max_running,
            max_draft_tokens=config.max_draft_tokens,
            rules=(Rule.SAMPLE_AND_MATCH, Rule.REJECTION),
            max_logprobs=MAX_LOGPROBS,
            prefix_caching=config.prefix_caching,
        )

    def start(self, on_output: OnOutput) -> None:
        """Start cranking; every step's output goes to ``on_output``."""
        self._on_output = on_output
        sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
        self._thread.start()

    def send(self, command: Command) -> None:
        """
        Hand over a command; callable from any thread.

        Trees are dropped when the inbox is full, since they are only hints; raises ``Overloaded``
        for anything else.
        """
        if len(self._inbox) >= MAX_INBOX:
            if isinstance(command, TreeFact):
                self.draft_tally.met(command.pool, Fate.INBOX_FULL)
                return
            raise Overloaded("the engine's inbox is full", retry_after_seconds=1.0)
        self._inbox.append(command)
        self._wake.set()

    def output_read(self) -> None:
        """Say that one output was taken over; the engine pauses when too many are unread."""
        self._unread.release()

    def stop(self, timeout_seconds: float = 10.0) -> None:
        """Stop after the step under way."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)

    def _run(self) -> None:
        while not self._stopping.is_set():
            output = self._turn()
            self._tell()
            self._untold = output
            if output is not None and not _moved(output):
                self._tell()
                # Nothing could run (blocks held by parked sequences): do not spin.
                self._wake.wait(STALLED_SECONDS)
            elif not self._engine.runs_apart:
                self._tell()
        self._tell()
        self._engine.settle()

    def _turn(self) -> StepOutput | None:
        """Take commands and do a step; a fault of ours ends the sequences, never the thread."""
        try:
            self._drain()
            self._tell_news()
            if not self._engine.has_work():
                self._tell()
                self._idle()
                return None
            self._is_checked = False
            self._wait_for_trees()
            return self._engine.step()
        except Exception as error:
            log.exception("engine_failed")
            return self._engine.fail_all(EngineFailed(f"the engine failed: {error}"))

    def _work_beside(self) -> None:
        """Use the time that a device needs: tell what came before, take the trees that are here."""
        self._tell()
        for _ in range(len(self._inbox)):
            if not self._engine.can_take_early(self._inbox[0]):
                return
            self._engine.apply(self._inbox.popleft())

    def _tell_news(self) -> None:
        news = self._engine.take_news()
        if news is not None:
            self._tell()
            self._publish(news)

    def _tell(self) -> None:
        output, self._untold = self._untold, None
        if output is not None:
            self._publish(output)

    def _publish(self, output: StepOutput) -> None:
        while not self._unread.acquire(timeout=IDLE_SECONDS):
            if self._stopping.is_set():
                return
        if self._on_output is not None:
            self._on_output(output)

    def _drain(self) -> None:
        self._wake.clear()
        while self._inbox:
            self._engine.apply(self._inbox.popleft())

    def _wait_for_trees(self) -> None:
        seconds = self._engine.draft_wait_seconds()
        if seconds <= 0.0:
            return
        until = time.monotonic() + seconds
        self._tell()  # drafters answer what they have been told
        self._wait_until(min(time.monotonic() + TELLING_SECONDS, until))
        self._engine.settle()
        self._wait_until(until)

    def _wait_until(self, until: float) -> None:
        while self._engine.draft_wait_seconds() > 0.0 and not self._stopping.is_set():
            left = until - time.monotonic()
            if left <= 0:
                return
            self._wake.wait(left)
            self._drain()

    def _idle(self) -> None:
        if self._engine.num_sequences == 0 and not self._is_checked:
            self._is_checked = True
            self._engine.settle()
            self._engine.check_integrity()
        self._wake.wait(IDLE_SECONDS)


def _moved(output: StepOutput) -> bool:
    """Return whether anything ran or ended."""
    return bool(output.steps or output.failures) or output.load.num_rows > 0
