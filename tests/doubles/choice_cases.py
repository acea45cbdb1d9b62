"""Rows to choose tokens for, with every option that a device applies by itself."""

from __future__ import annotations

from dataclasses import replace

from paceline.tree import TokenTree
from verify_service.engine.draft_selection import Selected
from verify_service.engine.sampling import SamplingParams, TokenLimits
from verify_service.engine.scheduler import Turn
from verify_service.engine.sequence import Drafting, Request, Sequence

TREE = TokenTree((5, 6, 7, 8), (0, 0, 1, 3))
SAMPLED = SamplingParams(temperature=0.8)
OPTIONS = [
    SamplingParams(),
    SAMPLED,
    replace(SAMPLED, top_k=40),
    replace(SAMPLED, top_p=0.9),
    replace(SAMPLED, top_k=50, top_p=0.95, min_p=0.01),
    replace(SAMPLED, repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.2),
    replace(SAMPLED, logit_bias={3: 4.0, 9: -100.0}),
]


def selected(seed: int, params: SamplingParams) -> Selected:
    """Return a decoding sequence with a tree; the seed is its number too."""
    request = Request(
        seed,
        (3, 4, 5, 4),
        (5, 6),
        sampling=replace(params, seed=seed),
        limits=TokenLimits(max_tokens=90, min_tokens=3, stop_token_ids=frozenset({2})),
        num_logprobs=seed % 3 or None,
    )
    return Selected(Turn(Sequence(request, Drafting(), 0.0, 8), 1, is_decode=True), TREE)
