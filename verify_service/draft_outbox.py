"""What waits to be said to a drafter: the next message on its stream."""

from __future__ import annotations

from paceline.v1.draft_service_pb2 import DraftRequest, SessionClose, SessionCommit, SessionOpen


class DraftOutbox:
    """
    Gathers the events of one step or more into one message.

    A drafter takes a message in field order: opens, commits, closes. What was said of a session
    before it is opened again is therefore left out; the opening says it all.
    """

    def __init__(self) -> None:
        self._message = DraftRequest()
        self.num_events = 0
        """Taken in since the last message, those left out included."""

    def open(self, opened: SessionOpen) -> None:
        """Say that a session opens."""
        self.num_events += 1
        for waiting in (self._message.commits, self._message.closes):
            for index in reversed(range(len(waiting))):
                if waiting[index].session_id == opened.session_id:
                    del waiting[index]
        self._message.opens.append(opened)

    def commit(self, committed: SessionCommit) -> None:
        """Say what was committed."""
        self.num_events += 1
        self._message.commits.append(committed)

    def close(self, session_id: int) -> None:
        """Say that a session is over."""
        self.num_events += 1
        self._message.closes.append(SessionClose(session_id=session_id))

    def take(self) -> DraftRequest:
        """Return the message and begin the next one."""
        message, self._message = self._message, DraftRequest()
        self.num_events = 0
        return message
