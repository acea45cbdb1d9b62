"""
From tries to the trees of one step, and back: what is verified, and what is learned from it.

Nodes take only KV blocks that nobody waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np

from paceline.tree import TokenTree
from verify_service.engine.block_manager import BlockManager
from verify_service.engine.constraint import Constraint
from verify_service.engine.cost_table import CostTable
from verify_service.engine.draft_budget import EMPTY, Candidate, candidates, cut, tree_of
from verify_service.engine.draft_trie import MergeOutcome, Observation
from verify_service.engine.goodput import worthwhile_wait
from verify_service.engine.sampling import Rule
from verify_service.engine.scheduler import Turn
from verify_service.engine.sequence import Sequence
from verify_service.engine.steps import SequenceStep, TreeFact

EMA_WEIGHT = 0.15

OFFER_GROWTH, OFFER_MARGIN = 2, 6
"""A sequence's likeliest nodes are looked for up to this many times those that it got last time,
and some more: looking for nodes that nobody can pay takes longest when there is least time."""


class BudgetMode(Enum):
    """How the number of nodes is chosen."""

    ADAPTIVE = auto()
    """By expected goodput from learned costs."""
    FIXED = auto()
    """Always as many as the limits allow; for tests and comparisons."""


@dataclass(frozen=True, slots=True)
class Selected:
    """One sequence's turn with the tree that it verifies."""

    turn: Turn
    tree: TokenTree
    num_without_blocks: int = 0
    """Nodes that were left out because no KV block was free."""

    @property
    def num_rows(self) -> int:
        """Committed rows and nodes."""
        return self.turn.num_rows + self.tree.num_nodes


LimitsOf = Callable[[Sequence], tuple[BudgetMode, int]]


def merge_fact(sequence: Sequence, fact: TreeFact, *, is_in_time: bool = True) -> MergeOutcome:
    """
    Merge a tree into the sequence's trie if it comes from whom the sequence listens to.

    ``is_in_time``: no step that could have used it is under way already.
    """
    if fact.pool != sequence.session_pool or (not fact.pool and not sequence.request.lockstep):
        return MergeOutcome.STALE
    drawn = fact.drawn if sequence.request.sampling.rule is Rule.REJECTION else None
    outcome = sequence.trie.merge(fact.base_len, fact.tree, sequence.token_ids, drawn)
    if not fact.pool:
        sequence.pending_verdicts += 1
    answers = is_in_time and fact.base_len == len(sequence.token_ids)
    if answers and sequence.awaits_tree:
        # An empty tree answers too: nothing is coming that would be worth a wait.
        sequence.awaits_tree = False
        came = float(fact.tree.num_nodes > 0)
        sequence.arrival_rate += EMA_WEIGHT * (came - sequence.arrival_rate)
    return outcome


def select(
    turns: list[Turn],
    costs: CostTable,
    blocks: BlockManager,
    limits_of: LimitsOf,
    context_length: int,
) -> list[Selected]:
    """Return every turn with its tree; sequences without drafts get the empty tree."""
    offers = [_offer(turn, limits_of, context_length) for turn in turns]
    if not any(offers):
        return [Selected(turn, EMPTY) for turn in turns]
    budgeted = [
        offer if _is_budgeted(turn, limits_of) else []
        for offer, turn in zip(offers, turns, strict=True)
    ]
    counts = _counts(budgeted, turns, costs)
    for offer, turn, count in zip(budgeted, turns, counts, strict=True):
        if offer:
            # Who got all that it had to offer was not held back: it may offer as many as before.
            least = turn.sequence.num_granted if count == len(offer) else 0
            turn.sequence.num_granted = max(count, least)
    return [
        _selected(turn, tree_of(offer[:count] if own else offer), blocks)
        for turn, offer, own, count in zip(turns, offers, budgeted, counts, strict=True)
    ]


def _counts(offers: list[list[Candidate]], turns: list[Turn], costs: CostTable) -> list[int]:
    survivals = np.array([candidate.survival for offer in offers for candidate in offer])
    sizes = [len(offer) for offer, turn in zip(offers, turns, strict=True) if turn.is_decode]
    num_prefill_rows = sum(turn.num_rows for turn in turns if not turn.is_decode)
    context = sum(turn.sequence.num_stored for turn in turns)
    made = cut(survivals, np.cumsum(sizes), costs.curve(context), len(sizes), num_prefill_rows)
    counts = iter(made.counts.tolist())
    return [next(counts) if turn.is_decode else 0 for turn in turns]


def learn(sequence: Sequence, step: SequenceStep) -> list[Observation]:
    """Re-root the trie along what was committed; return what came of all that it had said."""
    had_nodes = sequence.trie.num_nodes > 0
    observations = sequence.trie.advance(step.token_ids)
    constraint = sequence.request.constraint
    if constraint is not None and step.finish_reason is None:
        constraint.commit(step.token_ids)
        _offer_forced(sequence, constraint)
    if had_nodes:
        gained = step.num_accepted - sequence.accepted_ema
        sequence.accepted_ema += EMA_WEIGHT * gained
    if sequence.awaits_tree:
        sequence.arrival_rate -= EMA_WEIGHT * sequence.arrival_rate
    sequence.awaits_tree = bool(sequence.session_pool)
    return observations


def _offer_forced(sequence: Sequence, constraint: Constraint) -> None:
    # What the grammar forces is drafted for nothing; the target may still spell it otherwise.
    forced = constraint.forced()
    if forced:
        tree = TokenTree.chain(forced, (0.0,) * len(forced))
        sequence.trie.merge(len(sequence.token_ids), tree, sequence.token_ids)


def draft_wait_seconds(running: Iterable[Sequence], costs: CostTable, max_seconds: float) -> float:
    """Return how long a step may wait for the trees of sequences that have none."""
    decoding = [sequence for sequence in running if sequence.is_decoding]
    expected = sum(
        sequence.accepted_ema * sequence.arrival_rate
        for sequence in decoding
        if sequence.awaits_tree and sequence.trie.num_nodes == 0
    )
    if expected == 0.0:
        return 0.0
    context = sum(sequence.num_stored for sequence in decoding)
    return worthwhile_wait(
        expected_tokens=expected,
        num_sequences=len(decoding),
        step_seconds=costs.seconds(len(decoding), context),
        max_seconds=max_seconds,
    )


def _is_budgeted(turn: Turn, limits_of: LimitsOf) -> bool:
    mode, _ = limits_of(turn.sequence)
    return mode is BudgetMode.ADAPTIVE and not turn.sequence.request.lockstep


def _offer(turn: Turn, limits_of: LimitsOf, context_length: int) -> list[Candidate]:
    sequence = turn.sequence
    is_first = not sequence.has_emitted and not sequence.request.lockstep
    if not turn.is_decode or is_first or sequence.trie.num_nodes == 0:
        return []
    mode, max_nodes = limits_of(sequence)
    if _is_budgeted(turn, limits_of):
        max_nodes = min(max_nodes, OFFER_GROWTH * sequence.num_granted + OFFER_MARGIN)
    calibration = sequence.calibration
    trusting = calibration is None or mode is BudgetMode.FIXED
    rate = _certain if trusting or calibration is None else calibration.rate
    found = candidates(
        sequence.trie,
        rate,
        max_nodes=max_nodes,
        max_depth=sequence.max_new_tokens(context_length) - 1,
    )
    constraint = sequence.request.constraint
    return found if constraint is None else _allowed(found, constraint)


def _allowed(found: list[Candidate], constraint: Constraint) -> list[Candidate]:
    """Leave out what the grammar forbids, before it costs a row."""
    kept: list[Candidate] = []
    place: dict[int, int] = {-1: -1}
    paths: dict[int, tuple[int, ...]] = {-1: ()}
    for index, candidate in enumerate(found):
        if candidate.parent not in place:
            continue
        path = (*paths[candidate.parent], candidate.node.token_id)
        if constraint.num_allowed(path) == len(path):
            place[index] = len(kept)
            paths[index] = path
            kept.append(candidate._replace(parent=place[candidate.parent]))
    return kept


def _certain(log_prob: float) -> float:
    # Ranks nodes by depth, then by order of arrival; nothing is left out as unlikely.
    return 0.999 if log_prob <= 0 else 1.0


def _selected(turn: Turn, tree: TokenTree, blocks: BlockManager) -> Selected:
    fitting = _fit(turn.sequence, tree, blocks)
    return Selected(turn, fitting, tree.num_nodes - fitting.num_nodes)


def _fit(sequence: Sequence, tree: TokenTree, blocks: BlockManager) -> TokenTree:
    """Trim a tree to the blocks that are free and give the sequence those blocks."""
    if tree.num_nodes == 0:
        return tree
    slots = (len(sequence.block_table) + blocks.num_free) * blocks.block_size
    room = min(tree.num_nodes, slots - len(sequence.token_ids))
    if room < tree.num_nodes:
        tree = TokenTree(tree.token_ids[:room], tree.parents[:room], tree.log_probs[:room])
    blocks.grow(sequence.block_table, len(sequence.token_ids) + tree.num_nodes)
    return tree
