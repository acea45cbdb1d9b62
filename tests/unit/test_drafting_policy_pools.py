"""Choice among draft pools by what each is worth to a kind of request, in simulated time."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from gateway.counters import Counters
from gateway.drafting_controller import DraftingController
from gateway.drafting_policy import PolicyLimits
from gateway.generation import (
    DraftFallback,
    DraftingChoice,
    DraftingMode,
    DraftingWish,
    DraftPool,
    ModelInfo,
    PoolCause,
    PriorityClass,
    Step,
    VerifierLoad,
)
from gateway.pool_evidence import PLAIN, PoolEvidence
from gateway.verifier_codec import model_info_from_proto
from gateway.workload_pools import MAX_WORKLOADS
from paceline.routing import Routing
from tests.doubles.scripted_verifier import model_info

POOLS = ("blue", "green")
STEPS_PER_REQUEST = 120
STEP_SECONDS = 0.02

Worth = dict[tuple[str, str], float]
"""Mean accepted drafts per step by workload and pool."""

APART: Worth = {
    ("code", "blue"): 3.0,
    ("code", "green"): 0.5,
    ("chat", "blue"): 0.5,
    ("chat", "green"): 2.5,
}


@dataclass(eq=False)
class Stream:
    """A running sequence that obeys."""

    wish: DraftingWish
    priority: PriorityClass = PriorityClass.STANDARD
    choice: DraftingChoice = field(default_factory=DraftingChoice)
    steps: Counter[str] = field(default_factory=Counter)
    """Steps by pool."""

    @property
    def pool(self) -> str:
        """The pool of most steps; empty: none."""
        return self.steps.most_common(1)[0][0]

    def set_drafting(self, choice: DraftingChoice) -> None:
        """Obey."""
        self.choice = choice


@dataclass
class Verifier:
    """A verifier with several pools."""

    info: ModelInfo | None = field(default_factory=lambda: _info(POOLS))
    address: str = "v:1"
    load: VerifierLoad = field(default_factory=lambda: VerifierLoad(num_running=2))
    num_sequences: int = 0


def _info(pools: tuple[str, ...]) -> ModelInfo:
    described = model_info_from_proto(model_info())
    return replace(described, draft_pools=tuple(DraftPool(name, available=True) for name in pools))


class World:
    """Pools of known worth, a controller that does not know it, and a clock."""

    def __init__(
        self, worth: Worth, *, default_pool: str = "", seconds: Callable[[str], float] | None = None
    ) -> None:
        self.worth = dict(worth)
        self.seconds = seconds or (lambda _pool: STEP_SECONDS)
        self.now = 100.0
        self.dice = random.Random(5)  # noqa: S311
        self.verifier = Verifier()
        self.counters = Counters()
        self.controller = DraftingController(
            PolicyLimits(),
            default_pool=default_pool,
            counters=self.counters,
            clock=lambda: self.now,
            draw=self.dice.random,
        )

    def serve(self, workload: str, **wish: object) -> Stream:
        """Run one request from its start to its end."""
        stream = Stream(DraftingWish(workload=workload, **wish))  # type: ignore[arg-type]
        stream.choice = self.controller.admit(self.verifier, stream)
        for _ in range(STEPS_PER_REQUEST):
            self.step(stream)
            self.controller.refresh(self.verifier)
        self.controller.forget(self.verifier, stream)
        return stream

    def step(self, stream: Stream) -> None:
        """Let one step of a stream happen."""
        pool = stream.choice.pool
        stream.steps[pool] += 1
        self.now += self.seconds(pool)
        mean = self.worth[stream.wish.workload, pool] if pool else 0.0
        accepted = int(mean) + (self.dice.random() < mean % 1)
        step = Step((1,) * (accepted + 1), num_drafted=8 if pool else 0, num_accepted=accepted)
        self.controller.observe_step(stream, step)

    def last_pools(self, num_requests: int) -> dict[str, str]:
        """Serve requests of all workloads in turn; return the pools of the last of each."""
        workloads = sorted({workload for workload, _ in self.worth})
        return {
            workload: self.serve(workload).pool
            for _ in range(num_requests)
            for workload in workloads
        }


def swapped(worth: Worth) -> Worth:
    """Return the worth with both pools exchanged."""
    other = dict(zip(POOLS, reversed(POOLS), strict=True))
    return {(workload, other[pool]): value for (workload, pool), value in worth.items()}


def test_each_workload_finds_its_pool_within_three_requests_and_again_when_pools_swap() -> None:
    world = World(APART)

    first = world.last_pools(3)
    world.worth = swapped(APART)
    second = world.last_pools(4)
    world.worth = dict(APART)
    third = world.last_pools(4)

    assert first == {"code": "blue", "chat": "green"}
    assert second == {"code": "green", "chat": "blue"}
    assert third == first


@settings(max_examples=20, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(
    better=st.floats(1.0, 5.0),
    share=st.floats(0.1, 0.6),
    best=st.sampled_from(POOLS),
)
def test_whatever_the_pools_are_worth_the_better_one_is_used_and_trials_stay_few(
    better: float, share: float, best: str
) -> None:
    worse = (1 + better) * share - 1
    values = {pool: better if pool == best else max(worse, 0.0) for pool in POOLS}
    world = World({("any", pool): value for pool, value in values.items()})

    for _ in range(3):
        world.serve("any")
    used = sum((world.serve("any").steps for _ in range(20)), Counter())

    assert used[best] >= 0.8 * used.total()


def test_equal_pools_are_not_flipped_between() -> None:
    world = World({("any", pool): 2.4 for pool in POOLS})

    pools = [world.serve("any").pool for _ in range(40)]

    assert sum(before != after for before, after in pairwise(pools)) <= 2


def test_a_pool_that_makes_steps_dear_loses_to_one_that_accepts_less_at_less_cost() -> None:
    worth = {("any", "blue"): 3.0, ("any", "green"): 2.5}
    world = World(worth, seconds=lambda pool: 0.04 if pool == "blue" else 0.02)

    assert world.last_pools(4) == {"any": "green"}


def test_a_workload_that_no_pool_helps_stops_drafting_and_others_go_on() -> None:
    worth = {
        ("poem", "blue"): 0.1,
        ("poem", "green"): 0.15,
        ("code", "blue"): 3.0,
        ("code", "green"): 2.9,
    }
    world = World(worth)

    world.last_pools(4)
    poems = sum((world.serve("poem").steps for _ in range(10)), Counter())
    code = world.serve("code")

    assert poems[""] > 0.5 * poems.total()
    assert code.pool


def test_what_a_request_or_a_file_names_comes_before_what_was_measured() -> None:
    world = World(APART)
    world.last_pools(3)
    asked = world.serve("code", pool="green")
    insisting = world.serve("code", mode=DraftingMode.ON)
    world.controller.use_routing(Routing(weights={"green": 1}))
    routed = world.serve("code")
    world.controller.use_routing(Routing(weights={"green": 0, "blue": 0}))
    measured = world.serve("code")

    assert (asked.pool, asked.choice.cause) == ("green", PoolCause.REQUESTED)
    assert insisting.pool == "blue"
    assert (routed.choice.pool, routed.choice.cause) == ("green", PoolCause.ROUTED)
    assert (measured.pool, measured.choice.cause) == ("blue", PoolCause.MEASURED)


def test_a_default_pool_of_the_settings_is_kept_whatever_is_measured() -> None:
    world = World(APART, default_pool="green")

    assert world.last_pools(3) == {"code": "green", "chat": "green"}
    assert world.counters.value("probes", "blue") == 0


def test_choices_and_trials_are_counted_by_cause() -> None:
    world = World(APART)

    world.last_pools(3)

    trials = sum(world.counters.value("pool_choices", pool, "trial") for pool in POOLS)
    assert trials == sum(world.counters.value("probes", pool) for pool in POOLS) >= 2
    assert world.counters.value("pool_choices", "blue", "measured") >= 3


def test_a_pool_that_goes_away_is_left_for_the_next_best() -> None:
    world = World(APART)
    world.last_pools(3)
    assert world.verifier.info is not None
    pools = (DraftPool("blue", available=False, cause=DraftFallback.UNREACHABLE),)
    green = DraftPool("green", available=True)
    world.verifier.info = replace(world.verifier.info, draft_pools=(*pools, green))

    assert world.serve("code").pool == "green"


def test_the_longest_unseen_workload_makes_room() -> None:
    world = World(APART)

    for number in range(MAX_WORKLOADS + 10):
        world.controller.admit(world.verifier, Stream(DraftingWish(workload=str(number))))

    assert len(list(world.controller.workloads.reports())) == MAX_WORKLOADS * len(POOLS)


def test_gain_over_plain_is_compared_at_like_load_only() -> None:
    evidence = PoolEvidence()
    for _ in range(40):
        evidence.add_step("any", "blue", Step((1, 2), num_drafted=1, num_accepted=1))
        evidence.add_seconds(("v", 2), "blue", 0.03)
        evidence.add_seconds(("v", 7), PLAIN, 0.9)
    unknown = evidence.gain("any", "blue")
    for _ in range(40):
        evidence.add_seconds(("v", 2), PLAIN, 0.02)

    assert unknown is None
    assert evidence.gain("any", "blue") == pytest.approx(2 * 0.02 / 0.03)


def test_verifiers_that_reach_different_pools_choose_each_for_itself() -> None:
    world = World(APART)
    world.last_pools(3)
    other = Verifier(_info(("green",)), "v:2")
    stream = Stream(DraftingWish(workload="code"))
    stream.choice = world.controller.admit(other, stream)
    for _ in range(5):
        world.step(stream)
        world.controller.refresh(other)
        world.controller.refresh(world.verifier)

    assert stream.choice.pool == "green"
    assert world.serve("code").pool == "blue"
