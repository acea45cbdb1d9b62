"""
Drafts with a small language model in ONNX, in passes shared by all sessions.

A call makes one pass for all sessions that extend their trees and reads a bounded part of prompts
besides, so that no prompt holds up other sessions. Nothing here waits or polls.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from draft_service.drafter import (
    Draft,
    DrafterInfo,
    DraftJob,
    DraftLimits,
    DraftSession,
    SessionSpec,
)
from draft_service.onnx_forward import RowSpan, forward_for
from draft_service.onnx_kv import KvSlots
from draft_service.onnx_manifest import OnnxModelFolder
from draft_service.onnx_runtime import Graph
from draft_service.onnx_session import ModelTokens, OnnxOptions, OnnxSession
from draft_service.onnx_signature import Signature
from paceline.errors import ConfigurationError

_MAX_SHORT_ROWS = 8
"""Spans of up to this many rows share a pass; longer ones, chunks of prompts, are read alone."""

_WARM_UP_LIMITS = DraftLimits(max_draft_tokens=8, max_tree_depth=8)
_WARM_UP_TOKENS = 40
_MAX_WARM_UP_CALLS = 8


@dataclass(frozen=True, slots=True)
class _Turn:
    """What one session does in a call."""

    session: OnnxSession
    limits: DraftLimits
    span: RowSpan


class OnnxDrafter:
    """Drafts with one model for many sessions."""

    def __init__(
        self, folder: OnnxModelFolder, graph: Graph, signature: Signature, options: OnnxOptions
    ) -> None:
        self._signature = signature
        self._options = options
        self._forward = forward_for(graph, signature)
        num_rows = self._probed_head(graph)
        self._tokens = ModelTokens(
            head_token_ids=_head_token_ids(folder, num_rows),
            num_embeddings=folder.num_embeddings or folder.num_token_ids,
            states_positions=signature.has_positions,
        )
        self._num_wanted_rows = min(num_rows, len(self._tokens.head_token_ids))
        self._passes = itertools.count(1)
        # Sessions are owned by the table; what they hold goes when the table forgets them.
        self._holders: weakref.WeakSet[OnnxSession] = weakref.WeakSet()
        self.info = DrafterInfo(
            kind="onnx",
            tokenizer_fingerprint=folder.tokenizer_fingerprint,
            vocab_size=folder.num_token_ids,
            uses_shared_noise=True,
            is_blocking=True,
        )

    def warm_up(self) -> None:
        """Run a session once through a chunk and a tree, so that all memory is laid out."""
        session = self.open(SessionSpec(committed_token_ids=[0] * _WARM_UP_TOKENS))
        for _ in range(_MAX_WARM_UP_CALLS):
            if not session.propose(_WARM_UP_LIMITS).may_grow:
                break
        session.close()

    def open(self, spec: SessionSpec) -> DraftSession:
        """Return a session; its text is read by and by, when it is asked."""
        return OnnxSession(spec, self._options, self._tokens, self._tick)

    def propose_batch(self, jobs: Sequence[DraftJob]) -> Sequence[Draft]:
        """Read some more for each session where that pays; return the newest trees."""
        sessions = [self._own(job.session) for job in jobs]
        for session in sessions:
            session.absorb_commits()
        turns, denied = self._turns(sessions, jobs)
        short = [turn for turn in turns if turn.span.num_rows <= _MAX_SHORT_ROWS]
        self._run(short)
        self._read_prompts([turn for turn in turns if turn.span.num_rows > _MAX_SHORT_ROWS])
        return [
            session.draft(job.limits, may_read=session not in denied)
            for session, job in zip(sessions, jobs, strict=True)
        ]

    def _read_prompts(self, turns: Sequence[_Turn]) -> None:
        """Read one call's worth of prompts; who has waited longest comes first."""
        room = self._options.chunk_tokens
        for turn in sorted(turns, key=lambda each: each.session.last_pass):
            if room <= 0:
                return
            self._run([turn])
            room -= turn.span.num_rows

    def _tick(self, job: DraftJob) -> Draft:
        return self.propose_batch([job])[0]

    def _turns(
        self, sessions: Sequence[OnnxSession], jobs: Sequence[DraftJob]
    ) -> tuple[list[_Turn], set[OnnxSession]]:
        """Return who reads what, and who gets no memory for it."""
        asking = set(sessions)
        turns: list[_Turn] = []
        denied: set[OnnxSession] = set()
        for session, job in zip(sessions, jobs, strict=True):
            if session.is_closed or session.has_answer:
                continue
            kv = session.kv or KvSlots(self._signature)
            span = session.next_rows(job.limits, kv, self._forward.max_branches)
            if span is None:
                continue
            if not self._make_room(kv.growth_for(span.num_rows), asking):
                denied.add(session)
                continue
            kv.reserve(span.num_rows)
            session.kv = kv
            self._holders.add(session)
            turns.append(_Turn(session, job.limits, span))
        return turns, denied

    def _run(self, turns: Sequence[_Turn]) -> None:
        if not turns:
            return
        number = next(self._passes)
        results = self._forward.run([turn.span for turn in turns])
        for turn, result in zip(turns, results, strict=True):
            logits = result.logits[:, : self._num_wanted_rows]
            turn.session.take_in(turn.span, logits, result.fresh)
            turn.session.last_pass = number

    def _make_room(self, num_slots: int, asking: set[OnnxSession]) -> bool:
        """Take memory from sessions that nobody asks for: closed ones, then the longest unused."""
        if num_slots == 0:
            return True
        held = {session: session.kv.num_slots for session in self._holders if session.kv}
        excess = sum(held.values()) + num_slots - self._options.max_kv_tokens
        idle = sorted((s for s in held if s not in asking), key=_usefulness)
        for session in idle:
            if excess <= 0:
                break
            excess -= held[session]
            session.forget()
        return excess <= 0

    def _own(self, session: DraftSession) -> OnnxSession:
        if not isinstance(session, OnnxSession):
            raise TypeError("the session was opened by another drafter")
        return session

    def _probed_head(self, graph: Graph) -> int:
        """Return the width of the logits; raises ``ConfigurationError`` if a pass fails."""
        kv = KvSlots(self._signature)
        kv.reserve(1)
        first = RowSpan(kv, [0, 0], [0, 1], (), (), (1,))
        try:
            [result] = self._forward.run([first])
            slots = kv.store(first.positions, result.fresh)
            [result] = self._forward.run([RowSpan(kv, [0], [2], slots, (), (0,))])
        except Exception as error:  # onnxruntime's own exceptions share no other ancestor
            cause = str(error).splitlines()[0]
            raise ConfigurationError(
                f"setting onnx_model: the graph fails on its first tokens: {cause}; "
                "export it again: python -m draft_service.export"
            ) from error
        return int(result.logits.shape[-1])


def _usefulness(session: OnnxSession) -> tuple[bool, int]:
    return not session.is_closed, session.last_pass


def _head_token_ids(
    folder: OnnxModelFolder, num_rows: int
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return what the rows of the logits stand for, padding of the vocabulary left out."""
    if folder.head_token_ids is None:
        return np.arange(min(num_rows, folder.num_token_ids), dtype=np.int64)
    if len(folder.head_token_ids) != num_rows:
        raise ConfigurationError(
            f"setting onnx_model: {folder.graph} gives {num_rows} logits and its vocabulary names "
            f"{len(folder.head_token_ids)}; export it again: python -m draft_service.export"
        )
    return folder.head_token_ids
