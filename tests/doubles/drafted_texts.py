"""A few requests of every kind on a step engine, drafted by one who knows what will come."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from paceline.tree import TokenTree
from tests.doubles.engine_harness import POOL, ProposeTree
from tests.doubles.small_engine import ids, run
from tests.doubles.tiny_models import VOCAB_SIZE
from verify_service.engine.draft_selection import BudgetMode
from verify_service.engine.sampling import SamplingParams, TokenLimits
from verify_service.engine.sequence import Request
from verify_service.engine.step_engine import EngineConfig, StepEngine
from verify_service.targets.target import TargetModel

CONFIG = EngineConfig(
    num_blocks=48,
    block_size=4,
    max_running=3,
    max_prefill_rows=9,
    max_draft_tokens=10,
    budget=BudgetMode.FIXED,
    draft_pools=(POOL,),
)
REQUESTS = [
    Request(1, (5, 9, 5, 7), limits=TokenLimits(24)),
    Request(2, tuple(range(20, 37)), limits=TokenLimits(24), sampling=SamplingParams(0.9, seed=4)),
    Request(
        3,
        (90, 91, 92),
        limits=TokenLimits(24),
        sampling=SamplingParams(0.7, top_p=0.9, seed=2**63),
    ),
    Request(
        4,
        (7, 7, 8, 9, 9, 9),
        limits=TokenLimits(24, min_tokens=4, stop_token_ids=frozenset({3, 5})),
        sampling=SamplingParams(
            0.8, top_k=20, min_p=0.02, repetition_penalty=1.2, frequency_penalty=0.3, seed=9
        ),
        num_logprobs=2,
    ),
]


def oracle(texts: dict[int, list[int]]) -> ProposeTree:
    """Propose what will come, each token beside a wrong one that stands first."""
    whole = [(*each.prompt_token_ids, *texts[each.sequence_id]) for each in REQUESTS]

    def propose(committed: SequenceOf[int]) -> TokenTree:
        done = len(committed)
        text = next(text for text in whole if text[:done] == tuple(committed))
        truth = text[done : done + 4]
        token_ids = [t for token in truth for t in ((token + 1) % VOCAB_SIZE, token)]
        parents = [2 * depth for depth in range(len(truth)) for _ in range(2)]
        return TokenTree(tuple(token_ids), tuple(parents))

    return propose


def texts_of(target: TargetModel, propose: ProposeTree | None = None) -> dict[int, list[int]]:
    """Serve all requests and return their token ids."""
    return ids(run(REQUESTS, StepEngine(target, CONFIG), propose))
