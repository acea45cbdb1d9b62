"""
One forward pass over all turns and trees, and the walk through each tree: launched first, collected
later, so that the host can work beside a device. It commits nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from itertools import product

import torch

from paceline.errors import EngineFailed, Mismatch, PacelineError
from paceline.tree import ROOT
from verify_service.engine.acceptance import Verdict, walk
from verify_service.engine.device_copies import sent
from verify_service.engine.draft_selection import Selected
from verify_service.engine.rejection import picker, trial_key
from verify_service.engine.row_choices import choose_all, choose_best
from verify_service.engine.sampler import Choice, Picker, choose
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


class Pass:
    """A forward pass that was launched, and the choices that follow it."""

    def __init__(
        self, target: TargetModel, selected: SequenceOf[Selected], info: TargetInfo
    ) -> None:
        """Launch; where the target has a device of its own, before that is done."""
        self._selected = selected
        self._context_length = info.context_length
        self._masks: dict[tuple[int, int], torch.Tensor] = {}
        """What constraints allow, by sequence and node, where that was asked ahead."""
        with torch.inference_mode():
            batch = FlatBatch(tuple(_span(each) for each in selected))
            emitting = [each for each in selected if _emits(each)]
            self._logits = torch.empty((0, info.num_token_ids))
            self._at_once = choose_best(target, batch, emitting)
            if self._at_once is None:
                self._logits = target.forward(batch)[:, : info.num_token_ids]
                self._at_once = choose_all(self._logits, emitting)

    @property
    def is_apart(self) -> bool:
        """Whether a device may still be at it: host work costs nothing meanwhile."""
        return self._logits.is_cuda

    def collect(self) -> list[Verification]:
        """Wait for the choices and walk down each tree."""
        self._mask_ahead()
        verifications: list[Verification] = []
        start = 0
        with torch.inference_mode():
            for each in self._selected:
                if not _emits(each):
                    verifications.append(Verification(each, None))
                    continue
                choice_at = self._choice_at(each, start)
                verifications.append(_walk(each, choice_at, self._context_length))
                start += 1 + each.tree.num_nodes
        return verifications

    def _mask_ahead(self) -> None:
        """Ask constraints what they allow at each root and, while a device computes, below it."""
        constrained = [
            each
            for each in self._selected
            if each.turn.sequence.request.constraint is not None and _emits(each)
        ]
        for each in constrained:
            self._mask(each, ROOT)
        most = max((each.tree.num_nodes for each in constrained), default=0)
        for node, each in product(range(1, most + 1), constrained):
            if self._at_once is None or self._at_once.is_here():
                return
            if node <= each.tree.num_nodes:
                self._mask(each, node)

    def _mask(self, selected: Selected, node: int) -> None:
        sequence, path = selected.turn.sequence, selected.tree.path(node)
        constraint = sequence.request.constraint
        if constraint is not None and sequence.request.limits.stop_token_ids.isdisjoint(path):
            allowed = sent(constraint.mask(path), self._logits.device)
            self._masks[sequence.sequence_id, node] = allowed

    def _choice_at(self, selected: Selected, start: int) -> ChoiceAt:
        """``start`` is the first row of the sequence."""
        sequence, at_once = selected.turn.sequence, self._at_once
        alone = _sampled(self._logits[start:], selected, self._masks)
        if at_once is None or not at_once.covers(sequence):
            return alone

        def looked_up(node: int, path: SequenceOf[int]) -> Choice | None:
            row = start + node
            return at_once.at(row) if at_once.is_sure(row) else alone(node, path)

        return looked_up


def _sampled(
    logits: torch.Tensor, selected: Selected, masks: Mapping[tuple[int, int], torch.Tensor]
) -> ChoiceAt:
    """Choose row by row; ``masks`` hold what constraints allow, by sequence and node."""
    sequence = selected.turn.sequence
    params = sequence.request.sampling
    key: int | None = None
    if params.rule is Rule.REJECTION and not params.is_greedy:
        key = trial_key(params.seed, len(sequence.request.emitted_token_ids))

    def choice_at(node: int, path: SequenceOf[int]) -> Choice | None:
        by_drafts: Picker | None = None
        if key is not None:
            known = sequence.trie.at(path)
            drawn = known.drawn if known is not None else None
            by_drafts = picker(key, drawn, selected.tree.children(node))
        allowed = masks.get((sequence.sequence_id, node))
        return choose(logits[node], sequence, path, by_drafts, allowed=allowed)

    return choice_at


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
