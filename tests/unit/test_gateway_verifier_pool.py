"""Which verifier takes the next sequence, and what is said when none can."""

from __future__ import annotations

import pytest

from gateway.counters import Counters
from gateway.generation import VerifierLoad
from gateway.verifier_codec import model_info_from_proto
from gateway.verifier_link import LinkTimes, VerifierLink
from gateway.verifier_pool import VerifierPool, choose_link
from paceline.errors import InvalidRequest, Mismatch, NotFound, Unavailable
from tests.doubles.scripted_verifier import model_info


class Deaf:
    """An observer that does nothing."""

    def on_change(self, link: VerifierLink) -> None:
        """Nothing."""

    def on_load(self, link: VerifierLink) -> None:
        """Nothing."""


def link(address: str, *, num_running: int = 0, model: str = "scripted") -> VerifierLink:
    """Return a link as it is once connected."""
    made = VerifierLink(
        address,
        tokenizer_fingerprint="",
        observer=Deaf(),
        counters=Counters(),
        times=LinkTimes(),
    )
    made.info, made.problem = model_info_from_proto(model_info(model=model)), None
    made.loads.reset(VerifierLoad(num_running=num_running))
    return made


def pool_of(*links: VerifierLink) -> VerifierPool:
    """Return a pool of links."""
    pool = VerifierPool()
    for one in links:
        pool.add(one)
    return pool


def test_the_least_loaded_verifier_is_taken() -> None:
    pool = pool_of(link("a:1", num_running=3), link("b:1", num_running=1), link("c:1"))

    assert pool.choose("scripted").address == "c:1"


def test_a_session_stays_on_its_verifier_until_that_is_much_busier() -> None:
    links = [link("a:1"), link("b:1"), link("c:1")]
    own = choose_link(links, "session")
    for one in links:
        one.loads.reset(VerifierLoad(num_running=0 if one is not own else 4))
    still_own = choose_link(links, "session")
    own.loads.reset(VerifierLoad(num_running=9))
    moved = choose_link(links, "session")

    assert still_own is own
    assert moved is not own
    assert {choose_link(links, f"s{i}").address for i in range(50)} <= {"a:1", "b:1", "c:1"}


def test_sessions_spread_over_verifiers() -> None:
    links = [link("a:1"), link("b:1"), link("c:1")]

    assert len({choose_link(links, f"session-{i}").address for i in range(60)}) == 3


def test_draining_and_lost_verifiers_are_left_out() -> None:
    draining, lost, usable = link("a:1"), link("b:1"), link("c:1", num_running=50)
    draining.is_draining = True
    lost.problem = Unavailable("lost")

    assert pool_of(draining, lost, usable).choose("scripted") is usable


def test_several_models_need_a_name() -> None:
    pool = pool_of(link("a:1", model="one"), link("b:1", model="two"))

    assert pool.model("two").info.model == "two"
    assert pool.choose("one").address == "a:1"
    with pytest.raises(InvalidRequest, match="name one of one, two"):
        pool.model("")
    with pytest.raises(NotFound, match="available: one, two"):
        pool.model("three")


def test_a_lost_model_stays_described_and_counts_its_ready_verifiers() -> None:
    lost = link("a:1")
    lost.problem = Unavailable("lost")
    model = pool_of(lost, link("b:1")).model("")

    assert (model.num_verifiers, model.num_ready_verifiers) == (2, 1)


def test_without_any_usable_verifier_each_cause_is_named() -> None:
    lost = link("a:1")
    lost.problem = Unavailable("a:1: gone")
    pool = pool_of(lost)

    with pytest.raises(Unavailable, match="a:1: gone") as refused:
        pool.choose("scripted")

    assert refused.value.retry_after_seconds is not None


def test_when_all_verifiers_misfit_the_misfit_is_the_answer() -> None:
    wrong = link("a:1")
    wrong.problem = Mismatch("a:1: another tokenizer")

    with pytest.raises(Mismatch, match="another tokenizer"):
        pool_of(wrong).model("")


@pytest.mark.asyncio
async def test_waiting_for_a_verifier_ends_when_one_comes_or_all_have_refused() -> None:
    usable = link("a:1")
    pool = pool_of(usable)

    assert await pool.choose_within(0.1, "scripted", "", avoid=()) is usable
    assert await pool.choose_within(0.1, "scripted", "", avoid={"a:1"}) is None
    usable.problem = Unavailable("lost")
    with pytest.raises(Unavailable):
        await pool.choose_within(0.01, "scripted", "", avoid=())
