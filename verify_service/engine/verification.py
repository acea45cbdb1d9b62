"""One forward pass over all turns and trees, and the walk through each tree. It commits nothing."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import torch

from paceline.errors import EngineFailed, Mismatch, PacelineError
from verify_service.engine.acceptance import Verdict, walk
from verify_service.engine.draft_selection import Selected
from verify_service.engine.rejection import picker, trial_key
from verify_service.engine.row_choices import choose_all
from verify_service.engine.sampler import Choice, choose
from verify_service.engine.sampling import Rule
from verify_service.engine.sequence import Sequence
from verify_service.targets.target import CONTEXT, FlatBatch, RowSpan, TargetInfo, TargetModel

ChoiceAt = Callable[[int, SequenceOf[int]], Choice | None]
"""From a node and the path to it to the target's choice after it."""


@dataclass(frozen=True, slots=True)
class Verification:
    """What the target said about one sequence's rows."""

    selected: Selected
    verdict: Verdict[Choice] | None
    """None: the rows were a part of a prefill that emits nothing yet."""
    error: PacelineError | None = None

    @property
    def sequence(self) -> Sequence:
        """The sequence that was verified."""
        return self.selected.turn.sequence

    @property
    def num_rows(self) -> int:
        """Committed rows of the turn."""
        return self.selected.turn.num_rows

    @property
    def emits(self) -> bool:
        """Whether tokens come of it."""
        return self.verdict is not None

    def moves(self, num_tokens: int, block_size: int) -> tuple[list[int], list[int]]:
        """
        Return the slots to copy from and to, so that the KV of ``num_tokens`` emitted tokens but
        the last follows the committed tokens without gaps.

        Node ``n`` lies ``n`` slots after the root; the ``i``-th accepted one belongs ``i`` after.
        """
        nodes = self.verdict.nodes[: num_tokens - 1] if self.verdict else ()
        root = len(self.sequence.token_ids) - num_tokens - 1
        table = self.sequence.block_table
        sources: list[int] = []
        destinations: list[int] = []
        for place, node in enumerate(nodes, start=1):
            if node != place:
                sources.append(_slot(table, root + node, block_size))
                destinations.append(_slot(table, root + place, block_size))
        return sources, destinations


def verify(
    target: TargetModel, selected: SequenceOf[Selected], info: TargetInfo
) -> list[Verification]:
    """Run one forward pass and let the target choose along each tree."""
    with torch.inference_mode():
        logits = target.forward(FlatBatch(tuple(_span(each) for each in selected)))
        logits = logits[:, : info.num_token_ids]
        at_once = choose_all(logits, [each for each in selected if _emits(each)])
        verifications: list[Verification] = []
        start = 0
        for each in selected:
            if not _emits(each):
                verifications.append(Verification(each, None))
                continue
            sequence = each.turn.sequence
            if at_once is not None and at_once.covers(sequence):
                choice_at = _looked_up(at_once.by_row, start)
            else:
                choice_at = _sampled(logits[start:], each)
            verifications.append(_walk(each, choice_at, info.context_length))
            start += 1 + each.tree.num_nodes
    return verifications


def _sampled(logits: torch.Tensor, selected: Selected) -> ChoiceAt:
    sequence = selected.turn.sequence
    params = sequence.request.sampling
    if params.rule is Rule.SAMPLE_AND_MATCH or params.is_greedy:
        return lambda node, path: choose(logits[node], sequence, path)
    key = trial_key(params.seed, len(sequence.request.emitted_token_ids))

    def tried(node: int, path: SequenceOf[int]) -> Choice | None:
        known = sequence.trie.at(path)
        drawn = known.drawn if known is not None else None
        by_drafts = picker(key, drawn, selected.tree.children(node))
        return choose(logits[node], sequence, path, by_drafts)

    return tried


def _looked_up(best: list[Choice | None], start: int) -> ChoiceAt:
    return lambda node, path: best[start + node]


def _walk(selected: Selected, choice_at: ChoiceAt, context_length: int) -> Verification:
    sequence = selected.turn.sequence
    verdict = walk(
        selected.tree,
        choice_at,
        lambda choice: choice.token_id,
        sequence.max_new_tokens(context_length),
    )
    if not verdict.choices:
        return Verification(selected, verdict, _no_choice(sequence))
    return Verification(selected, verdict)


def _no_choice(sequence: Sequence) -> PacelineError:
    if sequence.request.constraint is None:
        return EngineFailed("the model gave no usable probabilities", reason="INVALID_LOGITS")
    return Mismatch(
        "no token satisfies structured_output here; check that it can be completed and that "
        "logit_bias and min_tokens leave a way",
        field="structured_output",
        reason="CONSTRAINT_DEAD_END",
    )


def _emits(selected: Selected) -> bool:
    turn = selected.turn
    is_parked = turn.sequence.request.lockstep and not turn.is_decode
    return turn.reaches_end and not is_parked


def _span(selected: Selected) -> RowSpan:
    turn, tree = selected.turn, selected.tree
    sequence = turn.sequence
    stored, root = sequence.num_stored, turn.num_rows - 1
    committed = sequence.token_ids[stored : stored + turn.num_rows]
    positions = range(stored, stored + turn.num_rows)
    return RowSpan(
        token_ids=(*committed, *tree.token_ids),
        positions=(*positions, *(stored + root + depth for depth in tree.depths())),
        parents=(*range(CONTEXT, root), *(root + parent for parent in tree.parents)),
        context_len=stored,
        block_table=tuple(sequence.block_table),
        logit_rows=tuple(range(root, root + 1 + tree.num_nodes)) if _emits(selected) else (),
    )


def _slot(block_table: SequenceOf[int], index: int, block_size: int) -> int:
    return block_table[index // block_size] * block_size + index % block_size
