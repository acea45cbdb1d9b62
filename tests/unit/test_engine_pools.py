"""Draft pools as the engine sees them: sessions follow policies, and every fallback has a cause."""

from __future__ import annotations

import pytest

from paceline.tree import TokenTree
from tests.doubles.engine_harness import POOL
from tests.doubles.small_engine import OTHER_POOL, request, small_engine
from verify_service.engine.sampling import Fallback
from verify_service.engine.sequence import Drafting
from verify_service.engine.step_engine import StepEngine
from verify_service.engine.steps import (
    CancelSequence,
    ChangeDrafting,
    PoolDown,
    PoolUp,
    SessionClosed,
    SessionCommitted,
    SessionLost,
    SessionOpened,
    SessionRefused,
    Submit,
    TreeFact,
)


def test_limit_of_the_request_bounds_its_nodes() -> None:
    """B096: and never beyond the engine's own."""
    for own, most in ((0, 8), (3, 3), (50, 8)):
        engine = small_engine()
        engine.apply(PoolUp(POOL))
        engine.apply(Submit(request(1), Drafting(POOL, max_draft_tokens=own)))
        engine.step()
        engine.apply(TreeFact(1, 7, TokenTree(tuple(range(16)), (0,) * 16), POOL))

        (step,) = engine.step().steps

        assert step.num_drafted == most


def _opened(engine: StepEngine) -> list[tuple[str, str]]:
    return [(type(event).__name__, event.pool) for event in engine.step().session_events]


def test_session_follows_the_policy_of_its_sequence() -> None:
    engine = small_engine()
    engine.apply(PoolUp(POOL))
    engine.apply(PoolUp(OTHER_POOL))
    engine.apply(Submit(request(1), Drafting(POOL)))
    assert _opened(engine) == [
        (SessionOpened.__name__, POOL),
        (SessionCommitted.__name__, POOL),
    ]

    engine.apply(ChangeDrafting(1, Drafting(OTHER_POOL)))
    assert _opened(engine)[:2] == [
        (SessionClosed.__name__, POOL),
        (SessionOpened.__name__, OTHER_POOL),
    ]

    engine.apply(SessionLost(OTHER_POOL, 1))
    assert _opened(engine)[0] == (SessionOpened.__name__, OTHER_POOL)
    engine.apply(SessionLost(POOL, 1))
    assert _opened(engine) == [(SessionCommitted.__name__, OTHER_POOL)]

    engine.apply(CancelSequence(1))
    assert _opened(engine) == [(SessionClosed.__name__, OTHER_POOL)]


@pytest.mark.parametrize(
    ("drafting", "cause"),
    [
        (Drafting(""), Fallback.REQUESTED),
        (Drafting("", fallback=Fallback.LOAD), Fallback.LOAD),
        (Drafting("nowhere"), Fallback.NO_POOL),
        (Drafting(OTHER_POOL), Fallback.UNREACHABLE),
        (Drafting(POOL), None),
    ],
)
def test_every_step_without_drafts_says_why(drafting: Drafting, cause: Fallback | None) -> None:
    engine = small_engine()
    engine.apply(PoolUp(POOL))
    engine.apply(Submit(request(1), drafting))

    (step,) = engine.step().steps

    assert step.fallback is cause


def test_refusal_of_one_pool_does_not_bind_another() -> None:
    engine = small_engine()
    engine.apply(PoolUp(POOL))
    engine.apply(PoolUp(OTHER_POOL))
    engine.apply(Submit(request(1), Drafting(POOL)))
    engine.step()
    engine.apply(SessionRefused(POOL, 1, Fallback.TOO_LONG))
    assert engine.step().steps[0].fallback is Fallback.TOO_LONG

    engine.apply(ChangeDrafting(1, Drafting(OTHER_POOL)))

    assert engine.step().steps[0].fallback is None


def test_pool_that_goes_down_and_up_gets_its_sessions_anew() -> None:
    """B073: the running request drafts again."""
    engine = small_engine()
    engine.apply(PoolUp(POOL))
    engine.apply(Submit(request(1), Drafting(POOL)))
    engine.step()

    engine.apply(PoolDown(POOL, Fallback.UNREACHABLE))
    down = engine.step()
    engine.apply(PoolUp(POOL))
    up = engine.step()

    assert down.session_events == ()
    assert down.steps[0].fallback is Fallback.UNREACHABLE
    assert up.steps[0].fallback is None
    opened = up.session_events[0]
    assert isinstance(opened, SessionOpened)
    assert len(opened.committed_token_ids) == 8


def test_tree_of_a_pool_that_the_sequence_left_is_dropped() -> None:
    engine = small_engine()
    engine.apply(PoolUp(POOL))
    engine.apply(Submit(request(1), Drafting(POOL)))
    engine.step()
    engine.apply(ChangeDrafting(1, Drafting("")))

    engine.apply(TreeFact(1, 7, TokenTree.chain([1, 2]), POOL))
    engine.apply(TreeFact(1, 7, TokenTree.chain([1, 2]), ""))

    assert engine.step().steps[0].num_drafted == 0
