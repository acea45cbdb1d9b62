"""
Several drafters as one: cheap ones answer at once, costly ones add to it while the target verifies.

All that members do happens in ``propose_batch``, so that none of them meets two threads at once.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from draft_service.drafter import (
    ANY_TOKENIZER,
    Draft,
    Drafter,
    DrafterInfo,
    DraftJob,
    DraftLimits,
    DraftSession,
    SessionSpec,
)
from draft_service.merged_tree import MergedTree, merge_trees, with_estimates
from draft_service.mixing import Mixer
from draft_service.payoff import Payoff
from paceline.errors import ConfigurationError
from paceline.tree import TokenTree

_MAX_WORKLOADS: Final = 256
_WORKLOAD_RATE: Final = 0.2
_RECENCY: Final = 0.3
_EMPTY: Final = TokenTree()


@dataclass(frozen=True, slots=True)
class CompositeOptions:
    """What can be chosen about a composite; ``DraftSettings`` gives the reasons."""

    min_probability: float = 0.02
    max_sure_tokens: float = 4.0
    min_gain: float = 0.1


class CompositeSession:
    """One sequence at all members."""

    def __init__(self, spec: SessionSpec, drafter: CompositeDrafter) -> None:
        self._drafter = drafter
        self._spec: SessionSpec | None = spec
        self._has_begun = False
        self.is_closed = False
        self.was_put_off = False
        """At the last call the costly members waited for the sake of some session's news."""
        self.tenant = spec.tenant
        self._commits: deque[tuple[int, Sequence[int], bytes]] = deque()
        self._members: list[DraftSession] = []
        self._drafts: list[Draft] = []
        self._asked: set[int] = set()  # members asked since the newest commit
        self._base_len = len(spec.committed_token_ids)
        self._merged: MergedTree | None = None
        self._sure_tokens = 0.0  # that the cheap members expect to have accepted
        self._held_cheaply = 0.0  # tokens per step that they had right lately
        self._mixer = Mixer()
        self._payoff = Payoff(drafter.options.min_gain)

    def commit(self, base_len: int, token_ids: Sequence[int], features: bytes = b"") -> None:
        """Take note of committed tokens."""
        self._commits.append((base_len, token_ids, features))

    def propose(self, limits: DraftLimits) -> Draft:
        """Return the merged draft of all members."""
        return self._drafter.propose_batch([DraftJob(self, limits)])[0]

    def close(self) -> None:
        """Let the drafter free what the members hold, at its next batch, if there is anything."""
        self.is_closed = True
        # Without a batch the drafter would keep the text of every session closed at once.
        if self._has_begun:
            self._drafter.close_later(self)

    def catch_up(self, members: Sequence[Drafter]) -> bool:
        """Tell the members what came since the last batch; return whether anything did."""
        self._has_begun = True
        is_new = self._spec is not None
        if self._spec is not None:
            self._members = [member.open(self._spec) for member in members]
            self._drafts = [Draft(self._base_len, _EMPTY)] * len(members)
            self._mixer = Mixer(self._drafter.workload(self.tenant))
            self._spec = None
        return self._apply_commits() or is_new

    def job(self, member: int, limits: DraftLimits) -> DraftJob:
        """Return the job of one member."""
        return DraftJob(self._members[member], limits)

    def take(self, member: int, draft: Draft) -> None:
        """Take a member's newest draft."""
        if draft.tree != self._drafts[member].tree:
            self._merged = None
        self._drafts[member] = replace(draft, tree=with_estimates(draft.tree))
        self._asked.add(member)

    def wants(self, member: int) -> bool:
        """Return whether a member is worth asking (on)."""
        if member in self._asked and not self._drafts[member].may_grow:
            return False
        if member in self._drafter.cheap:
            return True
        return not self._is_copying and not self._payoff.is_paused

    @property
    def _is_copying(self) -> bool:
        """Whether the matchers do well alone: here, or in the latest steps up to a difference."""
        most = self._drafter.options.max_sure_tokens
        return self._sure_tokens > most or self._held_cheaply > most

    def weigh(self, cheap: Iterable[int]) -> None:
        """Find out how far the cheap members' drafts reach by themselves."""
        if self._merged is not None:
            return
        trees = [self._drafts[member].tree for member in cheap]
        self._sure_tokens = max((_expected_tokens(tree) for tree in trees), default=0.0)

    def merged(self, limits: DraftLimits) -> Draft:
        """Return all members' drafts in one; nothing of a session that was closed meanwhile."""
        if self.is_closed:
            return Draft(self._base_len, _EMPTY)
        if self._merged is None:
            rests = self._drafter.costly if self._is_copying else ()
            self._merged = merge_trees(
                [_EMPTY if i in rests else draft.tree for i, draft in enumerate(self._drafts)],
                self._mixer,
                limits,
                self._drafter.options.min_probability,
            )
        may_grow = any(self.wants(member) for member in range(len(self._members)))
        return Draft(self._base_len, self._merged.tree, may_grow=may_grow)

    def free(self) -> None:
        """Close the members' sessions and leave to the workload what was learned."""
        if not self._members:
            return
        self._apply_commits()
        for member in self._members:
            member.close()
        self._members = []
        self._drafter.workload(self.tenant).approach(self._mixer, _WORKLOAD_RATE)

    def _apply_commits(self) -> bool:
        has_commits = bool(self._commits)
        while self._commits:
            self._apply(*self._commits.popleft())
        return has_commits

    def _apply(self, base_len: int, token_ids: Sequence[int], features: bytes) -> None:
        if self._merged is not None:
            self._learn(self._merged, token_ids)
        for session in self._members:
            session.commit(base_len, token_ids, features)
        self._base_len = base_len + len(token_ids)
        self._drafts = [
            Draft(self._base_len, draft.tree.after(token_ids) or _EMPTY) for draft in self._drafts
        ]
        self._asked.clear()
        self._merged = None

    def _learn(self, merged: MergedTree, token_ids: Sequence[int]) -> None:
        num_held = merged.teach(token_ids, self._mixer)
        costly = self._drafter.costly
        if not costly:
            return
        num_held_cheaply = max(
            (self._drafts[member].tree.num_held(token_ids) for member in self._drafter.cheap),
            default=0,
        )
        self._held_cheaply += _RECENCY * (num_held_cheaply - self._held_cheaply)
        was_asked = any(member in self._asked for member in costly)
        self._payoff.learn(max(num_held - num_held_cheaply, 0) if was_asked else None)


class CompositeDrafter:
    """Drafts with several members and learns, for each session, whom to believe."""

    def __init__(self, members: Sequence[Drafter], options: CompositeOptions) -> None:
        self.options = options
        self._members = tuple(members)
        self.info = _combined_info([member.info for member in members])
        self.cheap = [i for i, each in enumerate(members) if not each.info.is_blocking]
        self.costly = [i for i, each in enumerate(members) if each.info.is_blocking]
        self._closed: deque[CompositeSession] = deque()
        self._workloads: OrderedDict[str, Mixer] = OrderedDict()

    def warm_up(self) -> None:
        """Warm up all members."""
        for member in self._members:
            member.warm_up()

    def open(self, spec: SessionSpec) -> DraftSession:
        """Return a session; its members learn of it at its first proposal."""
        return CompositeSession(spec, self)

    def close_later(self, session: CompositeSession) -> None:
        """Free a session at the next batch."""
        self._closed.append(session)

    def propose_batch(self, jobs: Sequence[DraftJob]) -> Sequence[Draft]:
        """
        Return one draft for each job.

        Where a session has news, the cheap members answer and the costly ones wait for the next
        call; they wait no more than once.
        """
        while self._closed:
            self._closed.popleft().free()
        own = [(_own_session(job), job.limits) for job in jobs]
        open_ones = [(each, limits) for each, limits in own if not each.is_closed]
        num_fresh = sum(each.catch_up(self._members) for each, _ in open_ones)
        self._ask(self.cheap, open_ones)
        for session, _ in open_ones:
            session.weigh(self.cheap)
        puts_off = bool(num_fresh and self.cheap) and not any(
            each.was_put_off for each, _ in open_ones
        )
        for session, _ in open_ones:
            session.was_put_off = puts_off
        if not puts_off:
            self._ask(self.costly, open_ones)
        for session, _ in open_ones:
            if session.is_closed:
                self.close_later(session)
        return [session.merged(limits) for session, limits in own]

    def workload(self, tenant: str) -> Mixer:
        """Return what is known of a tenant's kind of work; the least recent one makes room."""
        mixer = self._workloads.setdefault(tenant, Mixer())
        self._workloads.move_to_end(tenant)
        if len(self._workloads) > _MAX_WORKLOADS:
            self._workloads.popitem(last=False)
        return mixer

    def _ask(
        self, members: Sequence[int], sessions: Sequence[tuple[CompositeSession, DraftLimits]]
    ) -> None:
        for member in members:
            asked = [(each, limits) for each, limits in sessions if each.wants(member)]
            if not asked:
                continue
            drafts = self._members[member].propose_batch(
                [session.job(member, limits) for session, limits in asked]
            )
            for (session, _), draft in zip(asked, drafts, strict=True):
                session.take(member, draft)


def _own_session(job: DraftJob) -> CompositeSession:
    if not isinstance(job.session, CompositeSession):
        raise TypeError(f"not a session of this drafter: {job.session!r}")
    return job.session


def _combined_info(infos: Sequence[DrafterInfo]) -> DrafterInfo:
    fingerprints = {info.tokenizer_fingerprint for info in infos} - {ANY_TOKENIZER}
    if len(fingerprints) > 1:
        raise ConfigurationError(
            "setting composite_members: the members were made for different tokenizers"
        )
    return DrafterInfo(
        kind="composite",
        tokenizer_fingerprint=fingerprints.pop() if fingerprints else ANY_TOKENIZER,
        vocab_size=0
        if any(not info.vocab_size for info in infos)
        else max(info.vocab_size for info in infos),
        wants_features=any(info.wants_features for info in infos),
        uses_shared_noise=any(info.uses_shared_noise for info in infos),
        is_blocking=any(info.is_blocking for info in infos),
    )


def _expected_tokens(tree: TokenTree) -> float:
    """Return how many tokens of the tree the target will accept, by the tree's own estimates."""
    reached = [1.0]
    for parent, log_prob in zip(tree.parents, tree.log_probs, strict=True):
        reached.append(reached[parent] * math.exp(log_prob))
    return sum(reached) - 1.0
