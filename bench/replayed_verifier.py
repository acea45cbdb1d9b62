"""
A verifier whose target says what was recorded: steps of a fixed time, real gRPC to a real drafter.

Of each tree it takes the likeliest nodes, as many as told, and walks them along the recording. It
delays what it sends and receives, as a network would.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc.aio

from bench.recordings import Recording
from paceline.channels import open_link
from paceline.codec import tree_from_proto
from paceline.tree import TokenTree
from paceline.v1.draft_service_pb2 import (
    DraftRequest,
    DraftResponse,
    Proposal,
    SessionClose,
    SessionCommit,
    SessionOpen,
)
from paceline.v1.draft_service_pb2_grpc import DraftServiceStub
from verify_service.engine.draft_budget import candidates, tree_of
from verify_service.engine.draft_trie import DraftTrie


@dataclass(frozen=True, slots=True)
class Pace:
    """How the played verifier works."""

    step_seconds: float
    one_way_seconds: float = 0.0
    max_nodes: int = 8
    max_depth: int = 12
    warm_up_steps: int = 1
    """Steps at the start of each session that are not counted: its prompt is being read."""


@dataclass(slots=True)
class Tally:
    """What the steps of one or more sessions were like."""

    num_steps: int = 0
    num_ready: int = 0
    """Steps that began with at least one node at hand."""
    num_tokens: int = 0
    num_drafted: int = 0
    behind_seconds: list[float] = field(default_factory=list)
    """How long after each commit its first node came, 0 where one was there already."""

    @property
    def ready_rate(self) -> float:
        """The part of the steps whose tree was there as they began."""
        return self.num_ready / max(self.num_steps, 1)

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens per step."""
        return self.num_tokens / max(self.num_steps, 1)


class _Session:
    """One recording on its way through the steps."""

    def __init__(self, session_id: int, recording: Recording) -> None:
        self.session_id = session_id
        self.recording = recording
        self.committed = list(recording.prompt_token_ids)
        self.trie = DraftTrie()
        self._rest = list(recording.output_token_ids)
        self._waits_since: float | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the whole recording was said."""
        return not self._rest

    def opening(self) -> SessionOpen:
        """Return the message that opens the session."""
        return SessionOpen(
            session_id=self.session_id,
            committed_token_ids=self.committed,
            prompt_len=len(self.recording.prompt_token_ids),
            seed=self.recording.seed,
            temperature=self.recording.temperature,
        )

    def take(self, proposal: Proposal, tally: Tally) -> None:
        """Merge a tree that has arrived."""
        self.trie.merge(proposal.base_len, tree_from_proto(proposal.tree), self.committed)
        if self._waits_since is not None and self.trie.num_nodes:
            tally.behind_seconds.append(time.perf_counter() - self._waits_since)
            self._waits_since = None

    def chosen(self, pace: Pace) -> TokenTree:
        """Return the nodes that a step verifies."""
        return tree_of(
            candidates(self.trie, math.exp, max_nodes=pace.max_nodes, max_depth=pace.max_depth)
        )

    def commit(self, tree: TokenTree, tally: Tally) -> SessionCommit:
        """Accept what the recording holds of a tree, and one token more."""
        num_accepted = tree.num_held(self._rest[:-1])
        said, self._rest = self._rest[: num_accepted + 1], self._rest[num_accepted + 1 :]
        message = SessionCommit(
            session_id=self.session_id, base_len=len(self.committed), token_ids=said
        )
        self.committed += said
        self.trie.advance(said)
        self._note(tree, said, tally)
        return message

    def _note(self, tree: TokenTree, said: Sequence[int], tally: Tally) -> None:
        tally.num_steps += 1
        tally.num_ready += tree.num_nodes > 0
        tally.num_tokens += len(said)
        tally.num_drafted += tree.num_nodes
        self._waits_since = None if self.trie.num_nodes else time.perf_counter()
        if self.trie.num_nodes:
            tally.behind_seconds.append(0.0)


class ReplayedVerifier:
    """One stream to a draft service, with one session for each recording."""

    def __init__(self, recordings: Sequence[Recording], pace: Pace) -> None:
        self._pace = pace
        self._sessions = {
            number: _Session(number, recording) for number, recording in enumerate(recordings, 1)
        }
        self._tallies = {number: Tally() for number in self._sessions}
        self._warming = Tally()
        self._sending: asyncio.Task[None] | None = None
        self._order = asyncio.Lock()

    async def run(self, address: str) -> list[Tally]:
        """Replay all recordings side by side; return one tally for each, in order."""
        async with open_link(address) as channel:
            call = DraftServiceStub(channel).Draft()
            reader = asyncio.create_task(self._read(call))
            try:
                await call.write(
                    DraftRequest(opens=[each.opening() for each in self._sessions.values()])
                )
                await self._steps(call)
            finally:
                reader.cancel()
                call.cancel()
                await asyncio.gather(reader, return_exceptions=True)
        return list(self._tallies.values())

    async def _steps(self, call: grpc.aio.StreamStreamCall[DraftRequest, DraftResponse]) -> None:
        number, next_step = 0, time.perf_counter() + self._pace.step_seconds
        while running := [each for each in self._sessions.values() if not each.has_ended]:
            trees = {each.session_id: each.chosen(self._pace) for each in running}
            await asyncio.sleep(max(next_step - time.perf_counter(), 0.0))
            next_step = time.perf_counter() + self._pace.step_seconds
            is_counted = number >= self._pace.warm_up_steps
            commits = [
                each.commit(
                    trees[each.session_id],
                    self._tallies[each.session_id] if is_counted else self._warming,
                )
                for each in running
            ]
            closes = [SessionClose(session_id=e.session_id) for e in running if e.has_ended]
            self._send(call, DraftRequest(commits=commits, closes=closes))
            number += 1
        if self._sending is not None:
            await self._sending

    def _send(
        self, call: grpc.aio.StreamStreamCall[DraftRequest, DraftResponse], message: DraftRequest
    ) -> None:
        async def later() -> None:
            await asyncio.sleep(self._pace.one_way_seconds)
            async with self._order:  # a call takes one message at a time
                await call.write(message)

        self._sending = asyncio.create_task(later())

    async def _read(self, call: grpc.aio.StreamStreamCall[DraftRequest, DraftResponse]) -> None:
        loop = asyncio.get_running_loop()
        async for message in call:
            loop.call_later(self._pace.one_way_seconds, self._take, message)

    def _take(self, message: DraftResponse) -> None:
        for proposal in message.proposals:
            session = self._sessions[proposal.session_id]
            session.take(proposal, self._tallies[proposal.session_id])
