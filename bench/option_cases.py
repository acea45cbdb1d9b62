"""
Requests with all sampling options at once and the drafters that try to change their answers.

Everything is drawn through one function, so that a property test and a script share the cases.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final, Protocol, TypeVar

from bench.demo_line import TINY_MODEL
from bench.engine_run import Answer, EngineRun, ProposeTree
from paceline.noise import mix64
from paceline.tree import TokenTree
from paceline.v1 import types_pb2
from verify_service.engine.constraint import Constraint
from verify_service.engine.sampling import SamplingParams, TokenLimits
from verify_service.engine.sequence import Request
from verify_service.engine.step_engine import StepEngine
from verify_service.grammar import GrammarCompiler

VOCAB: Final = 1024
EOS: Final = 2
DRAFTERS: Final = ("oracle", "wrong", "scripted", "random")
LOGPROB_TOLERANCE: Final = 1e-4

ItemT = TypeVar("ItemT")


class Draw(Protocol):
    """Draws one of several things."""

    def __call__(self, options: Sequence[ItemT], /) -> ItemT:
        """Return one of ``options``."""
        ...


GRAMMARS: Final = (
    {"regex": "[a-z]{2,6}( [a-z]{1,4})?"},
    {"json_schema": '{"type": "array", "items": {"type": "boolean"}, "maxItems": 2}'},
    {"choice": types_pb2.Choice(options=["import os", "import sys", "def main"])},
)


@dataclass(frozen=True, slots=True)
class Case:
    """One request without its constraint, which is state and made anew for each run."""

    request: Request
    grammar: dict[str, Any] | None
    drafter: str
    key: int

    def fresh(self) -> Request:
        """Return the request, ready for one run."""
        constraint = _constraint(self.grammar, self.request.emitted_token_ids)
        return replace(self.request, constraint=constraint)


@cache
def _compiler() -> GrammarCompiler:
    return GrammarCompiler(TINY_MODEL / "tokenizer.json", VOCAB, (EOS,))


def _constraint(grammar: dict[str, Any] | None, emitted: Sequence[int]) -> Constraint | None:
    if grammar is None:
        return None
    constraint = _compiler().compile(types_pb2.StructuredOutput(**grammar))
    constraint.commit(emitted)
    return constraint


def draw_case(draw: Draw, sequence_id: int, max_tokens: int = 14) -> Case:
    """Return a case with every option drawn."""
    key = mix64(draw(range(1 << 20)) * 64 + sequence_id)
    grammar = draw((None, None, None, *GRAMMARS))
    resumed = () if grammar else _ids(key + 1, draw((0, 0, 0, 3)))
    sampling = SamplingParams(
        temperature=draw((0.0, 0.5, 0.8, 1.0, 1.4)),
        top_k=draw((0, 0, 1, 5, 40)),
        top_p=draw((1.0, 1.0, 0.95, 0.6)),
        min_p=draw((0.0, 0.0, 0.05, 0.3)),
        repetition_penalty=draw((1.0, 1.0, 1.3, 0.8)),
        presence_penalty=draw((0.0, 0.0, 0.7, -0.5)),
        frequency_penalty=draw((0.0, 0.0, 0.6, -0.4)),
        logit_bias=draw(({}, {}, {17: 3.0, 40: -100.0, 300: 1.5})),
        seed=key,
    )
    stops = frozenset({EOS, *(mix64(key + index) % VOCAB for index in range(draw((0, 0, 30))))})
    limits = TokenLimits(
        max_tokens=draw(range(1, max_tokens + 1)) + len(resumed),
        min_tokens=draw((0, 0, 2, 6)),
        stop_token_ids=stops,
    )
    request = Request(
        sequence_id,
        _ids(key + 2, draw((1, 3, 9, 20))),
        resumed,
        sampling=sampling,
        limits=limits,
        num_logprobs=draw((None, 0, 3)),
    )
    return Case(request, grammar, draw(DRAFTERS), key)


def differences(
    cases: Sequence[Case], plain_engine: StepEngine, drafting_engine: StepEngine
) -> list[str]:
    """Return in words how the answers with drafts differ from those without; empty: they do not."""
    plain = EngineRun(plain_engine).finish(case.fresh() for case in cases)
    propose = _drafts(cases, plain)
    drafted = EngineRun(drafting_engine, propose).finish(case.fresh() for case in cases)
    return [
        f"{case.drafter} drafter, {case.request}, {case.grammar}: {name}"
        for case, one, other in zip(cases, plain, drafted, strict=True)
        for name in _unequal(one, other)
    ]


def _unequal(plain: Answer, drafted: Answer) -> list[str]:
    pairs = {
        "ids": (plain.token_ids, drafted.token_ids),
        "finish reason": (plain.finish_reason, drafted.finish_reason),
        "matched stop": (plain.matched_stop_token_id, drafted.matched_stop_token_id),
        "error": (repr(plain.error), repr(drafted.error)),
        "usage": (len(plain.token_ids), drafted.num_steps + drafted.num_accepted + _first(drafted)),
    }
    found = [f"{name}: {one} and {other}" for name, (one, other) in pairs.items() if one != other]
    if not _same_logprobs(plain, drafted):
        found.append("logprobs")
    return found


def _first(answer: Answer) -> int:
    # The prefill's own token is no verification step.
    return int(bool(answer.token_ids))


def _same_logprobs(plain: Answer, drafted: Answer) -> bool:
    if len(plain.logprobs) != len(drafted.logprobs):
        return False
    return all(
        abs(one.logprob - other.logprob) <= LOGPROB_TOLERANCE
        and [token_id for token_id, _ in one.top] == [token_id for token_id, _ in other.top]
        and all(
            abs(a - b) <= LOGPROB_TOLERANCE
            for (_, a), (_, b) in zip(one.top, other.top, strict=True)
        )
        for one, other in zip(plain.logprobs, drafted.logprobs, strict=True)
    )


def _drafts(cases: Sequence[Case], plain: Sequence[Answer]) -> ProposeTree:
    known = {
        case.request.sequence_id: (
            case,
            [*case.request.prompt_token_ids, *case.request.emitted_token_ids, *answer.token_ids],
        )
        for case, answer in zip(cases, plain, strict=True)
    }

    def propose(sequence_id: int, committed: Sequence[int]) -> TokenTree:
        case, truth = known[sequence_id]
        return draft_for(case, truth, len(committed))

    return propose


def draft_for(case: Case, truth: Sequence[int], committed_len: int) -> TokenTree:
    """Return what the case's drafter says, ``truth`` being prompt and plain answer."""
    state = mix64(case.key + committed_len)
    return _TREES[case.drafter](truth[committed_len:][: 1 + state % 6], state)


def _oracle(following: Sequence[int], state: int) -> TokenTree:
    """Return the truth, with a wrong sibling first at each level every other time."""
    if state % 2:
        return TokenTree.chain(following)
    pairs = [((token_id + 1) % VOCAB, token_id) for token_id in following]
    return TokenTree(
        tuple(token_id for pair in pairs for token_id in pair),
        tuple(2 * depth for depth in range(len(pairs)) for _ in range(2)),
    )


def _wrong(following: Sequence[int], state: int) -> TokenTree:
    return TokenTree.chain([(token_id + 1 + state % 9) % VOCAB for token_id in following])


def _scripted(following: Sequence[int], state: int) -> TokenTree:
    """Return the same bushy tree again and again, stops and end included."""
    return TokenTree((EOS, 17, 40, EOS, 300), (0, 0, 1, 2, 2), (-0.1, -0.2, -0.3, -0.4, -0.5))


def random_tree(state: int, num_nodes: int, vocab: int = VOCAB) -> TokenTree:
    """Return a random tree whose siblings are distinct."""
    token_ids: list[int] = []
    parents: list[int] = []
    for node in range(num_nodes):
        parent = mix64(state + 2 * node) % (len(token_ids) + 1)
        token_id = mix64(state + 2 * node + 1) % vocab
        if (parent, token_id) not in zip(parents, token_ids, strict=True):
            token_ids.append(token_id)
            parents.append(parent)
    return TokenTree(tuple(token_ids), tuple(parents))


def _random(following: Sequence[int], state: int) -> TokenTree:
    """Return a random tree; every third time the truth hangs below it as well."""
    tree = random_tree(state, state % 9)
    if state % 3 or not following or following[0] in tree.children(0):
        return tree
    start = tree.num_nodes
    parents = (0, *range(start + 1, start + len(following)))
    return TokenTree((*tree.token_ids, *following), (*tree.parents, *parents))


def _ids(key: int, count: int) -> tuple[int, ...]:
    return tuple(3 + mix64(key + index) % (VOCAB - 3) for index in range(count))


_TREES: Final[dict[str, Callable[[Sequence[int], int], TokenTree]]] = {
    "oracle": _oracle,
    "wrong": _wrong,
    "scripted": _scripted,
    "random": _random,
}
