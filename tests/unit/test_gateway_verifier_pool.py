"""Which verifier takes the next sequence, and what is said when none can."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from gateway.affinity import ANYWHERE, PREFIX_TOKENS, Affinity, affinity_of
from gateway.counters import Counters
from gateway.generation import Sampling, SequenceRequest, TokenLimits, VerifierLoad
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


def sequence(
    beginning: Iterable[int], rest: Iterable[int] = (), *, tenant: str = "", salt: str = ""
) -> SequenceRequest:
    """Return a sequence with a prompt."""
    return SequenceRequest(
        prompt_token_ids=(*beginning, *rest),
        emitted_token_ids=(),
        sampling=Sampling(),
        limits=TokenLimits(8),
        tenant=tenant,
        cache_salt=salt,
    )


def session(name: str) -> Affinity:
    """Return the affinity of a session."""
    return affinity_of(name, sequence((1, 2)))


def prompt(
    beginning: Iterable[int], rest: Iterable[int] = (), *, tenant: str = "", salt: str = ""
) -> Affinity:
    """Return the affinity of a prompt without a session."""
    return affinity_of("", sequence(beginning, rest, tenant=tenant, salt=salt))


def pool_of(*links: VerifierLink) -> VerifierPool:
    """Return a pool of links."""
    pool = VerifierPool()
    for one in links:
        pool.add(one)
    return pool


def test_the_least_loaded_verifier_is_taken() -> None:
    pool = pool_of(link("a:1", num_running=3), link("b:1", num_running=1), link("c:1"))

    assert pool.choose("scripted").address == "c:1"


@pytest.mark.asyncio
async def test_a_verifier_that_promises_less_takes_no_request_over() -> None:
    """Two engines may serve one name: a seeded answer must not go on where seeds fix none."""
    full, lesser = link("a:1", num_running=9), link("b:1")
    weaker = model_info()
    weaker.capabilities.seeded_invariance = False
    lesser.info = model_info_from_proto(weaker)
    assert full.info is not None
    promised = full.info.capabilities

    assert pool_of(full, lesser).choose("scripted", promised=promised) is full
    assert pool_of(full, lesser).choose("scripted", promised=lesser.info.capabilities) is lesser
    with pytest.raises(Unavailable):
        pool_of(lesser).choose("scripted", promised=promised)
    with pytest.raises(Unavailable):
        await pool_of(lesser).choose_within(0.01, "scripted", ANYWHERE, avoid=(), promised=promised)


@pytest.mark.parametrize(
    "lost", ["penalties", "logit_bias", "structured_output", "seeded_invariance", "max_logprobs"]
)
def test_what_one_verifier_lacks_it_does_not_cover(lost: str) -> None:
    full, lesser = model_info(), model_info()
    lesser.capabilities.ClearField(lost)  # type: ignore[arg-type]  # a literal
    promised = model_info_from_proto(full).capabilities
    offered = model_info_from_proto(lesser).capabilities

    assert promised.cover(promised)
    assert promised.cover(offered)
    assert not offered.cover(promised)


def test_a_session_stays_on_its_verifier_until_that_is_much_busier() -> None:
    links = [link("a:1"), link("b:1"), link("c:1")]
    own = choose_link(links, session("session"))
    for one in links:
        one.loads.reset(VerifierLoad(num_running=0 if one is not own else 4))
    still_own = choose_link(links, session("session"))
    own.loads.reset(VerifierLoad(num_running=9))
    moved = choose_link(links, session("session"))

    assert still_own is own
    assert moved is not own
    assert {choose_link(links, session(f"s{i}")).address for i in range(50)} <= {
        "a:1",
        "b:1",
        "c:1",
    }


@pytest.mark.parametrize("salt", ["", "other"])
def test_prompts_that_begin_alike_go_to_one_verifier_while_it_is_hardly_busier(salt: str) -> None:
    links = [link("a:1"), link("b:1"), link("c:1")]
    alike = [prompt(range(PREFIX_TOKENS), (number,), salt=salt) for number in range(20)]

    (own,) = {choose_link(links, each) for each in alike}
    for one in links:
        one.loads.reset(VerifierLoad(num_running=5 if one is not own else 7))
    assert choose_link(links, alike[0]) is own
    own.loads.reset(VerifierLoad(num_running=8))
    assert choose_link(links, alike[0]) is not own


def test_prompts_that_begin_otherwise_or_belong_to_others_spread() -> None:
    links = [link("a:1"), link("b:1"), link("c:1")]
    beginnings = [prompt(range(number, number + PREFIX_TOKENS)) for number in range(60)]
    salts = [prompt(range(PREFIX_TOKENS), salt=str(number)) for number in range(60)]
    tenants = [prompt(range(PREFIX_TOKENS), tenant=str(number)) for number in range(60)]

    for affinities in (beginnings, salts, tenants):
        assert len({choose_link(links, each).address for each in affinities}) == 3


def test_short_prompts_go_where_the_load_is_least() -> None:
    assert prompt(range(PREFIX_TOKENS - 1)) is ANYWHERE
    assert affinity_of("session", sequence(range(PREFIX_TOKENS))).key == "session"


def test_sessions_spread_over_verifiers() -> None:
    links = [link("a:1"), link("b:1"), link("c:1")]

    assert len({choose_link(links, session(f"session-{i}")).address for i in range(60)}) == 3


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

    assert await pool.choose_within(0.1, "scripted", ANYWHERE, avoid=()) is usable
    assert await pool.choose_within(0.1, "scripted", ANYWHERE, avoid={"a:1"}) is None
    usable.problem = Unavailable("lost")
    with pytest.raises(Unavailable):
        await pool.choose_within(0.01, "scripted", ANYWHERE, avoid=())
