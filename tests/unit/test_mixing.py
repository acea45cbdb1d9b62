"""Opinions of several drafters about one token, mixed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draft_service.mixing import Mixer, Opinion

SILENT = Opinion({})


def probability(mixer: Mixer, opinions: list[Opinion], token_id: int) -> float:
    """Return the mixed probability of a token."""
    (found,) = [each for each in mixer.mix(opinions) if each.token_id == token_id]
    return found.probability


def test_a_single_opinion_is_taken_as_it_is() -> None:
    assert probability(Mixer(), [Opinion({5: 0.7}), SILENT], 5) == pytest.approx(0.7)


def test_two_that_agree_are_surer_than_either() -> None:
    assert probability(Mixer(), [Opinion({5: 0.7}), Opinion({5: 0.8})], 5) > 0.8


def test_one_that_expects_something_else_makes_less_sure() -> None:
    assert probability(Mixer(), [Opinion({5: 0.7}), Opinion({6: 0.9})], 5) < 0.6


def test_a_drafter_that_is_always_wrong_is_believed_less_and_less() -> None:
    mixer, opinions = Mixer(), [Opinion({5: 0.8}), Opinion({6: 0.8})]
    before = probability(mixer, opinions, 6)

    for _ in range(200):
        mixer.learn(mixer.mix(opinions), 5)

    assert probability(mixer, opinions, 6) < before / 2
    assert probability(mixer, opinions, 5) > 0.8


def test_estimates_become_what_is_seen() -> None:
    """One says 0.9 and is right in half of the cases."""
    mixer, opinions = Mixer(), [Opinion({5: 0.9}), SILENT]

    for turn in range(400):
        mixer.learn(mixer.mix(opinions), 5 if turn % 2 else 6)

    assert probability(mixer, opinions, 5) == pytest.approx(0.5, abs=0.1)


def test_a_new_session_starts_from_what_its_workload_taught() -> None:
    taught, workload, opinions = Mixer(), Mixer(), [Opinion({5: 0.8}), Opinion({6: 0.8})]
    for _ in range(200):
        taught.learn(taught.mix(opinions), 5)
    for _ in range(20):
        workload.approach(taught, 0.5)

    started = probability(Mixer(workload), opinions, 5)

    assert started == pytest.approx(probability(taught, opinions, 5), abs=0.01)


def test_what_a_session_learns_stays_its_own() -> None:
    workload, opinions = Mixer(), [Opinion({5: 0.8}), Opinion({6: 0.8})]
    before = probability(workload, opinions, 5)
    session = Mixer(workload)

    session.learn(session.mix(opinions), 6)

    assert probability(workload, opinions, 5) == before


OPINIONS = st.dictionaries(
    st.integers(min_value=0, max_value=4), st.floats(min_value=1e-9, max_value=1.0), max_size=4
).map(Opinion)


@given(
    opinions=st.lists(OPINIONS, min_size=1, max_size=3),
    committed=st.lists(st.integers(min_value=0, max_value=5), max_size=30),
)
def test_estimates_of_siblings_sum_to_at_most_one(
    opinions: list[Opinion], committed: list[int]
) -> None:
    mixer = Mixer()

    for token_id in committed:
        mixer.learn(mixer.mix(opinions), token_id)
        estimates = mixer.mix(opinions)

        assert sum(each.probability for each in estimates) <= 1 + 1e-9
        assert all(each.probability > 0 for each in estimates)
