"""What a verifier accepts: ranges of parameters and lengths. Nothing is ignored silently."""

from __future__ import annotations

import math
from dataclasses import dataclass

from paceline.errors import InvalidRequest
from verify_service.engine.sampling import SamplingParams
from verify_service.engine.sequence import Request
from verify_service.targets.target import TargetInfo

MAX_LOGPROBS = 20
MAX_STOP_TOKEN_IDS = 256
MAX_LOGIT_BIASES = 1024


@dataclass(frozen=True, slots=True)
class _Range:
    name: str
    low: float
    high: float
    open_low: bool = False
    open_high: bool = False

    def check(self, value: float) -> None:
        above = value > self.low if self.open_low else value >= self.low
        below = value < self.high if self.open_high else value <= self.high
        if not (math.isfinite(value) and above and below):
            left, right = "(" if self.open_low else "[", ")" if self.open_high else "]"
            raise InvalidRequest(
                f"sampling.{self.name} is {value:g}; "
                f"allowed: {left}{self.low:g}, {self.high:g}{right}",
                field=f"sampling.{self.name}",
            )


_RANGES = (
    _Range("temperature", 0, 10),
    _Range("top_p", 0, 1, open_low=True),
    _Range("min_p", 0, 1, open_high=True),
    _Range("repetition_penalty", 0.001, 10),
    _Range("presence_penalty", -2, 2),
    _Range("frequency_penalty", -2, 2),
)


def check_sampling(params: SamplingParams, info: TargetInfo) -> None:
    """Raise ``InvalidRequest`` naming the parameter that is out of range."""
    for limit in _RANGES:
        limit.check(getattr(params, limit.name))
    if len(params.logit_bias) > MAX_LOGIT_BIASES:
        raise InvalidRequest(
            f"sampling.logit_bias has {len(params.logit_bias)} entries; at most {MAX_LOGIT_BIASES}",
            field="sampling.logit_bias",
        )
    for token_id, bias in params.logit_bias.items():
        if not -100 <= bias <= 100:
            raise InvalidRequest(
                f"sampling.logit_bias of token {token_id} is {bias:g}; allowed: [-100, 100]",
                field="sampling.logit_bias",
            )
    _check_ids("sampling.logit_bias", tuple(params.logit_bias), info.num_token_ids)


def check_request(request: Request, info: TargetInfo) -> None:
    """Raise ``InvalidRequest`` naming the field that cannot be served."""
    if not request.prompt_token_ids:
        raise InvalidRequest("prompt_token_ids is empty", field="prompt_token_ids")
    used = len(request.prompt_token_ids) + len(request.emitted_token_ids)
    if len(request.prompt_token_ids) >= info.context_length or used > info.context_length:
        raise InvalidRequest(
            f"the prompt has {len(request.prompt_token_ids)} tokens; the context holds "
            f"{info.context_length}, one of them for output",
            field="prompt_token_ids",
            reason="PROMPT_TOO_LONG",
        )
    for field, token_ids in (
        ("prompt_token_ids", request.prompt_token_ids),
        ("emitted_token_ids", request.emitted_token_ids),
        ("limits.stop_token_ids", tuple(request.limits.stop_token_ids)),
        ("predicted_token_ids", request.predicted_token_ids),
    ):
        _check_ids(field, token_ids, info.num_token_ids)
    if len(request.predicted_token_ids) > info.context_length:
        raise InvalidRequest(
            f"predicted_token_ids has {len(request.predicted_token_ids)} tokens; the context "
            f"holds {info.context_length}",
            field="predicted_token_ids",
        )
    if request.limits.max_tokens < 1:
        raise InvalidRequest("limits.max_tokens is 0; at least 1", field="limits.max_tokens")
    if len(request.limits.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        raise InvalidRequest(
            f"limits.stop_token_ids: at most {MAX_STOP_TOKEN_IDS}", field="limits.stop_token_ids"
        )
    if request.num_logprobs is not None and request.num_logprobs > MAX_LOGPROBS:
        raise InvalidRequest(
            f"num_logprobs is {request.num_logprobs}; at most {MAX_LOGPROBS}", field="num_logprobs"
        )


def _check_ids(field: str, token_ids: tuple[int, ...], num_token_ids: int) -> None:
    if token_ids and max(token_ids) >= num_token_ids:
        raise InvalidRequest(
            f"{field} holds {max(token_ids)}; the model's ids are below {num_token_ids}",
            field=field,
            reason="TOKEN_OUT_OF_RANGE",
        )
