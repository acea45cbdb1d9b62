"""Whether a drafter fits a target: same protocol, same tokenizer."""

from __future__ import annotations

from typing import Final

from paceline.codec import protocol_range, speaks_our_protocol
from paceline.errors import Mismatch
from paceline.v1 import draft_service_pb2
from verify_service.targets.target import TargetInfo

ANY_TOKENIZER: Final = "any"


def check_drafter(
    pool: str, answer: draft_service_pb2.GetCapabilitiesResponse, info: TargetInfo
) -> None:
    """Raise ``Mismatch`` unless what a drafter says of itself fits the target."""
    if not speaks_our_protocol(answer.protocol):
        ours = protocol_range()
        raise Mismatch(
            f"draft pool {pool} speaks protocol {answer.protocol.min_version} to "
            f"{answer.protocol.max_version}, this verifier {ours.max_version}; upgrade one"
        )
    fingerprint = answer.tokenizer_fingerprint
    if fingerprint not in (ANY_TOKENIZER, info.tokenizer_fingerprint):
        raise Mismatch(
            f"draft pool {pool} uses tokenizer {fingerprint[:12]}, the target "
            f"{info.tokenizer_fingerprint[:12]}; export the drafter from this model"
        )
