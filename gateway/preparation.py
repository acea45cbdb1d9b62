"""A request made fit for one model: tokenized, defaults resolved, checked against what it can."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gateway.field_checks import check_at_most, check_token_ids, refusal
from gateway.generation import (
    ModelInfo,
    Sampling,
    SequenceRequest,
    StructuredOutput,
    TokenLimits,
)
from gateway.generation_request import (
    ChatPrompt,
    GenerationRequest,
    Prompt,
    TextPrompt,
    TokenPrompt,
)
from gateway.tokenization import PromptTokenizer
from paceline.errors import NotFound
from paceline.noise import derive_seed


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What the gateway allows, whatever the model can."""

    default_max_tokens: int
    max_prompt_characters: int
    max_bytes_per_token: int
    """A text that would need tokens longer than this on average to fit is not tokenized."""


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """What the verifiers are asked for."""

    sampling: Sampling
    """As echoed: the seed is the request's, from which each output's is derived."""
    prompt_tokens: int
    sequences: tuple[SequenceRequest, ...]
    """One per output."""
    stop_token_ids: frozenset[int]
    """All tokens that end an output, the model's own included."""


async def prepare(
    request: GenerationRequest,
    info: ModelInfo,
    *,
    tokenizer: PromptTokenizer,
    limits: RequestLimits,
    deadline: float,
) -> PreparedRequest:
    """Return what to ask a verifier for; raises ``InvalidRequest`` naming the field at fault."""
    sampling = _sampling(request, info)
    _check_pool(request, info)
    check_prompt_size(request.prompt, limits, info.context_length)
    prompt_token_ids = await tokenizer.encode(request.prompt)
    _check_prompt(request, prompt_token_ids, info)
    sequence = SequenceRequest(
        prompt_token_ids=prompt_token_ids,
        emitted_token_ids=request.resume_token_ids,
        sampling=sampling,
        limits=_token_limits(request, len(prompt_token_ids), info, limits),
        priority=request.priority,
        tenant=request.tenant,
        cache_salt=request.cache_salt,
        predicted_token_ids=await _predicted(request, tokenizer, info, limits),
        num_logprobs=_num_logprobs(request, info),
        structured_output=_structured_output(request, info),
        client_request_id=request.request_id,
        trace=request.trace,
        deadline=deadline,
    )
    own_stops = frozenset() if request.stopping.ignore_eos else info.eos_token_ids
    return PreparedRequest(
        sampling=sampling,
        prompt_tokens=len(prompt_token_ids),
        sequences=tuple(_nth(sequence, index) for index in range(request.num_outputs)),
        stop_token_ids=own_stops | frozenset(request.stopping.stop_token_ids),
    )


def _nth(sequence: SequenceRequest, index: int) -> SequenceRequest:
    seed = derive_seed(sequence.sampling.seed, index)
    return replace(sequence, sampling=replace(sequence.sampling, seed=seed))


def _sampling(request: GenerationRequest, info: ModelInfo) -> Sampling:
    sampling = request.sampling.over(info.default_sampling)
    if request.sampling.seed is None:
        sampling = replace(sampling, seed=secrets.randbits(64))
    can, remedy = info.capabilities, f"leave it unset for model {info.model}"
    # A resume brings the seed that was echoed, and asks for no more than a continuation.
    is_fixed = request.sampling.seed is not None and not request.resume_token_ids
    if is_fixed and sampling.temperature and not can.seeded_invariance:
        raise refusal("sampling.seed", "fixes no output on this verifier's engine", remedy)
    if sampling.verification_rule not in can.verification_rules:
        name = sampling.verification_rule.name
        raise refusal(
            "sampling.verification_rule", f"{name} is not supported by the verifier", remedy
        )
    if sampling.has_penalties and not can.penalties:
        raise refusal(
            _first_penalty(sampling), "penalties are not supported by the verifier", remedy
        )
    if sampling.logit_bias and not can.logit_bias:
        raise refusal("sampling.logit_bias", "is not supported by the verifier", remedy)
    check_token_ids("sampling.logit_bias", sampling.logit_bias, info.vocab_size)
    return sampling


def _first_penalty(sampling: Sampling) -> str:
    if sampling.repetition_penalty != 1.0:
        return "sampling.repetition_penalty"
    if sampling.presence_penalty != 0.0:
        return "sampling.presence_penalty"
    return "sampling.frequency_penalty"


def _check_pool(request: GenerationRequest, info: ModelInfo) -> None:
    name = request.drafting.pool
    if name and info.pool(name) is None:
        available = ", ".join(pool.name for pool in info.draft_pools) or "none"
        raise NotFound(
            f"drafting.pool: there is no {name!r}; available: {available}",
            field="drafting.pool",
            reason="POOL_NOT_FOUND",
        )


def check_prompt_size(prompt: Prompt, limits: RequestLimits, context_length: int) -> None:
    """Refuse a text that is too long to be tokenized at all, or that cannot fit the context."""
    match prompt:
        case TextPrompt(text):
            texts: Sequence[str] = (text,)
        case ChatPrompt(messages):
            texts = [message.content for message in messages]
        case TokenPrompt():
            texts = ()
    _check_size(prompt_field(prompt), texts, limits, context_length)


def _check_size(
    field: str, texts: Sequence[str], limits: RequestLimits, context_length: int
) -> None:
    num_characters = sum(map(len, texts))
    check_at_most(field, num_characters, limits.max_prompt_characters, "characters")
    most = context_length * limits.max_bytes_per_token
    if 4 * num_characters <= most:
        return
    num_bytes = sum(len(text.encode()) for text in texts)
    if num_bytes > most:
        raise refusal(
            field,
            f"{num_bytes} bytes, more than a context of {context_length} tokens can hold "
            f"(at most {most})",
            "shorten the text",
        )


def prompt_field(prompt: Prompt) -> str:
    """Return the name of the request field that holds the prompt."""
    match prompt:
        case TextPrompt():
            return "text"
        case TokenPrompt():
            return "token_ids"
        case ChatPrompt():
            return "chat"


def _check_prompt(
    request: GenerationRequest, prompt_token_ids: tuple[int, ...], info: ModelInfo
) -> None:
    field = prompt_field(request.prompt)
    if not prompt_token_ids:
        raise refusal(field, "the prompt holds no token", "send at least one")
    check_token_ids(field, prompt_token_ids, info.vocab_size)
    check_token_ids("resume_token_ids", request.resume_token_ids, info.vocab_size)
    check_token_ids("stopping.stop_token_ids", request.stopping.stop_token_ids, info.vocab_size)
    if len(prompt_token_ids) + 1 > info.context_length:
        raise refusal(
            field,
            f"the prompt holds {len(prompt_token_ids)} tokens, at most {info.context_length - 1} "
            f"leave room for an answer in the context of {info.context_length}",
            "shorten the prompt",
        )


def _token_limits(
    request: GenerationRequest, prompt_tokens: int, info: ModelInfo, limits: RequestLimits
) -> TokenLimits:
    given, room = request.stopping, info.context_length - prompt_tokens
    if given.min_tokens > room:
        raise refusal(
            "stopping.min_tokens", f"{given.min_tokens} is not in [0, {room}]", "choose less"
        )
    wanted = given.max_tokens
    if wanted is None:
        wanted = max(limits.default_max_tokens, given.min_tokens)
    max_tokens = min(wanted, room)
    if len(request.resume_token_ids) > max_tokens:
        raise refusal(
            "resume_token_ids",
            f"{len(request.resume_token_ids)} tokens, more than the limit of {max_tokens}",
            "send the ids and the limits of the original request",
        )
    return TokenLimits(max_tokens, given.min_tokens, given.stop_token_ids, given.ignore_eos)


def _num_logprobs(request: GenerationRequest, info: ModelInfo) -> int | None:
    wanted, limit = request.output.num_logprobs, info.capabilities.max_logprobs
    if wanted is None:
        return None
    if limit == 0:
        raise refusal("output.num_logprobs", "is not supported by the verifier", "leave it unset")
    check_at_most("output.num_logprobs", wanted, limit, "log-probabilities")
    return wanted


def _structured_output(request: GenerationRequest, info: ModelInfo) -> StructuredOutput | None:
    wanted = request.structured_output
    if wanted is not None and not info.capabilities.structured_output:
        raise refusal("structured_output", "is not supported by the verifier", "leave it unset")
    return wanted


async def _predicted(
    request: GenerationRequest,
    tokenizer: PromptTokenizer,
    info: ModelInfo,
    limits: RequestLimits,
) -> tuple[int, ...]:
    if not request.predicted_output:
        return ()
    _check_size("predicted_output", (request.predicted_output,), limits, info.context_length)
    token_ids = await tokenizer.encode_text(request.predicted_output, add_special_tokens=False)
    return token_ids[: info.context_length]
