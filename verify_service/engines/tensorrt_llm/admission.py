"""
What this engine serves exactly as asked. Anything else is refused by name, never approximated.

Every step is a speculative one here (an empty chain is padded), and under speculation the package
ignores, asserts on or crashes with the options below, depending on the release.
"""

from __future__ import annotations

from paceline.errors import InvalidRequest
from verify_service.engine.sampling import Rule, SamplingParams
from verify_service.engine.sequence import Request

REMEDY = "use a verifier with the step engine"


def check(request: Request) -> None:
    """Raise ``InvalidRequest`` naming the first option that cannot be served."""
    sampling = request.sampling
    refusals = {
        "sampling.repetition_penalty": sampling.repetition_penalty != 1.0,
        "sampling.presence_penalty": sampling.presence_penalty != 0.0,
        "sampling.frequency_penalty": sampling.frequency_penalty != 0.0,
        "sampling.logit_bias": bool(sampling.logit_bias),
        "sampling.min_p": sampling.min_p != 0.0,
        "sampling.verification_rule": sampling.rule is not Rule.SAMPLE_AND_MATCH,
        "limits.min_tokens": request.limits.min_tokens > 0,
        "num_logprobs": request.num_logprobs is not None,
        "structured_output": request.constraint is not None,
    }
    for field, is_asked in refusals.items():
        if is_asked:
            raise InvalidRequest(
                f"{field} is not supported by the tensorrt-llm engine; leave it unset or {REMEDY}",
                field=field,
                reason="UNSUPPORTED",
            )


def servable_defaults(defaults: SamplingParams) -> tuple[SamplingParams, list[str]]:
    """
    Return a model's own defaults without what cannot be served, and the names left out.

    What remains is published by ``GetModelInfo``, so a caller can see what it gets.
    """
    kept = SamplingParams(
        temperature=defaults.temperature, top_k=defaults.top_k, top_p=defaults.top_p
    )
    names = ("min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
    dropped = [name for name in names if getattr(defaults, name) != getattr(kept, name)]
    return kept, dropped
