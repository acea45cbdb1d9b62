"""A ``DraftService`` whose behaviour a test writes: proposals, silence, lies, hang-ups."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field

import grpc.aio

from paceline.codec import protocol_range
from paceline.v1 import draft_service_pb2, draft_service_pb2_grpc, types_pb2

Proposals = Iterable[draft_service_pb2.Proposal]
Propose = Callable[[int, list[int]], Proposals]
"""From a session id and its committed tokens to proposals."""


def nothing(session_id: int, committed: list[int]) -> Proposals:
    """Propose nothing."""
    return ()


def chain(session_id: int, base_len: int, token_ids: Iterable[int]) -> draft_service_pb2.Proposal:
    """Return a proposal with a single path."""
    tokens = list(token_ids)
    tree = types_pb2.TokenTree(token_ids=tokens, parents=range(len(tokens)))
    return draft_service_pb2.Proposal(session_id=session_id, base_len=base_len, tree=tree)


def oracle(sequence: list[int], depth: int) -> Propose:
    """Propose what ``sequence`` (prompt and output) really says next."""

    def propose(session_id: int, committed: list[int]) -> Proposals:
        following = sequence[len(committed) : len(committed) + depth]
        return [chain(session_id, len(committed), following)] if following else []

    return propose


@dataclass
class ScriptedDrafter(draft_service_pb2_grpc.DraftServiceServicer):
    """Answers every request message with ``propose`` of each session that it touches."""

    propose: Propose = nothing
    fingerprint: str = "any"
    protocol: types_pb2.ProtocolRange = field(default_factory=protocol_range)
    delay_seconds: float = 0.0
    hangs: bool = False
    """Accept everything and never answer or read again."""
    close_after: int | None = None
    """Close the stream after this many request messages."""
    knows_sessions: bool = True
    """False: every commit is answered with "unknown session"."""
    draining: bool = False
    """Say with every answer that the service is about to stop."""
    refusal: int = 0
    """Refuse every session for this cause, which may be one of a later release."""
    requests: list[draft_service_pb2.DraftRequest] = field(default_factory=list)
    responses: list[draft_service_pb2.DraftResponse] = field(default_factory=list)
    sessions: dict[int, list[int]] = field(default_factory=dict)
    closed: list[int] = field(default_factory=list)
    num_streams: int = 0

    async def GetCapabilities(
        self,
        request: draft_service_pb2.GetCapabilitiesRequest,
        context: grpc.aio.ServicerContext[
            draft_service_pb2.GetCapabilitiesRequest, draft_service_pb2.GetCapabilitiesResponse
        ],
    ) -> draft_service_pb2.GetCapabilitiesResponse:
        """State what the script says."""
        return draft_service_pb2.GetCapabilitiesResponse(
            name="scripted",
            drafter="scripted",
            tokenizer_fingerprint=self.fingerprint,
            protocol=self.protocol,
        )

    async def Draft(
        self,
        request_iterator: AsyncIterator[draft_service_pb2.DraftRequest],
        context: grpc.aio.ServicerContext[
            draft_service_pb2.DraftRequest, draft_service_pb2.DraftResponse
        ],
    ) -> AsyncIterator[draft_service_pb2.DraftResponse]:
        """Record every message and answer it as scripted."""
        self.num_streams += 1
        num_messages = 0
        async for message in request_iterator:
            self.requests.append(message)
            num_messages += 1
            if self.hangs:
                await asyncio.Event().wait()
            if self.close_after is not None and num_messages >= self.close_after:
                return
            response = self._answer(message)
            await asyncio.sleep(self.delay_seconds)
            self.responses.append(response)
            yield response

    def _answer(self, message: draft_service_pb2.DraftRequest) -> draft_service_pb2.DraftResponse:
        response = draft_service_pb2.DraftResponse(draining=self.draining)
        touched: list[int] = []
        for opened in message.opens:
            if self.refusal:
                response.refusals.append(
                    draft_service_pb2.SessionRefusal(
                        session_id=opened.session_id,
                        cause=self.refusal,  # type: ignore[arg-type]  # any number
                    )
                )
                continue
            self.sessions[opened.session_id] = list(opened.committed_token_ids)
            touched.append(opened.session_id)
        for commit in message.commits:
            committed = self.sessions.get(commit.session_id)
            if committed is None or not self.knows_sessions:
                response.unknown_session_ids.append(commit.session_id)
                continue
            committed[commit.base_len :] = commit.token_ids
            touched.append(commit.session_id)
        for closing in message.closes:
            self.sessions.pop(closing.session_id, None)
            self.closed.append(closing.session_id)
        for session_id in touched:
            committed = self.sessions.get(session_id)
            if committed is not None:
                response.proposals.extend(self.propose(session_id, committed))
        return response
