"""
Going on with a stream whose gateway was lost, through another one.

What follows is a function of the prompt, the ids received so far and the seed, so the client's
stream goes on with the tokens that it would have had. It sends nothing itself.
"""

from __future__ import annotations

import random
import time
from typing import Final

from paceline.errors import PacelineError, Unavailable
from paceline.events import Event
from paceline.generation_codec import event_from_proto
from paceline.v1 import generation_service_pb2 as messages

DEFAULT_MAX_RESUMES: Final = 3
_PAUSE_SECONDS: Final = 0.1
_MAX_PAUSE_SECONDS: Final = 2.0


class ResumableStream:
    """
    One request, and what was received of its answer.

    Only requests for a single output can be resumed. They ask for token ids whether or not the
    caller wants to see them.
    """

    def __init__(
        self, request: messages.GenerateRequest, *, max_resumes: int, timeout_seconds: float
    ) -> None:
        self._request = messages.GenerateRequest()
        self._request.CopyFrom(request)
        self._deadline = time.monotonic() + timeout_seconds
        self._may_resume = max_resumes > 0 and request.n <= 1
        self._resumes_left = max_resumes
        self._shows_ids = request.output.return_token_ids
        self._has_started = False
        self._finished: set[int] = set()
        """Outputs whose end the caller has seen."""
        self._first_error: PacelineError | None = None
        if self._may_resume:
            self._request.output.return_token_ids = True

    @property
    def request(self) -> messages.StreamGenerateRequest:
        """What to send next."""
        return messages.StreamGenerateRequest(request=self._request)

    @property
    def seconds_left(self) -> float:
        """How long the next call may take; 0 when the time is over."""
        return max(0.0, self._deadline - time.monotonic())

    def take(self, message: messages.StreamGenerateResponse) -> Event | None:
        """Remember a message and return its event; None for what the caller has seen already."""
        kind = message.WhichOneof("event")
        if kind == "started":
            return self._take_started(message)
        if kind == "delta" and self._may_resume:
            self._request.resume_token_ids.extend(message.delta.token_ids)
            if not self._shows_ids:
                del message.delta.token_ids[:]
        if kind == "finished":
            if message.finished.index in self._finished:
                return None
            self._finished.add(message.finished.index)
        return event_from_proto(message)

    def pause_before_resume(self, error: PacelineError) -> float | None:
        """Return how long to wait and then send ``request``; None: the error is the caller's."""
        if not (isinstance(error, Unavailable) and self._has_started and self._may_resume):
            return None
        self._first_error = self._first_error or error
        if self._resumes_left == 0:
            return None
        self._resumes_left -= 1
        pause = error.retry_after_seconds
        if pause is None:
            pause = _PAUSE_SECONDS * random.uniform(0.5, 1.5)  # noqa: S311 - jitter
        pause = min(pause, _MAX_PAUSE_SECONDS)
        return pause if pause < self.seconds_left else None

    def cause(self, error: PacelineError) -> PacelineError:
        """
        Return what to tell the caller when ``error`` cannot be helped.

        That nobody took the request up again says less than why it was lost.
        """
        if isinstance(error, Unavailable) and self._first_error is not None:
            return self._first_error
        return error

    def _take_started(self, message: messages.StreamGenerateResponse) -> Event | None:
        if self._has_started:
            return None
        self._has_started = True
        # All that the gateway chose is said from now on, so that another chooses nothing else.
        self._request.model = message.started.model
        self._request.request_id = message.started.request_id
        self._request.sampling.CopyFrom(message.started.sampling)
        return event_from_proto(message)
