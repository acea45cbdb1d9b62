"""A small step engine on a fixed random table, with a clock that a test turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from paceline.noise import mix64
from paceline.tree import TokenTree
from tests.doubles.engine_harness import POOL, Emitted, Harness, ProposeTree
from verify_service.engine.draft_selection import BudgetMode
from verify_service.engine.sampling import TokenLimits
from verify_service.engine.sequence import Request
from verify_service.engine.step_engine import EngineConfig, StepEngine
from verify_service.targets.table import LogitsFunction, TableTarget, markov_logits

VOCAB = 16
MARKOV = markov_logits(VOCAB, seed=5, order=3)
OTHER_POOL = "other"
CONFIG = EngineConfig(
    num_blocks=64,
    block_size=4,
    max_running=4,
    max_draft_tokens=8,
    budget=BudgetMode.FIXED,
    draft_pools=(POOL, OTHER_POOL),
)


class Clock:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


def small_engine(
    logits_of: LogitsFunction = MARKOV,
    *,
    clock: Callable[[], float] | None = None,
    context_length: int = 128,
    vocab_size: int = VOCAB,
    **config: object,
) -> StepEngine:
    """Return an engine whose clock stands still unless one is given."""
    target = TableTarget(
        logits_of, vocab_size=vocab_size, num_token_ids=VOCAB, context_length=context_length
    )
    changed = replace(CONFIG, **config)  # type: ignore[arg-type]  # field names
    return StepEngine(target, changed, clock=clock or Clock())


def request(sequence_id: int, *, max_tokens: int = 20, **fields: object) -> Request:
    """Return a request with a prompt of its own."""
    prompt = tuple(mix64(sequence_id * 100 + index) % VOCAB for index in range(6))
    made = Request(sequence_id, prompt, limits=TokenLimits(max_tokens=max_tokens))
    return replace(made, **fields)  # type: ignore[arg-type]  # field names


def run(
    requests: Sequence[Request], engine: StepEngine, propose: ProposeTree | None = None
) -> dict[int, Emitted]:
    """Serve all requests to their end; nothing may stay behind."""
    harness = Harness(engine, propose)
    for each in requests:
        harness.submit(each)
    harness.run()
    assert engine.blocks.num_in_use == 0
    assert engine.num_sequences == 0
    return harness.emitted


def ids(emitted: dict[int, Emitted]) -> dict[int, list[int]]:
    """Return the token ids by sequence."""
    return {sequence_id: each.token_ids for sequence_id, each in emitted.items()}


def guesses(committed: Sequence[int]) -> TokenTree:
    """Propose the true next token among wrong siblings, two levels deep."""
    row = MARKOV(tuple(committed))
    truth = max(range(VOCAB), key=row.__getitem__)
    return TokenTree(((truth + 1) % VOCAB, truth, 3), (0, 0, 2))
