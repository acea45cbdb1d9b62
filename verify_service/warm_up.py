"""
Real steps of every size before the verifier says that it is ready: kernels, caches and the cost
table know each shape before the first user comes.
"""

from __future__ import annotations

from paceline.tree import TokenTree
from verify_service.engine.goodput import GainMeter
from verify_service.engine.sampling import TokenLimits
from verify_service.engine.sequence import Request
from verify_service.engine.step_engine import StepEngine
from verify_service.engine.steps import CancelSequence, Submit, TreeFact
from verify_service.targets.target import TargetInfo

WARM_UP_ID = 0
NUM_PASSES = 3
PROMPT_TOKENS = 32
_SIZES = (0, 1, 2, 3, 5, 7, 11, 15, 17, 23, 31, 47, 63)


def warm_up(engine: StepEngine) -> None:
    """Prefill a prompt, then verify chains of growing length; learn what each costs."""
    length, sizes = _that_fit(engine)
    if not sizes:
        return
    prompt = tuple(index % engine.info.num_token_ids for index in range(length))
    request = Request(
        WARM_UP_ID,
        prompt,
        limits=TokenLimits(max_tokens=_most_tokens(sizes) + 1),
        cache_salt="warm-up",
        lockstep=True,
    )
    engine.apply(Submit(request))
    while engine.has_work():
        engine.step()
    committed = _verify_chains(engine, sizes, length)
    engine.costs.forget()
    with engine.costs.seeding():
        for _ in range(NUM_PASSES - 1):
            committed = _verify_chains(engine, sizes, committed)
    engine.apply(CancelSequence(WARM_UP_ID))
    engine.step()
    engine.forget_cached_prefixes()
    engine.gain = GainMeter()


def _verify_chains(engine: StepEngine, sizes: list[int], committed: int) -> int:
    for size in sizes:
        # One repeated token: hardly ever what the model says, so that lengths stay in step.
        tree = TokenTree.chain((_unlikely(engine.info, committed),) * size)
        engine.apply(TreeFact(WARM_UP_ID, committed, tree))
        for step in engine.step().steps:
            committed += len(step.token_ids)
    engine.settle()
    return committed


def _unlikely(info: TargetInfo, committed: int) -> int:
    return (committed * 7919) % info.num_token_ids


def _that_fit(engine: StepEngine) -> tuple[int, list[int]]:
    """Return the length of the prompt and the sizes of chains for which there is room, if any."""
    most = engine.config.max_draft_tokens
    sizes = sorted({min(size, most) for size in _SIZES} | {most})
    capacity = engine.blocks.num_blocks * engine.blocks.block_size
    room = min(engine.info.context_length, capacity)
    while sizes and room <= _most_tokens(sizes):
        sizes.pop()
    return min(PROMPT_TOKENS, room - _most_tokens(sizes)), sizes


def _most_tokens(sizes: list[int]) -> int:
    """Return how many tokens come if all of every chain is accepted, those of a last step too."""
    return NUM_PASSES * sum(size + 1 for size in sizes) + max(sizes, default=0) + 2
