"""What became of each tree is counted, and of nodes for which there was no room."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from paceline.tree import TokenTree
from tests.doubles.engine_harness import POOL
from tests.doubles.small_engine import OTHER_POOL, guesses, request, run, small_engine
from verify_service.engine import engine_thread
from verify_service.engine.draft_tally import Fate
from verify_service.engine.engine_thread import EngineThread
from verify_service.engine.sequence import Drafting
from verify_service.engine.step_engine import StepEngine
from verify_service.engine.steps import PoolUp, Submit, TreeFact
from verify_service.metrics import VerifyMetrics, calibration_reader, draft_tally

CHAIN = TokenTree.chain((1, 2, 3), (0.0, 0.0, 0.0))


def started() -> tuple[StepEngine, int]:
    """Return an engine whose sequence 1 drafts, and the sequence's committed length."""
    engine = small_engine()
    engine.apply(PoolUp(POOL))
    engine.apply(PoolUp(OTHER_POOL))
    asked = request(1)
    engine.apply(Submit(asked, Drafting(POOL)))
    emitted = engine.step().steps
    return engine, len(asked.prompt_token_ids) + sum(len(step.token_ids) for step in emitted)


def test_every_tree_has_one_fate() -> None:
    engine, length = started()

    engine.apply(TreeFact(1, length, CHAIN, POOL))
    engine.apply(TreeFact(1, length + 9, CHAIN, POOL))
    engine.apply(TreeFact(1, length, CHAIN, OTHER_POOL))
    engine.apply(TreeFact(1, 0, CHAIN, POOL))
    engine.apply(TreeFact(77, length, CHAIN, POOL))

    assert engine.tally.trees() == {
        (POOL, Fate.MERGED): 1,
        (POOL, Fate.AHEAD): 1,
        (OTHER_POOL, Fate.STALE): 1,
        (POOL, Fate.STALE): 1,
        (POOL, Fate.ENDED): 1,
    }


def test_a_tree_that_a_full_inbox_drops_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    thread = EngineThread(small_engine())
    monkeypatch.setattr(engine_thread, "MAX_INBOX", 0)

    thread.send(TreeFact(1, 1, CHAIN, POOL))

    assert thread.draft_tally.trees() == {(POOL, Fate.INBOX_FULL): 1}


def test_nodes_without_a_kv_block_are_counted_and_the_rest_is_verified() -> None:
    """No sequence has to wait for blocks, only its drafts do."""
    roomy, tight = small_engine(), small_engine(num_blocks=8, max_running=4)

    for engine in (roomy, tight):
        run([request(i, max_tokens=12) for i in range(1, 3)], engine, guesses)

    assert roomy.tally.num_nodes_without_blocks == 0
    assert tight.tally.num_nodes_without_blocks > 0


def test_prometheus_sees_the_counts_of_an_engine_that_keeps_them() -> None:
    engine, length = started()
    thread, registry = EngineThread(engine), CollectorRegistry()
    VerifyMetrics(registry, {}, calibration_reader(thread), draft_tally(thread))

    engine.apply(TreeFact(1, length, CHAIN, POOL))

    name = "paceline_draft_tree_outcomes_total"
    assert registry.get_sample_value(name, {"draft": POOL, "outcome": "merged"}) == 1
    assert registry.get_sample_value("paceline_draft_nodes_without_kv_total") == 0
    assert draft_tally(object()) is None
