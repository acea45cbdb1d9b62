"""
How nearly two tokens tied at the place where two answers part.

The gateway is asked to go on, without drafts, after the part that both answers share, and to tell
the log-probabilities there: what the target itself says on that prefix, teacher-forced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from paceline.async_client import AsyncClient
from paceline.errors import InvalidRequest
from paceline.events import Generation
from paceline.generation_request import GenerationOptions
from paceline.noise_keys import token_noise

NUM_LOGPROBS: Final = (20, 5, 1)
"""Asked for in turn until the verifier allows as many."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a drafted answer parts from the plain one."""

    position: int
    """Index within the answer."""
    plain_token_id: int | None
    """None: the answer had ended."""
    drafted_token_id: int | None
    gap: float | None = None
    """By how much the target scores the other token below its choice; None: not known."""
    cause: str = ""
    """Why the gap is not known."""


def first_difference(plain: Sequence[int], drafted: Sequence[int]) -> Difference | None:
    """Return where two answers part; None: nowhere."""
    for position in range(max(len(plain), len(drafted))):
        ours = plain[position] if position < len(plain) else None
        theirs = drafted[position] if position < len(drafted) else None
        if ours != theirs:
            return Difference(position, ours, theirs)
    return None


async def scored(
    client: AsyncClient,
    prompt: str,
    plain: Generation,
    found: Difference,
    options: GenerationOptions,
) -> Difference:
    """Return the difference with its gap, or with why there is none."""
    if found.plain_token_id is None or found.drafted_token_id is None:
        return _unscored(found, "one of the answers ends there")
    answer = await _one_more_token(client, prompt, plain, found, options)
    if answer is None or not answer.outputs[0].logprobs:
        return _unscored(found, "the verifier offers no log-probabilities")
    if answer.token_ids[:1] != (found.plain_token_id,):
        return _unscored(found, "the target chose yet another token when asked again")
    logprobs = dict(answer.outputs[0].logprobs[0].top)
    logprobs[found.plain_token_id] = answer.outputs[0].logprobs[0].logprob
    if found.drafted_token_id not in logprobs:
        return _unscored(found, f"it is not among the target's {len(logprobs)} best tokens there")
    place = plain.usage.prompt_tokens + found.position
    scores = [
        _score(logprobs[token_id], plain, place, token_id)
        for token_id in (found.plain_token_id, found.drafted_token_id)
    ]
    return Difference(
        found.position, found.plain_token_id, found.drafted_token_id, gap=scores[0] - scores[1]
    )


async def _one_more_token(
    client: AsyncClient,
    prompt: str,
    plain: Generation,
    found: Difference,
    options: GenerationOptions,
) -> Generation | None:
    for num_logprobs in NUM_LOGPROBS:
        request: GenerationOptions = {
            **options,
            "seed": plain.seed,
            "drafting": "off",
            "max_tokens": found.position + 1,
            "resume_token_ids": plain.token_ids[: found.position],
            "num_logprobs": num_logprobs,
            "return_token_ids": True,
        }
        try:
            return await client.generate(prompt, **request)
        except InvalidRequest as error:
            if error.field != "output.num_logprobs":
                raise
    return None


def _score(logprob: float, plain: Generation, place: int, token_id: int) -> float:
    """Return what the target maximises: log p, with shared noise where it samples."""
    temperature = plain.sampling.temperature
    if not temperature:
        return logprob
    return logprob / temperature + token_noise(plain.seed, place, token_id)


def _unscored(found: Difference, cause: str) -> Difference:
    return Difference(found.position, found.plain_token_id, found.drafted_token_id, cause=cause)
