"""
Grows a tree from earlier occurrences of the latest tokens, the likeliest node first.

Where occurrences were followed by different tokens the tree forks; where all agree it is a chain.
A node's occurrences are those whose text agrees with its whole path, so that they match by one
token more at each depth and the estimates rise along a copied passage.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple, TypeAlias

from draft_service.confidence import (
    Confidence,
    evidence_slot,
    length_bucket,
    resumed_bucket,
    sole_slot,
)
from draft_service.drafter import DraftLimits
from draft_service.ngram_index import SEPARATOR, Match
from paceline.tree import ROOT, TokenTree

_MAX_FOLLOWED = 4
"""More occurrences that agree make an estimate no surer; each costs time at every depth."""

Claim: TypeAlias = tuple[int, Collection[int]]
"""A slot of ``Confidence``, and the tokens one of which it says comes next."""


@dataclass(frozen=True, slots=True)
class Growth:
    """A tree, and the claims at each expanded node, the strongest first."""

    tree: TokenTree
    claims: dict[int, Sequence[Claim]]

    def observe(self, committed_token_ids: Iterable[int], confidence: Confidence) -> None:
        """Teach which claims were right along the tokens that were committed after the root."""
        node: int | None = ROOT
        for token_id in committed_token_ids:
            if node is None:
                return
            for slot, claimed_token_ids in self.claims.get(node, ()):
                hit = token_id in claimed_token_ids
                confidence.learn(slot, hit=hit)
                if hit:
                    break
            node = self.tree.child(node, token_id)


class _Spot(NamedTuple):
    """A node whose children are looked for, and the occurrences that lead on from it."""

    node: int
    depth: int
    cost: float  # minus the log-probability of the path from the root
    matches: Sequence[Match]


class _Candidate(NamedTuple):
    """A node that may join the tree; the likeliest sorts first, of equals the earliest."""

    cost: float
    serial: int
    parent: int
    token_id: int
    log_prob: float
    depth: int
    matches: Sequence[Match]


@dataclass(slots=True)
class _Group:
    """The occurrences of one bucket at one node: how often each token followed."""

    bucket: int
    num_occurrences: int = 0
    counts: dict[int, int] = field(default_factory=dict)


class TreeGrower:
    """Grows one tree over a text."""

    def __init__(
        self, text: array[int], confidence: Confidence, max_cost: float, limits: DraftLimits
    ) -> None:
        self._text = text
        self._confidence = confidence
        self._max_cost = max_cost
        self._limits = limits
        self._token_ids: list[int] = []
        self._parents: list[int] = []
        self._log_probs: list[float] = []
        self._claims: dict[int, Sequence[Claim]] = {}
        self._heap: list[_Candidate] = []
        self._serial = 0

    def grow(self, matches: Sequence[Match]) -> Growth:
        """Return the tree of the likeliest continuations; ``matches`` come the strongest first."""
        self._expand(_Spot(ROOT, 0, 0.0, matches))
        while self._heap and self._has_room:
            chosen = heappop(self._heap)
            node = self._add(chosen.parent, chosen.token_id, chosen.log_prob)
            self._expand(_Spot(node, chosen.depth, chosen.cost, chosen.matches))
        tree = TokenTree(tuple(self._token_ids), tuple(self._parents), tuple(self._log_probs))
        return Growth(tree, self._claims)

    @property
    def _has_room(self) -> bool:
        return len(self._token_ids) < self._limits.max_draft_tokens

    def _add(self, parent: int, token_id: int, log_prob: float) -> int:
        self._token_ids.append(token_id)
        self._parents.append(parent)
        self._log_probs.append(log_prob)
        return len(self._token_ids)

    def _expand(self, spot: _Spot) -> None:
        """Follow the occurrences for as long as they agree and no other node is likelier."""
        node, first_depth, cost, matches = spot
        competing_cost = self._heap[0].cost if self._heap else math.inf
        room = self._limits.max_draft_tokens - len(self._token_ids)
        for depth in range(first_depth, self._limits.max_tree_depth):
            token_id = self._agreed_follower(matches, depth)
            if token_id == SEPARATOR:
                self._fork(_Spot(node, depth, cost, matches))
                return
            slot = _agreed_slot(matches, depth)
            self._claims[node] = ((slot, (token_id,)),)
            log_prob = self._confidence.log_hit_rate(slot)
            cost -= log_prob
            if cost > competing_cost or cost > self._max_cost or room == 0:
                self._push(_Spot(node, depth + 1, cost, matches), token_id, log_prob)
                return
            node = self._add(node, token_id, log_prob)
            room -= 1
            matches = matches[:_MAX_FOLLOWED]

    def _fork(self, spot: _Spot) -> None:
        """Offer every token that followed an occurrence; longer occurrences speak first."""
        followers: dict[int, list[Match]] = {}
        groups: dict[int, _Group] = {}
        bucket_of_token: dict[int, int] = {}
        for match in spot.matches:
            token_id = self._follower(match.position, spot.depth)
            if token_id == SEPARATOR:
                continue
            followed = followers.setdefault(token_id, [])
            if len(followed) < _MAX_FOLLOWED:
                followed.append(match)
            bucket = bucket_of(match, spot.depth)
            if bucket_of_token.setdefault(token_id, bucket) == bucket:
                group = groups.setdefault(bucket, _Group(bucket))
                group.counts[token_id] = group.counts.get(token_id, 0) + 1
                group.num_occurrences += 1
        self._offer(spot, groups.values(), followers)

    def _offer(
        self, spot: _Spot, groups: Iterable[_Group], followers: dict[int, list[Match]]
    ) -> None:
        claims: list[Claim] = []
        remaining = 1.0
        for group in groups:
            slot = evidence_slot(
                group.bucket, group.num_occurrences, len(group.counts), is_first=not claims
            )
            claims.append((slot, group.counts))
            hit_rate = self._confidence.hit_rate(slot)
            for token_id, count in group.counts.items():
                log_prob = math.log(remaining * hit_rate * count / group.num_occurrences)
                child = _Spot(spot.node, spot.depth + 1, spot.cost - log_prob, followers[token_id])
                self._push(child, token_id, log_prob)
            remaining *= 1.0 - hit_rate
        self._claims[spot.node] = claims

    def _push(self, child: _Spot, token_id: int, log_prob: float) -> None:
        parent, depth, cost, matches = child
        if cost <= self._max_cost:
            self._serial += 1
            heappush(
                self._heap,
                _Candidate(cost, self._serial, parent, token_id, log_prob, depth, matches),
            )

    def _follower(self, position: int, depth: int) -> int:
        """Return the token ``depth`` after ``position``; the text's end continues periodically."""
        return self._text[position + depth % (len(self._text) - position)]

    def _agreed_follower(self, matches: Sequence[Match], depth: int) -> int:
        """Return the token that all occurrences lead on to; a separator if there is none."""
        if not matches:
            return SEPARATOR
        agreed = self._follower(matches[0].position, depth)
        for match in matches[1:]:
            if self._follower(match.position, depth) != agreed:
                return SEPARATOR
        return agreed


def _agreed_slot(matches: Sequence[Match], depth: int) -> int:
    bucket = bucket_of(matches[0], depth)
    if len(matches) == 1:
        return sole_slot(bucket)
    num_occurrences = 1
    for match in matches[1:]:
        num_occurrences += bucket_of(match, depth) == bucket
    return evidence_slot(bucket, num_occurrences, 1, is_first=True)


def bucket_of(match: Match, depth: int) -> int:
    """Return the bucket of an occurrence that has led on for ``depth`` tokens."""
    if match.resumption:
        return resumed_bucket(match.resumption, depth)
    return length_bucket(match.length + depth)
