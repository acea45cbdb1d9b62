"""Sampling parameters to and from their message. Ranges are checked here, capabilities are not."""

from __future__ import annotations

from typing import Final

from gateway.field_checks import check_at_most, check_enum, check_range
from gateway.generation import Sampling, SamplingOverrides, VerificationRule
from paceline.v1 import types_pb2

MAX_LOGIT_BIASES: Final = 1024
_SCALARS: Final = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
)


def sampling_to_proto(sampling: Sampling) -> types_pb2.SamplingParams:
    """Return the message with every field set."""
    return types_pb2.SamplingParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        logit_bias=sampling.logit_bias,
        seed=sampling.seed,
        verification_rule=types_pb2.VerificationRule.ValueType(sampling.verification_rule),
    )


def overrides_from_proto(message: types_pb2.SamplingParams) -> SamplingOverrides:
    """Return the fields that are set; raises ``InvalidRequest`` naming one out of range."""
    given = {name: getattr(message, name) for name in _SCALARS if message.HasField(name)}
    overrides = SamplingOverrides(
        **given,
        logit_bias=dict(message.logit_bias) if message.logit_bias else None,
        verification_rule=check_enum(
            "sampling.verification_rule", message.verification_rule, VerificationRule
        ),
    )
    _check(overrides)
    return overrides


def _check(given: SamplingOverrides) -> None:
    check_range("sampling.temperature", given.temperature, "[0, 10]")
    check_range("sampling.top_p", given.top_p, "(0, 1]")
    check_range("sampling.min_p", given.min_p, "[0, 1)")
    check_range("sampling.repetition_penalty", given.repetition_penalty, "[0.001, 10]")
    check_range("sampling.presence_penalty", given.presence_penalty, "[-2, 2]")
    check_range("sampling.frequency_penalty", given.frequency_penalty, "[-2, 2]")
    biases = given.logit_bias or {}
    check_at_most("sampling.logit_bias", len(biases), MAX_LOGIT_BIASES, "entries")
    for token_id, bias in biases.items():
        check_range(f"sampling.logit_bias[{token_id}]", bias, "[-100, 100]")
