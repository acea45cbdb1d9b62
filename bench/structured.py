"""
Bar of issue 3: structured output under random schemas and regular expressions, on the tiny model.

    python -m bench.structured
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from tokenizers import Tokenizer

from bench.bar import Bar
from bench.constraints import is_valid, random_constraint
from bench.demo_line import TINY_MODEL
from bench.engine_run import Answer, EngineRun, ProposeTree, tiny_engine
from bench.option_cases import EOS, VOCAB, random_tree
from paceline.cli.terminal import say
from paceline.logs import configure_logging
from paceline.noise import mix64
from paceline.tree import TokenTree
from paceline.v1 import types_pb2
from verify_service.engine.draft_selection import BudgetMode
from verify_service.engine.sampling import FinishReason, SamplingParams, TokenLimits
from verify_service.engine.sequence import Request
from verify_service.engine.step_engine import StepEngine
from verify_service.grammar import GrammarCompiler

NUM_CONSTRAINTS: Final = 200
NUM_STREAMS: Final = 16
SEED: Final = 7
MAX_TOKENS: Final = 1900
"""Room for a model that puts all the white space allowed between the tokens of its JSON."""
NUM_BLOCKS: Final = NUM_STREAMS * (MAX_TOKENS + 100) // 16
"""As many as the longest answers can fill."""
PROMPT: Final = (1, 300, 301, 302)
TEMPERATURES: Final = (0.0, 0.8, 1.2)


@dataclass(frozen=True, slots=True)
class Structured:
    """What came of many constraints."""

    num_constraints: int
    num_invalid: int
    num_different: int
    plain_length: float
    """Mean acceptance length without any drafts."""
    forced_length: float
    """The same with what the grammar forces as the only drafts."""


class StructuredRuns:
    """Answers each constraint without drafts, with forced ones only, and with a drafter's."""

    def __init__(self) -> None:
        tokenizer_json = TINY_MODEL / "tokenizer.json"
        self._tokenizer = Tokenizer.from_file(str(tokenizer_json))
        self._compiler = GrammarCompiler(tokenizer_json, VOCAB, (EOS,))
        # Without room for nodes even forced tokens are no drafts.
        self._plain = _engine(max_draft_tokens=0)
        self._drafting = _engine()

    def measure(self, rng: Random, num_constraints: int) -> Structured:
        """Return what came of as many random constraints, all waiting from the start."""
        constraints = {number: random_constraint(rng) for number in range(1, num_constraints + 1)}
        plain = self._answers(constraints, self._plain)
        forced = self._answers(constraints, self._drafting)
        drafts = _drafts(tuple(constraints), plain)
        drafted = self._answers(constraints, self._drafting, drafts)
        held = [
            self._holds(each, answer)
            for each, answer in zip(constraints.values(), plain, strict=True)
        ]
        num_different = sum(
            not one.token_ids == two.token_ids == three.token_ids
            for one, two, three in zip(plain, forced, drafted, strict=True)
        )
        return Structured(
            num_constraints,
            held.count(False),
            num_different,
            _mean_length(plain),
            _mean_length(forced),
        )

    def _answers(
        self,
        constraints: dict[int, types_pb2.StructuredOutput],
        engine: StepEngine,
        drafts: ProposeTree | None = None,
    ) -> list[Answer]:
        begun = time.perf_counter()
        answers = EngineRun(engine, drafts).finish(self._requests(constraints))
        num_tokens = sum(len(answer.token_ids) for answer in answers)
        say(f"{len(answers)} answers, {num_tokens} tokens in {time.perf_counter() - begun:.0f} s")
        return answers

    def _requests(self, constraints: dict[int, types_pb2.StructuredOutput]) -> list[Request]:
        return [
            Request(
                sequence_id,
                PROMPT,
                sampling=SamplingParams(
                    temperature=TEMPERATURES[sequence_id % len(TEMPERATURES)], seed=sequence_id
                ),
                limits=TokenLimits(MAX_TOKENS, stop_token_ids=frozenset({EOS})),
                constraint=self._compiler.compile(constraint),
            )
            for sequence_id, constraint in constraints.items()
        ]

    def _holds(self, constraint: types_pb2.StructuredOutput, answer: Answer) -> bool:
        ids = [token_id for token_id in answer.token_ids if token_id != EOS]
        text = str(self._tokenizer.decode(ids, skip_special_tokens=False))
        holds = answer.finish_reason is FinishReason.STOP and is_valid(constraint, text)
        if not holds:
            say(f"invalid: {constraint} gave {text[:200]!r}, {answer.finish_reason} {answer.error}")
        return holds


def _engine(**config: object) -> StepEngine:
    return tiny_engine(
        max_running=NUM_STREAMS,
        max_waiting=NUM_CONSTRAINTS,
        num_blocks=NUM_BLOCKS,
        budget=BudgetMode.FIXED,
        **config,
    )


def _drafts(sequence_ids: Sequence[int], plain: Sequence[Answer]) -> ProposeTree:
    truths = {
        sequence_id: [*PROMPT, *answer.token_ids]
        for sequence_id, answer in zip(sequence_ids, plain, strict=True)
    }

    def propose(sequence_id: int, committed: Sequence[int]) -> TokenTree:
        """Return the truth and beyond it every other time, else what breaks any grammar."""
        state = mix64(sequence_id * 4099 + len(committed))
        if state % 2:
            return random_tree(state, 6, VOCAB)
        following = truths[sequence_id][len(committed) :][:4]
        return TokenTree.chain([*following, 5, 6])

    return propose


def _mean_length(answers: Sequence[Answer]) -> float:
    num_steps = sum(answer.num_steps for answer in answers)
    return 1 + sum(answer.num_accepted for answer in answers) / max(num_steps, 1)


async def measure() -> list[Bar]:
    """Return validity, equality and what forced spans bring."""
    configure_logging("bench", "error")
    made = StructuredRuns().measure(Random(SEED), NUM_CONSTRAINTS)
    told = f"{made.num_constraints} schemas and regexes"
    return [
        Bar(3, f"{told}: invalid outputs", made.num_invalid, 0.0, "at most"),
        Bar(3, f"{told}: other ids with drafts", made.num_different, 0.0, "at most"),
        Bar(
            3,
            f"{told}: mean acceptance length by forced spans alone, over that of plain decoding",
            made.forced_length / made.plain_length,
            1.05,
        ),
    ]


def main() -> None:
    """Print the figures."""
    for bar in asyncio.run(measure()):
        say(f"{bar.bar}: {bar.figure:.2f} ({bar.shown_target})")


if __name__ == "__main__":
    main()
