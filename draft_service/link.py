"""
One verifier's stream: what its messages change and what is owed to it. No protobuf here.

Changes take effect as they arrive; answers are computed when the stream can take one, from what is
newest then. A verifier that sends faster than it reads therefore gets fewer and newer answers, and
what is owed never grows beyond one entry per session. While nothing is owed, sessions whose drafter
works ahead are asked on, and what they add is sent as it comes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import structlog

from draft_service.drafter import Draft, DraftLimits, SessionSpec
from draft_service.proposing import Proposer
from draft_service.sent_trees import SentTrees
from draft_service.sessions import (
    RefusalCause,
    SessionKey,
    SessionRefused,
    SessionTable,
    UnknownSession,
)

_MAX_NOTES = 8192
"""Unknown and refused sessions remembered until the next answer; more are dropped and counted."""

log: structlog.stdlib.BoundLogger = structlog.get_logger()


@dataclass(slots=True)
class Answer:
    """What one message says."""

    drafts: dict[int, Draft] = field(default_factory=dict)
    unknown_session_ids: list[int] = field(default_factory=list)
    refusals: dict[int, SessionRefused] = field(default_factory=dict)
    is_draining: bool = False


class DraftLink:
    """The sessions of one stream."""

    def __init__(self, stream_id: int, table: SessionTable, proposer: Proposer) -> None:
        self._stream_id = stream_id
        self._table = table
        self._proposer = proposer
        self._news = asyncio.Event()
        self._stale: dict[int, None] = {}  # sessions whose newest state has no proposal yet
        self._growing: dict[int, None] = {}  # sessions that work ahead of the next commit
        self._unknown: dict[int, None] = {}
        self._refusals: dict[int, SessionRefused] = {}
        self._is_draining = False
        self._owes_drain = False
        self._has_ended = False
        self.sent = SentTrees()
        self.problems: Counter[str] = Counter()
        """Malformed or refused items by kind."""

    def open(self, session_id: int, spec: SessionSpec, limits: DraftLimits) -> None:
        """Open a session or owe a refusal."""
        self._forget(session_id)
        try:
            self._table.open(self._key(session_id), spec, limits)
        except SessionRefused as refusal:
            self._refuse(session_id, refusal)
        except Exception as error:
            self._fail([session_id], "open", error)
        else:
            self._touch(session_id)

    def commit(
        self, session_id: int, base_len: int, token_ids: Sequence[int], features: bytes = b""
    ) -> None:
        """Append committed tokens, or owe a refusal or the news that the session is unknown."""
        try:
            self._table.commit(self._key(session_id), base_len, token_ids, features)
        except UnknownSession:
            self._forget(session_id)
            self._count("unknown_session")
            if len(self._unknown) < _MAX_NOTES:
                self._unknown[session_id] = None
        except SessionRefused as refusal:
            self._refuse(session_id, refusal)
        except Exception as error:
            self._fail([session_id], "commit", error)
        else:
            self.sent.commit(session_id, base_len, token_ids)
            self._touch(session_id)

    def close(self, session_id: int) -> None:
        """Forget a session and all that is owed about it."""
        self._forget(session_id)
        self._refusals.pop(session_id, None)
        self._table.close(self._key(session_id))

    def drain(self) -> None:
        """Tell the verifier that the service is about to stop; known sessions go on."""
        self._is_draining = self._owes_drain = True
        self._news.set()

    def end(self) -> None:
        """Take note that no more changes come."""
        self._has_ended = True
        self._news.set()

    def free(self) -> None:
        """Forget all sessions of the stream."""
        self._table.close_stream(self._stream_id)

    async def answers(self) -> AsyncIterator[Answer]:
        """Yield an answer whenever one is owed, until the stream has ended."""
        while not (self._has_ended and not self._owes_answer):
            if not self._growing:
                await self._news.wait()
            self._news.clear()
            has_notes = bool(self._unknown or self._refusals or self._owes_drain)
            answer = await self._answer()
            if has_notes or answer.drafts or answer.unknown_session_ids:
                yield answer
            else:
                await asyncio.sleep(0)

    @property
    def _owes_answer(self) -> bool:
        return bool(self._stale or self._unknown or self._refusals or self._owes_drain)

    async def _answer(self) -> Answer:
        answer = Answer(
            unknown_session_ids=list(self._unknown),
            refusals=self._refusals,
            is_draining=self._is_draining,
        )
        stale, self._stale = self._stale, {}
        growing, self._growing = self._growing, {}
        self._unknown, self._refusals, self._owes_drain = {}, {}, False
        for session_id, draft in (await self._propose({**stale, **growing}, answer)).items():
            if self._is_worth_saying(session_id, draft, is_owed=session_id in stale):
                answer.drafts[session_id] = draft
                self.sent.send(session_id, draft)
        return answer

    def _is_worth_saying(self, session_id: int, draft: Draft, *, is_owed: bool) -> bool:
        if self._key(session_id) not in self._table:
            return False
        if draft.may_grow:
            self._growing[session_id] = None
            if not draft.tree.num_nodes:
                return False
        return is_owed or self.sent.is_news(session_id, draft)

    async def _propose(self, session_ids: dict[int, None], answer: Answer) -> dict[int, Draft]:
        jobs = {}
        for session_id in session_ids:
            try:
                jobs[session_id] = self._table.job(self._key(session_id))
            except UnknownSession:
                answer.unknown_session_ids.append(session_id)
        if not jobs:
            return {}
        try:
            drafts = await self._proposer.propose(list(jobs.values()))
        except Exception as error:
            self._fail(list(jobs), "propose", error)
            return {}
        return dict(zip(jobs, drafts, strict=True))

    def _key(self, session_id: int) -> SessionKey:
        return SessionKey(self._stream_id, session_id)

    def _touch(self, session_id: int) -> None:
        self._stale[session_id] = None
        self._news.set()

    def _forget(self, session_id: int) -> None:
        for owed in (self._stale, self._growing, self._unknown):
            owed.pop(session_id, None)
        self.sent.forget(session_id)

    def _refuse(self, session_id: int, refusal: SessionRefused) -> None:
        self._forget(session_id)
        self._count(refusal.cause.value)
        if len(self._refusals) < _MAX_NOTES:
            self._refusals[session_id] = refusal

    def _count(self, problem: str) -> None:
        if not self.problems[problem]:
            log.warning("session_problem", problem=problem, stream_id=self._stream_id)
        self.problems[problem] += 1
        self._news.set()

    def _fail(self, session_ids: Sequence[int], during: str, error: Exception) -> None:
        log.error("drafter_failed", during=during, num_sessions=len(session_ids), exc_info=error)
        for session_id in session_ids:
            self._table.close(self._key(session_id))
            detail = f"the drafter failed to {during}"
            self._refuse(session_id, SessionRefused(RefusalCause.DRAFTER_FAILED, detail))
