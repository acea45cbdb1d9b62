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
_SIZES = (0, 1, 2, 3, 5, 7, 11, 15, 17, 23, 31, 47, 63)


def warm_up(engine: StepEngine) -> None:
    """Prefill a prompt, then verify chains of growing length; learn what each costs."""
    most = engine.config.max_draft_tokens
    sizes = sorted({min(size, most) for size in _SIZES} | {most})
    length = _prompt_length(engine, most, len(sizes) * NUM_PASSES)
    if length == 0:
        return
    prompt = tuple(index % engine.info.num_token_ids for index in range(length))
    request = Request(
        WARM_UP_ID,
        prompt,
        limits=TokenLimits(max_tokens=(most + 2) * len(sizes) * NUM_PASSES),
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


def _prompt_length(engine: StepEngine, most: int, num_steps: int) -> int:
    context = engine.info.context_length
    capacity = engine.blocks.num_blocks * engine.blocks.block_size
    room = min(context, capacity) - (most + 2) * num_steps - 2
    return max(0, min(32, room))
