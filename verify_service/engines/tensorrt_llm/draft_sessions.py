"""
What draft pools are told about sequences, and what the worker is told about pools.

A commit is heard of twice: early from the worker, surely from the output stream. Whatever comes
first is told; the other adds nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from verify_service.engine.draft_pools import DraftPools
from verify_service.engine.sampling import Fallback
from verify_service.engine.steps import PoolDown, PoolUp, SessionEvent, TreeFact
from verify_service.engines.tensorrt_llm.sequence_run import SequenceRun
from verify_service.engines.tensorrt_llm.wire_frames import Fact, Frame, Limit


class DraftSessions:
    """The sessions of all sequences."""

    def __init__(
        self, pools: tuple[str, ...], max_draft_tokens: int, post: Callable[[Frame], None]
    ) -> None:
        self._pools = DraftPools(pools)
        self._max_draft_tokens = max_draft_tokens
        self._post = post
        self._told_len: dict[int, int] = {}

    def cause_for(self, run: SequenceRun) -> Fallback | None:
        """Return why a sequence runs without drafts; None: it drafts."""
        return self._pools.cause_for(run.sequence)

    def set_pool(self, command: PoolUp | PoolDown, runs: list[SequenceRun]) -> None:
        """Use a pool from now on, or no more."""
        cause = command.cause if isinstance(command, PoolDown) else None
        self._pools.set_cause(command.pool, cause)
        for run in runs:
            if run.sequence.session_pool == command.pool:
                run.sequence.session_pool = ""
            self.sync(run)

    def sync(self, run: SequenceRun) -> None:
        """Open or close a sequence's session so that it matches its policy."""
        before = run.sequence.session_pool
        self._pools.sync(run.sequence)
        if run.sequence.session_pool != before:
            self._told_len[run.sequence_id] = len(run.sequence.token_ids)
            self._limit(run)

    def changed(self, run: SequenceRun) -> None:
        """Follow a change of a sequence's policy."""
        self.sync(run)
        self._limit(run)

    def reopen(self, run: SequenceRun, pool: str) -> None:
        """Open a session again that its pool lost."""
        self._pools.reopen(run.sequence, pool)
        self._told_len[run.sequence_id] = len(run.sequence.token_ids)

    def refuse(self, run: SequenceRun, pool: str, cause: Fallback) -> None:
        """Run a sequence without drafts, since its pool will not serve it."""
        if run.sequence.session_pool == pool:
            self._pools.refuse(run.sequence, cause)
            self._limit(run)

    def fact(self, run: SequenceRun, fact: TreeFact) -> None:
        """Pass a tree on if it comes from the pool that the sequence listens to."""
        if fact.pool and fact.pool == run.sequence.session_pool and run.client_id is not None:
            self._post(Fact(run.client_id, fact.base_len, fact.tree))

    def committed(self, run: SequenceRun, base_len: int, token_ids: tuple[int, ...]) -> None:
        """Tell the pool what of ``token_ids`` it has not heard yet."""
        told = self._told_len.get(run.sequence_id)
        if told is None or not base_len <= told < base_len + len(token_ids):
            return
        new = token_ids[told - base_len :]
        self._told_len[run.sequence_id] = told + len(new)
        self._pools.committed(run.sequence, told, new)

    def finished(self, run: SequenceRun) -> None:
        """Close a sequence's session."""
        self._pools.finished(run.sequence)
        self._told_len.pop(run.sequence_id, None)

    def take_events(self) -> tuple[SessionEvent, ...]:
        """Return, and forget, what links have to send."""
        return self._pools.take_events()

    def _limit(self, run: SequenceRun) -> None:
        if run.client_id is None:
            return
        asked = run.sequence.drafting.max_draft_tokens or self._max_draft_tokens
        most = min(asked, self._max_draft_tokens) if run.sequence.session_pool else 0
        self._post(Limit(run.client_id, most))
