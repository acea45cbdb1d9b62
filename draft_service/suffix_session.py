"""The suffix drafter's cache of one sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from draft_service.drafter import Draft, DraftLimits, SessionSpec
from draft_service.suffix_corpus import INGESTED_AT_ONCE, Corpus
from draft_service.suffix_evidence import MAX_LENGTH, NUM_CLASSES
from draft_service.suffix_index import SuffixIndex
from draft_service.suffix_record import (
    MAX_NODES,
    NODE_PARENT,
    NODE_SIZE,
    NODE_TOKEN,
    NODES_AT,
    forget_field,
    new_record,
    start_copy,
)
from draft_service.suffix_scratch import NODE_ODDS_AT, NUM_SOURCES, ODDS_SIZE, SCRATCH_SIZE
from draft_service.suffix_states import Memory
from draft_service.suffix_steps import commit_tokens, follow_corpus, propose_tree
from paceline.tree import TokenTree

_ROOM: Final = 256
_ROOM_PER_TOKEN: Final = 1 / 16
"""Room for what a session appends, so many tokens and this for each that it starts with: until it
is used up no commit waits for a copy of the memory, 30 ms with a million tokens."""


class Workspace:
    """What growing a tree takes besides the session: one for all sessions of a drafter."""

    __slots__ = ("empty", "odds", "scratch")

    def __init__(self) -> None:
        self.scratch = np.zeros(SCRATCH_SIZE, np.int32)
        self.odds = np.zeros(ODDS_SIZE, np.float64)
        self.empty: Memory = SuffixIndex().memory


class SuffixSession:
    """
    The automaton over one sequence and the client's predicted output, and what commits taught.

    A prompt longer than ``INGESTED_AT_ONCE`` is taken in by the proposals that follow, a part
    each; until it is in they are empty and may grow.
    """

    __slots__ = (
        *("_base_len", "_contexts", "_corpus", "_index", "_min_probability", "_num_turns"),
        *("_output_at", "_record", "_shifts", "_starts_predicted", "_waiting", "_workspace"),
    )

    def __init__(
        self,
        spec: SessionSpec,
        workspace: Workspace,
        corpus: Corpus | None = None,
        min_probability: float = 0.02,
    ) -> None:
        predicted, committed = spec.predicted_token_ids, spec.committed_token_ids
        self._workspace = workspace
        self._corpus = corpus
        self._min_probability = min_probability
        self._base_len = len(committed)
        self._record = new_record()
        self._shifts = np.zeros(NUM_CLASSES)
        self._contexts = np.zeros(2 * (NUM_SOURCES - 1), np.int32)
        self._num_turns = -1
        num_known = len(predicted) + len(committed)
        self._index = SuffixIndex(num_known + int(num_known * _ROOM_PER_TOKEN) + _ROOM)
        texts = (predicted, committed) if predicted else (committed,)
        self._waiting = [np.array(text, np.int32) for text in texts]
        self._starts_predicted = bool(predicted)
        output_at = len(predicted) + bool(predicted) + (spec.prompt_len or len(committed))
        self._output_at = output_at
        self._ingest()

    @property
    def num_bytes(self) -> int:
        """The memory that the session takes, without the corpus."""
        fixed = self._record.nbytes + self._shifts.nbytes + self._contexts.nbytes
        return int(self._index.num_bytes + fixed)

    def commit(self, base_len: int, token_ids: Sequence[int], features: bytes = b"") -> None:
        """Append committed tokens and learn how good the last tree was."""
        tokens = np.array(token_ids, np.int32)
        self._base_len += len(tokens)
        if self._waiting:
            self._waiting.append(np.concatenate((self._waiting.pop(), tokens)))
            self._starts_predicted = False
            return
        self._append(tokens)
        if self._corpus is not None and self._num_turns == self._corpus.num_turns:
            self._follow(self._corpus, tokens)

    def propose(self, limits: DraftLimits) -> Draft:
        """Return the likely continuations; the cost hardly grows with the sequence."""
        self._ingest()
        if self._waiting:
            return Draft(self._base_len, TokenTree(), may_grow=True)
        max_nodes = min(limits.max_draft_tokens, MAX_NODES)
        if max_nodes < 1:
            return Draft(self._base_len, TokenTree())
        num_nodes = self._grow(max_nodes, limits.max_tree_depth)
        nodes = self._record[NODES_AT + NODE_SIZE : NODES_AT + (num_nodes + 1) * NODE_SIZE]
        log_probs = self._workspace.odds[NODE_ODDS_AT + 1 : NODE_ODDS_AT + 1 + num_nodes]
        tree = TokenTree.trusted(
            tuple(nodes[NODE_TOKEN::NODE_SIZE].tolist()),
            tuple(nodes[NODE_PARENT::NODE_SIZE].tolist()),
            tuple(log_probs.tolist()),
        )
        return Draft(self._base_len, tree)

    def close(self) -> None:
        """Leave the output to the tenant's corpus."""
        if self._corpus is not None and not self._waiting:
            self._corpus.add(self._index.tokens(self._output_at))
            self._corpus.ingest()
        self._corpus = None

    def _grow(self, max_nodes: int, max_depth: int) -> int:
        workspace = self._workspace
        young = old = workspace.empty
        if self._corpus is not None:
            if self._num_turns != self._corpus.num_turns:
                self._join(self._corpus)
            young, old = self._corpus.generations
        return propose_tree(
            *(self._index.memory, young, old, self._contexts, self._record, self._shifts),
            *(workspace.scratch, workspace.odds, max_nodes, max_depth, self._min_probability),
        )

    def _ingest(self) -> None:
        """Take in what waits, as much as may be done at once."""
        room = INGESTED_AT_ONCE
        while self._waiting and room > 0:
            part = self._waiting.pop(0)
            self._append(part[:room])
            if len(part) > room:
                self._waiting.insert(0, part[room:])
            elif self._waiting:
                self._index.separate()
                forget_field(self._record)
            room -= len(part)
        if self._starts_predicted and not self._waiting:
            start_copy(self._record)
            self._starts_predicted = False

    def _append(self, tokens: NDArray[np.int32]) -> None:
        index, record, shifts = self._index, self._record, self._shifts
        done = commit_tokens(index.memory, record, shifts, tokens, 0)
        while done < len(tokens):
            index.make_room()
            done = commit_tokens(index.memory, record, shifts, tokens, done)

    def _join(self, corpus: Corpus) -> None:
        """Find the latest tokens in the generations; what was found in former ones is void."""
        self._contexts[:] = 0
        self._num_turns = corpus.num_turns
        start = len(self._index) - min(MAX_LENGTH, self._base_len)
        self._follow(corpus, self._index.tokens(start))

    def _follow(self, corpus: Corpus, tokens: NDArray[np.int32]) -> None:
        for generation, memory in enumerate(corpus.generations):
            follow_corpus(memory, self._contexts, generation, tokens)
