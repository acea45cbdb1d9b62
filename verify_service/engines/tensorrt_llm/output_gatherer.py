"""
Gathers what happens within one turn of the event loop into one ``StepOutput``.

The package's loop cannot be paused, so what the service does not take over yet is kept and joined:
outputs become fewer and larger, never lost. Its size is bounded by what is running.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from verify_service.engine.steps import (
    Load,
    SequenceFailure,
    SequenceStep,
    SessionEvent,
    StepOutput,
)
from verify_service.engine_backend import OnOutput

MAX_UNREAD_OUTPUTS = 256


class OutputGatherer:
    """The way out of the engine. Lives on its event loop."""

    def __init__(
        self,
        on_output: OnOutput,
        take_events: Callable[[], tuple[SessionEvent, ...]],
        current_load: Callable[[], Load],
    ) -> None:
        self._on_output = on_output
        self._take_events = take_events
        self._current_load = current_load
        self._steps: list[SequenceStep] = []
        self._failures: list[SequenceFailure] = []
        self._num_unread = 0
        self._is_due = False

    def add(self, item: SequenceStep | SequenceFailure) -> None:
        """Publish an item soon."""
        if isinstance(item, SequenceStep):
            self._steps.append(item)
        else:
            self._failures.append(item)
        self.wake()

    def wake(self) -> None:
        """Publish what there is, session events included, before the loop sleeps again."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._publish)

    def read(self) -> None:
        """Take note that one output was taken over."""
        self._num_unread -= 1
        self.wake()

    def _publish(self) -> None:
        self._is_due = False
        if self._num_unread >= MAX_UNREAD_OUTPUTS:
            return
        events = self._take_events()
        if not (self._steps or self._failures or events):
            return
        output = StepOutput(tuple(self._steps), tuple(self._failures), events, self._current_load())
        self._steps.clear()
        self._failures.clear()
        self._num_unread += 1
        self._on_output(output)
