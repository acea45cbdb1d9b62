"""
Bar of issue 3: mixed traffic on the tiny model while everything around it goes wrong.

    python -m bench.soak

Requests arrive at random into a KV cache too small for them, are cancelled, preempted and switched
between drafting and not; the drafter lies, repeats itself, answers for others, is late, loses
sessions and goes away. Every answer has to be that of a plain run.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bench.bar import Bar
from bench.engine_run import DRAFTED, PLAIN, POOL, Answer, EngineRun, tiny_engine
from bench.option_cases import VOCAB, Case, draft_for, draw_case, random_tree
from paceline.cli.terminal import say
from paceline.errors import EngineFailed
from paceline.logs import configure_logging
from paceline.tree import TokenTree
from verify_service.engine.draft_selection import BudgetMode
from verify_service.engine.sampling import Fallback, FinishReason
from verify_service.engine.steps import (
    CancelSequence,
    ChangeDrafting,
    PoolDown,
    PoolUp,
    SessionLost,
    SessionRefused,
    TreeFact,
)

NUM_TOKENS: Final = 50_000
REPORTED_TOKENS: Final = 5_000
MAX_TOKENS: Final = 60
BATCH: Final = 8
SEED: Final = 11


@dataclass(slots=True)
class Soaked:
    """What happened."""

    num_requests: int = 0
    num_tokens: int = 0
    num_accepted: int = 0
    num_cancelled: int = 0
    num_preemptions: int = 0
    num_faults: int = 0
    num_flips: int = 0
    num_different: int = 0
    num_leaked_blocks: int = 0

    @property
    def summary(self) -> str:
        """One line."""
        return (
            f"{self.num_requests} requests, {self.num_tokens} tokens, {self.num_accepted} of them "
            f"drafted, {self.num_cancelled} cancelled, {self.num_preemptions} preemptions, "
            f"{self.num_faults} drafter faults, {self.num_flips} policy flips"
        )


class Soak:
    """Waves of requests, each first answered plainly, then again amid all that."""

    def __init__(self, seed: int = SEED) -> None:
        self._rng = random.Random(seed)
        self._plain = tiny_engine(max_running=BATCH)
        self._engine = tiny_engine(
            num_blocks=44,
            block_size=4,
            max_running=BATCH,
            max_prefill_rows=7,
            max_draft_tokens=10,
            budget=BudgetMode.FIXED,
        )
        self._next_id = 1
        self._truth: dict[int, tuple[Case, list[int]]] = {}
        self.soaked = Soaked()

    def run(self, num_tokens: int) -> Soaked:
        """Emit at least this many tokens; raises ``EngineFailed`` when a block is unaccounted."""
        while self.soaked.num_tokens < num_tokens:
            cases = [self._case() for _ in range(3 * BATCH)]
            plain = EngineRun(self._plain).finish(case.fresh() for case in cases)
            self._truth = {
                case.request.sequence_id: (case, _sequence(case, answer))
                for case, answer in zip(cases, plain, strict=True)
            }
            drafted = self._amid_trouble(cases)
            for case, one in zip(cases, plain, strict=True):
                self._compare(one, drafted[case.request.sequence_id])
            self.soaked.num_leaked_blocks += self._engine.blocks.num_in_use
        return self.soaked

    def _case(self) -> Case:
        case = draw_case(self._rng.choice, self._next_id, MAX_TOKENS)
        self._next_id += 1
        return case

    def _amid_trouble(self, cases: Sequence[Case]) -> dict[int, Answer]:
        run, coming = EngineRun(self._engine, self._propose), list(reversed(cases))
        preempted: dict[int, int] = {}
        while coming or self._engine.has_work():
            while coming and (self._rng.random() < 0.3 or not self._engine.has_work()):
                drafting = DRAFTED if self._rng.random() < 0.8 else PLAIN
                run.submit(coming.pop().fresh(), drafting)
            self._trouble(run)
            for sequence in self._engine.scheduler:
                preempted[sequence.sequence_id] = sequence.num_preemptions
            run.step()
            self._engine.check_integrity()
        self.soaked.num_preemptions += sum(preempted.values())
        return run.answers

    def _propose(self, sequence_id: int, committed: Sequence[int]) -> TokenTree:
        case, truth = self._truth[sequence_id]
        return draft_for(case, truth, len(committed))

    def _trouble(self, run: EngineRun) -> None:
        live = [sequence_id for sequence_id, answer in run.answers.items() if not answer.has_ended]
        if not live or self._rng.random() < 0.5:
            return
        sequence_id, engine = self._rng.choice(live), run.engine
        match self._rng.randrange(9):
            case 0 if self._rng.random() < 0.1:
                engine.apply(CancelSequence(sequence_id))
                self.soaked.num_cancelled += 1
            case 1 | 2:
                engine.apply(ChangeDrafting(sequence_id, self._rng.choice((DRAFTED, PLAIN))))
                self.soaked.num_flips += 1
            case 3 if self._rng.random() < 0.2:
                engine.apply(PoolDown(POOL, Fallback.UNREACHABLE))
                engine.apply(PoolUp(POOL))
                self.soaked.num_faults += 1
            case 4:
                engine.apply(SessionLost(POOL, sequence_id))
                self.soaked.num_faults += 1
            case 5 if self._rng.random() < 0.1:
                engine.apply(SessionRefused(POOL, sequence_id, Fallback.TOO_LONG))
                self.soaked.num_faults += 1
            case 6 | 7 | 8:
                self._lie(run, sequence_id)

    def _lie(self, run: EngineRun, sequence_id: int) -> None:
        # Late, early, for another's session, from nobody; wrong in any case.
        base_len = self._rng.randrange(90)
        tree = random_tree(self._rng.randrange(1 << 30), 6, VOCAB)
        pool = self._rng.choice((POOL, POOL, "nobody", ""))
        run.engine.apply(TreeFact(sequence_id + self._rng.choice((0, 0, 1)), base_len, tree, pool))
        self.soaked.num_faults += 1

    def _compare(self, plain: Answer, drafted: Answer) -> None:
        soaked = self.soaked
        soaked.num_requests += 1
        soaked.num_tokens += len(drafted.token_ids)
        soaked.num_accepted += drafted.num_accepted
        if drafted.finish_reason is FinishReason.CANCELLED:
            same = drafted.token_ids == plain.token_ids[: len(drafted.token_ids)]
        else:
            same = (plain.token_ids, plain.finish_reason, repr(plain.error)) == (
                drafted.token_ids,
                drafted.finish_reason,
                repr(drafted.error),
            )
        soaked.num_different += not same


def _sequence(case: Case, answer: Answer) -> list[int]:
    request = case.request
    return [*request.prompt_token_ids, *request.emitted_token_ids, *answer.token_ids]


async def measure() -> list[Bar]:
    """Return how many answers differ and how many blocks leak."""
    configure_logging("bench", "error")
    soak = Soak()
    try:
        for num_tokens in range(REPORTED_TOKENS, NUM_TOKENS + 1, REPORTED_TOKENS):
            say(soak.run(num_tokens).summary)
    except EngineFailed as error:
        say(f"integrity: {error.message}")
        return [Bar(3, "KV blocks accounted for after every step", 0.0, 1.0)]
    soaked = soak.soaked
    told = f"{NUM_TOKENS} tokens of mixed traffic"
    return [
        Bar(3, f"{told}: answers unlike their plain run", soaked.num_different, 0.0, "at most"),
        Bar(3, f"{told}: KV blocks leaked", soaked.num_leaked_blocks, 0.0, "at most"),
    ]


def main() -> None:
    """Print the figures."""
    for bar in asyncio.run(measure()):
        say(f"{bar.bar}: {bar.figure:.0f} ({bar.shown_target})")


if __name__ == "__main__":
    main()
