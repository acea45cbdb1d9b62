"""Conversions between the draft service's values and its messages; protobuf stops here."""

from __future__ import annotations

from draft_service.drafter import Draft, DrafterInfo, DraftLimits, SessionSpec
from draft_service.link import Answer
from draft_service.sessions import RefusalCause, SessionRefused, TableLimits
from paceline.codec import protocol_range, tree_to_proto
from paceline.v1 import draft_service_pb2, types_pb2

_CAUSES: dict[RefusalCause, types_pb2.DraftFallback.ValueType] = {
    RefusalCause.TOO_LONG: types_pb2.DRAFT_FALLBACK_TOO_LONG,
    RefusalCause.LOAD: types_pb2.DRAFT_FALLBACK_LOAD,
    RefusalCause.MALFORMED: types_pb2.DRAFT_FALLBACK_MISMATCH,
    RefusalCause.DRAFTER_FAILED: types_pb2.DRAFT_FALLBACK_UNSUPPORTED,
}


def spec_from_proto(message: draft_service_pb2.SessionOpen) -> SessionSpec:
    """Return what a message tells about a sequence."""
    return SessionSpec(
        committed_token_ids=tuple(message.committed_token_ids),
        predicted_token_ids=tuple(message.predicted_token_ids),
        prompt_len=message.prompt_len,
        seed=message.seed,
        temperature=message.temperature,
        tenant=message.tenant,
    )


def limits_from_proto(message: draft_service_pb2.SessionOpen) -> DraftLimits:
    """Return the limits that a message asks for; zero stands for the service's own."""
    return DraftLimits(message.max_draft_tokens, message.max_tree_depth)


def answer_to_proto(answer: Answer) -> draft_service_pb2.DraftResponse:
    """Return the message of an answer."""
    return draft_service_pb2.DraftResponse(
        proposals=[_proposal(session_id, draft) for session_id, draft in answer.drafts.items()],
        unknown_session_ids=answer.unknown_session_ids,
        refusals=[_refusal(session_id, why) for session_id, why in answer.refusals.items()],
        draining=answer.is_draining,
    )


def capabilities_to_proto(
    name: str, version: str, info: DrafterInfo, limits: TableLimits
) -> draft_service_pb2.GetCapabilitiesResponse:
    """Return the message that describes the service."""
    return draft_service_pb2.GetCapabilitiesResponse(
        name=name,
        version=version,
        drafter=info.kind,
        tokenizer_fingerprint=info.tokenizer_fingerprint,
        vocab_size=info.vocab_size,
        max_draft_tokens=limits.max_draft_tokens,
        max_tree_depth=limits.max_tree_depth,
        max_session_tokens=limits.max_session_tokens,
        max_sessions=limits.max_sessions,
        protocol=protocol_range(),
        wants_features=info.wants_features,
        uses_shared_noise=info.uses_shared_noise,
    )


def _proposal(session_id: int, draft: Draft) -> draft_service_pb2.Proposal:
    return draft_service_pb2.Proposal(
        session_id=session_id, base_len=draft.base_len, tree=tree_to_proto(draft.tree)
    )


def _refusal(session_id: int, refusal: SessionRefused) -> draft_service_pb2.SessionRefusal:
    return draft_service_pb2.SessionRefusal(
        session_id=session_id, cause=_CAUSES[refusal.cause], detail=refusal.detail
    )
