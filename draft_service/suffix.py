"""
Suffix drafting: what followed earlier occurrences of the latest tokens, with counts, as one tree.

It copies from the sequence's own prompt and output, from the client's predicted output, and from
earlier outputs of the same tenant, and proposes no token that is in none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draft_service.drafter import (
    Draft,
    DrafterInfo,
    DraftJob,
    DraftLimits,
    DraftSession,
    SessionSpec,
    propose_each,
)
from draft_service.suffix_corpus import TenantCorpora
from draft_service.suffix_session import SuffixSession, Workspace


@dataclass(frozen=True, slots=True)
class SuffixOptions:
    """What can be chosen about suffix drafting; ``DraftSettings`` gives the reasons."""

    min_probability: float = 0.02
    corpus_tokens: int = 65_536
    corpus_tenants: int = 64


class SuffixDrafter:
    """Drafts from suffix automata; one thread at a time may use it and its sessions."""

    info = DrafterInfo(kind="suffix")

    def __init__(self, options: SuffixOptions) -> None:
        self._options = options
        self._workspace = Workspace()
        self._corpora = TenantCorpora(options.corpus_tenants, options.corpus_tokens)

    def warm_up(self) -> None:
        """Compile everything, or read it from the disk, by running two small sessions."""
        corpora = TenantCorpora(max_tenants=1, max_tokens=4096)
        limits = DraftLimits(max_draft_tokens=8, max_tree_depth=8)
        for _ in range(2):
            spec = SessionSpec([1, 2, 3] * 50, predicted_token_ids=[4, 5], prompt_len=6)
            session = SuffixSession(spec, self._workspace, corpora.of("warm-up"))
            session.propose(limits)
            session.commit(150, list(range(1000)))
            session.close()

    def open(self, spec: SessionSpec) -> DraftSession:
        """Return a session that has indexed the tokens of ``spec``, or the first of very many."""
        corpus = self._corpora.of(spec.tenant)
        if corpus is not None:
            corpus.ingest()
        return SuffixSession(spec, self._workspace, corpus, self._options.min_probability)

    def propose_batch(self, jobs: Sequence[DraftJob]) -> Sequence[Draft]:
        """Return one draft for each job."""
        return propose_each(jobs)
