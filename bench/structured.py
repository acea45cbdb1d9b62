"""
Bar of issue 3: structured output under random schemas and regular expressions, on the tiny model.

    python -m bench.structured
"""

from __future__ import annotations

import asyncio
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
from verify_service.grammar import GrammarCompiler

NUM_CONSTRAINTS: Final = 200
BATCH: Final = 8
SEED: Final = 7
MAX_TOKENS: Final = 1900
"""Room for a model that puts all the white space allowed between the tokens of its JSON."""
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
        self._plain = tiny_engine(max_running=BATCH, max_draft_tokens=0, budget=BudgetMode.FIXED)
        self._drafting = tiny_engine(max_running=BATCH, budget=BudgetMode.FIXED)

    def measure(self, rng: Random, num_constraints: int) -> Structured:
        """Return what came of as many random constraints."""
        plain: list[Answer] = []
        forced: list[Answer] = []
        num_invalid = num_different = 0
        for first in range(1, num_constraints + 1, BATCH):
            ids = range(first, min(first + BATCH, num_constraints + 1))
            constraints = {sequence_id: random_constraint(rng) for sequence_id in ids}
            alone = EngineRun(self._plain).finish(self._requests(constraints))
            spans = EngineRun(self._drafting).finish(self._requests(constraints))
            drafts = _drafts(ids, alone)
            drafted = EngineRun(self._drafting, drafts).finish(self._requests(constraints))
            for sequence_id, one, two, three in zip(ids, alone, spans, drafted, strict=True):
                num_invalid += not self._holds(constraints[sequence_id], one)
                num_different += not one.token_ids == two.token_ids == three.token_ids
            plain += alone
            forced += spans
        return Structured(
            num_constraints, num_invalid, num_different, _mean_length(plain), _mean_length(forced)
        )

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
