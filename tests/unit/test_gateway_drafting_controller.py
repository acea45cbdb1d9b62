"""How decisions of the drafting policy reach running sequences."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

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
    PriorityClass,
    Step,
    VerifierLoad,
)
from gateway.verifier_codec import model_info_from_proto
from tests.doubles.scripted_verifier import model_info

LIMITS = PolicyLimits(max_running_to_draft=4, min_dwell_seconds=1.0, probe_interval_seconds=10.0)


@dataclass(eq=False)
class FakeSequence:
    """A running sequence that remembers what it was told."""

    wish: DraftingWish = field(default_factory=DraftingWish)
    priority: PriorityClass = PriorityClass.STANDARD
    told: list[DraftingChoice] = field(default_factory=list)

    def set_drafting(self, choice: DraftingChoice) -> None:
        """Remember."""
        self.told.append(choice)


@dataclass
class FakeVerifier:
    """A verifier's state."""

    address: str = "v:1"
    info: ModelInfo | None = field(default_factory=lambda: model_info_from_proto(model_info()))
    load: VerifierLoad = field(default_factory=VerifierLoad)
    num_sequences: int = 0

    def set_pools(self, *pools: DraftPool) -> None:
        """Describe other pools."""
        assert self.info is not None
        self.info = replace(self.info, draft_pools=pools)


class Bench:
    """A controller with a clock that a test turns."""

    def __init__(self, default_pool: str = "") -> None:
        self.now = 100.0
        self.counters = Counters()
        self.verifier = FakeVerifier()
        self.controller = DraftingController(
            LIMITS, default_pool=default_pool, counters=self.counters, clock=lambda: self.now
        )

    def report(self, num_running: int, gain: float = 1.0) -> None:
        """Let the verifier report its load."""
        self.verifier.load = VerifierLoad(num_running=num_running, estimated_gain=gain)
        self.controller.refresh(self.verifier)

    def learn(self, sequence: FakeSequence, num_accepted: int, num_steps: int) -> None:
        """Let steps of a sequence come in."""
        for _ in range(num_steps):
            step = Step((1,) * (num_accepted + 1), num_drafted=5, num_accepted=num_accepted)
            self.controller.observe_step(sequence, step)


def test_running_sequences_hear_of_a_turn_once_and_of_the_return() -> None:
    bench, sequence = Bench(), FakeSequence()
    first = bench.controller.admit(bench.verifier, sequence)

    bench.report(9)
    bench.report(9)
    bench.now += 2
    bench.report(2)

    assert first == DraftingChoice("ngram")
    assert sequence.told == [
        DraftingChoice(fallback=DraftFallback.LOAD),
        DraftingChoice("ngram"),
    ]


def test_what_runs_while_a_pool_is_away_says_nothing_about_it() -> None:
    bench, sequence = Bench(), FakeSequence()
    bench.controller.admit(bench.verifier, sequence)
    bench.learn(sequence, num_accepted=2, num_steps=64)
    evidence = bench.controller.workloads.evidence
    before = evidence.tokens_per_step("", "ngram")

    for _ in range(200):
        bench.controller.observe_step(sequence, Step((1,), fallback=DraftFallback.UNREACHABLE))

    assert before is not None
    assert evidence.tokens_per_step("", "ngram") == before


def test_sequences_that_insist_or_refuse_are_left_alone() -> None:
    bench = Bench()
    insists = FakeSequence(DraftingWish(DraftingMode.ON))
    refuses = FakeSequence(DraftingWish(DraftingMode.OFF))
    for sequence in (insists, refuses):
        bench.controller.admit(bench.verifier, sequence)

    bench.report(9)

    assert (insists.told, refuses.told) == ([], [])


def test_a_forgotten_sequence_hears_nothing() -> None:
    bench, sequence = Bench(), FakeSequence()
    bench.controller.admit(bench.verifier, sequence)
    bench.controller.forget(bench.verifier, sequence)

    bench.report(9)

    assert sequence.told == []


def test_verifiers_are_judged_each_by_its_own_load() -> None:
    bench, sequence = Bench(), FakeSequence()
    other = FakeVerifier("v:2")
    bench.report(9)

    assert not bench.controller.admit(bench.verifier, FakeSequence()).pool
    assert bench.controller.admit(other, sequence).pool == "ngram"


def test_the_requests_that_arrive_at_once_are_counted_before_any_report() -> None:
    bench = Bench()
    choices = []
    for _ in range(6):
        choices.append(bench.controller.admit(bench.verifier, FakeSequence()).pool)
        bench.verifier.num_sequences += 1

    assert choices == ["ngram"] * 4 + [""] * 2


def test_low_acceptance_turns_a_pool_off_and_a_probe_brings_it_back() -> None:
    """B098."""
    bench, running = Bench(), FakeSequence()
    bench.controller.admit(bench.verifier, running)
    bench.learn(running, 0, 40)
    bench.report(1)
    turned_off = list(running.told)

    bench.now += 11
    bench.report(1)
    probing = list(running.told)
    bench.learn(running, 3, 80)
    bench.now += 3
    bench.report(1)

    assert turned_off == [DraftingChoice(fallback=DraftFallback.NO_GAIN)]
    assert probing[-1] == DraftingChoice("ngram")
    assert running.told[-1] == DraftingChoice("ngram")
    assert bench.counters.value("probes", "ngram") == 1
    assert bench.controller.gates()["v:1", "ngram"].is_open


def test_a_probe_without_success_ends() -> None:
    bench, running = Bench(), FakeSequence()
    bench.controller.admit(bench.verifier, running)
    bench.learn(running, 0, 40)
    bench.report(1)

    bench.now += 11
    bench.report(1)
    bench.learn(running, 0, 20)
    bench.now += 3
    bench.report(1)

    assert [bool(choice.pool) for choice in running.told] == [False, True, False]


def test_a_new_request_serves_as_the_probe() -> None:
    bench, running = Bench(), FakeSequence()
    bench.controller.admit(bench.verifier, running)
    bench.learn(running, 0, 40)
    bench.report(1)
    bench.controller.forget(bench.verifier, running)
    bench.now += 11

    first = bench.controller.admit(bench.verifier, FakeSequence())
    second = bench.controller.admit(bench.verifier, FakeSequence())

    assert (first.pool, second.pool) == ("ngram", "")


def test_a_gain_below_one_turns_drafting_off() -> None:
    bench, sequence = Bench(), FakeSequence()
    bench.controller.admit(bench.verifier, sequence)

    bench.report(1, gain=0.9)

    assert sequence.told == [DraftingChoice(fallback=DraftFallback.NO_GAIN)]


def test_a_pool_that_goes_away_and_comes_back_is_told_to_its_sequences() -> None:
    bench, sequence = Bench(), FakeSequence()
    bench.controller.admit(bench.verifier, sequence)

    bench.verifier.set_pools(DraftPool("ngram", available=False, cause=DraftFallback.DEMOTED))
    bench.controller.refresh(bench.verifier, pools_changed=True)
    bench.verifier.set_pools(DraftPool("ngram", available=True))
    bench.controller.refresh(bench.verifier, pools_changed=True)

    assert sequence.told == [
        DraftingChoice(fallback=DraftFallback.DEMOTED),
        DraftingChoice("ngram"),
    ]


def test_the_pool_is_the_requests_then_the_gateways_then_the_verifiers_first() -> None:
    bench, named = Bench(), Bench(default_pool="b")
    for one in (bench, named):
        one.verifier.set_pools(*(DraftPool(name, available=True) for name in "abc"))
    wish = FakeSequence(DraftingWish(pool="c"))

    assert bench.controller.admit(bench.verifier, FakeSequence()).pool == "a"
    assert named.controller.admit(named.verifier, FakeSequence()).pool == "b"
    assert named.controller.admit(named.verifier, wish).pool == "c"


def test_a_default_pool_that_the_verifier_lacks_is_a_cause() -> None:
    bench = Bench(default_pool="gone")

    choice = bench.controller.admit(bench.verifier, FakeSequence())

    assert choice == DraftingChoice(fallback=DraftFallback.NO_POOL)
