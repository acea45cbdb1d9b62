"""
One sequence at the draft model: what the model has read of it, and the tree that it expects.

A session is asked again and again between commits. Each time it offers rows to read (a chunk of
the prompt, or the likeliest nodes) and takes in what the pass says about them.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from draft_service.drafter import Draft, DraftJob, DraftLimits, SessionSpec
from draft_service.onnx_choices import NoiseRows, Sharpness, best_choices
from draft_service.onnx_forward import Logits, RowSpan
from draft_service.onnx_kv import KvSlots, Tensor
from draft_service.onnx_tree import DraftNode, GrowingTree
from paceline.tree import TokenTree

_NUM_FIRST_TOKENS = 4
"""The first tokens stay in view when a context is cut: models put surplus attention there (Xiao
et al. 2024, "Efficient streaming language models with attention sinks")."""

_LOG_ROW_COST = math.log(0.35)
"""A pass over two rows takes about this much longer than over one (4 and 8 bits, two cores), so
that nodes must be this likely beside the likeliest one to be read along with it."""

_LOG_PROB_STEPS = 256
"""Estimates are rounded: what a session gets must not depend on who shares its batch, and sums
of floats do in their last bits."""


@dataclass(frozen=True, slots=True)
class OnnxOptions:
    """What can be chosen about model drafting; ``DraftSettings`` gives units and reasons."""

    num_siblings: int = 3
    min_probability: float = 0.02
    min_read_probability: float = 0.15
    max_ahead_tokens: int = 24
    max_context_tokens: int = 1024
    chunk_tokens: int = 32
    max_kv_tokens: int = 32_768


@dataclass(frozen=True, slots=True)
class ModelTokens:
    """Which tokens a model reads and proposes."""

    head_token_ids: npt.NDArray[np.int64]
    """From a row of the logits to its token id."""
    num_embeddings: int
    """Larger ids cannot be read."""
    states_positions: bool
    """Positions are given, not counted from the past: a context may have gaps."""


class OnnxSession:
    """The cache of one sequence. ``commit`` and ``close`` only take note."""

    __slots__ = (
        "__weakref__",
        "_committed",
        "_context_slots",
        "_has_fresh_commits",
        "_news",
        "_options",
        "_reading",
        "_sharpness",
        "_spec",
        "_tick",
        "_to_read",
        "_tokens",
        "_tree",
        "is_closed",
        "kv",
        "last_pass",
    )

    def __init__(
        self,
        spec: SessionSpec,
        options: OnnxOptions,
        tokens: ModelTokens,
        tick: Callable[[DraftJob], Draft],
    ) -> None:
        self._spec = spec
        self._options = options
        self._tokens = tokens
        self._tick = tick
        self._committed = array("I", spec.committed_token_ids)
        self._news: deque[Sequence[int]] = deque()
        self._sharpness = Sharpness(has_noise=spec.temperature > 0)
        self._tree = GrowingTree()
        self._context_slots: list[int] = []
        self._to_read: deque[int] = deque()
        self._reading: list[DraftNode] = []
        self._has_fresh_commits = False
        self.kv: KvSlots | None = None
        """Whoever gives a session memory may take it away between passes: see ``forget``."""
        self.last_pass = 0
        """Number of the last pass that read something for the session."""
        self.is_closed = False
        self._read_anew()

    def commit(self, base_len: int, token_ids: Sequence[int], features: bytes = b"") -> None:
        """Take note of committed tokens."""
        self._news.append(tuple(token_ids))

    def propose(self, limits: DraftLimits) -> Draft:
        """Read some more and return the newest tree."""
        return self._tick(DraftJob(self, limits))

    def close(self) -> None:
        """Take note that nobody will ask again."""
        self.is_closed = True

    def absorb_commits(self) -> None:
        """Bring context and tree up to date with all commits so far."""
        self._has_fresh_commits = bool(self._news)
        while self._news:
            for token_id in self._news.popleft():
                self._append(token_id)
        if len(self._context_slots) + len(self._to_read) > self._options.max_context_tokens:
            self._shorten_context()

    @property
    def has_answer(self) -> bool:
        """Whether a tree that outlived a commit is worth sending before anything is read."""
        return self._has_fresh_commits and not self._to_read and self._tree.depth > 1

    def next_rows(self, limits: DraftLimits, kv: KvSlots, max_branches: int) -> RowSpan | None:
        """Return what should be read next; ``None`` if nothing is worth it."""
        self._reading = []
        if self._to_read:
            return self._chunk(kv)
        nodes = self._worthwhile(limits, max_branches)
        root = self._tree.root
        if not nodes or root is None:
            return None
        self._reading = nodes
        return RowSpan(
            kv=kv,
            token_ids=[self._readable(node.token_id) for node in nodes],
            positions=[node.position for node in nodes],
            context_slots=self._context_slots,
            branch_slots=[node.branch_slots(root) for node in nodes],
            logit_rows=range(len(nodes)),
        )

    def take_in(self, span: RowSpan, logits: Logits, fresh: Sequence[Tensor]) -> None:
        """Keep what a pass says about the rows that ``next_rows`` offered."""
        slots = span.kv.store(span.positions, fresh)
        noise = NoiseRows(self._spec.seed, self._tokens.head_token_ids)
        if self._reading:
            for node, slot, row in zip(self._reading, slots, logits, strict=True):
                node.slot = slot
                self._expand(node, row, noise)
            return
        self._context_slots.extend(slots)
        for _ in slots:
            self._to_read.popleft()
        if not self._to_read:
            position = span.positions[-1]
            self._tree.root = DraftNode(self._committed[position], position)
            self._expand(self._tree.root, logits[0], noise)

    def draft(self, limits: DraftLimits, *, may_read: bool) -> Draft:
        """Return the newest tree; ``may_read``: there is memory to read more."""
        floor = math.log(self._options.min_probability)
        tree = TokenTree() if self.is_closed else self._tree.best(limits, floor)
        more = bool(self._to_read) or bool(self._worthwhile(limits, 1))
        grows = may_read and more and not self.is_closed
        return Draft(len(self._committed), tree, may_grow=grows)

    def forget(self) -> None:
        """Give up the memory; the context is read again when the session is asked."""
        self.kv = None
        self._read_anew()

    def _append(self, token_id: int) -> None:
        position = len(self._committed)
        self._committed.append(token_id)
        root = self._tree.root
        if root is not None and root.choices is not None:
            self._sharpness.learn(root.choices, token_id)
        held = self._tree.slots()
        child = self._tree.advance(token_id)
        kept = [] if child is None else [child.slot, *self._tree.slots()]
        if self.kv is not None:
            self.kv.free(set(held) - set(kept))
        if child is not None and child.slot is not None:
            self._context_slots.append(child.slot)
        else:
            self._to_read.append(position)

    def _expand(self, node: DraftNode, logits: npt.NDArray[np.float32], noise: NoiseRows) -> None:
        scores: npt.NDArray[np.floating] = logits
        if self._spec.temperature > 0:
            scaled = logits.astype(np.float64) / self._spec.temperature
            scores = scaled + noise.at(node.position + 1)
        node.choices = best_choices(scores, self._tokens.head_token_ids)
        if node.choices is None:
            return
        log_probs = self._sharpness.log_probs(node.choices)
        for token_id, log_prob in zip(node.choices.token_ids, log_probs, strict=True):
            if len(node.children) == self._options.num_siblings:
                break
            node.add(token_id, round(log_prob * _LOG_PROB_STEPS) / _LOG_PROB_STEPS)

    def _chunk(self, kv: KvSlots) -> RowSpan:
        count = min(len(self._to_read), self._options.chunk_tokens)
        positions = [self._to_read[index] for index in range(count)]
        return RowSpan(
            kv=kv,
            token_ids=[self._readable(self._committed[position]) for position in positions],
            positions=positions,
            context_slots=self._context_slots,
            branch_slots=(),
            logit_rows=(count - 1,) if count == len(self._to_read) else (),
        )

    def _worthwhile(self, limits: DraftLimits, max_nodes: int) -> list[DraftNode]:
        room = min(max_nodes, self._options.max_ahead_tokens - self._tree.num_read)
        if room <= 0:
            return []
        floor = math.log(self._options.min_read_probability)
        found = self._tree.frontier(room, floor, limits.max_tree_depth)
        return [node for node in found if node.total >= found[0].total + _LOG_ROW_COST]

    def _readable(self, token_id: int) -> int:
        # A target may know more tokens than the model was made for; they read as the first one.
        return token_id if token_id < self._tokens.num_embeddings else 0

    def _read_anew(self) -> None:
        """Plan to read the latest part of the context, and its first tokens."""
        self._tree.root = None
        self._context_slots = []
        self._reading = []
        count, room = len(self._committed), self._options.max_context_tokens
        kept = range(count) if count <= room else range(count - room * 3 // 4, count)
        first = range(min(_NUM_FIRST_TOKENS, kept.start))
        self._to_read = deque([*first, *kept])

    def _shorten_context(self) -> None:
        """Drop the oldest quarter of what was read, or start over when most is unread."""
        room = self._options.max_context_tokens
        excess = len(self._context_slots) + len(self._to_read) - room * 3 // 4
        lasting = len(self._context_slots) - _NUM_FIRST_TOKENS
        if self.kv is None or excess > lasting or not self._tokens.states_positions:
            self.forget()
            return
        dropped = self._context_slots[_NUM_FIRST_TOKENS : _NUM_FIRST_TOKENS + excess]
        del self._context_slots[_NUM_FIRST_TOKENS : _NUM_FIRST_TOKENS + excess]
        self.kv.free(dropped)
