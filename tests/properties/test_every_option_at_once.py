"""All sampling options at once on a real model: drafts change nothing that a client can see."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from bench.engine_run import tiny_engine
from bench.option_cases import differences, draw_case
from verify_service.engine.draft_selection import BudgetMode
from verify_service.engine.step_engine import StepEngine

BATCH = 4
NUM_EXAMPLES = 130
"""Batches of requests, more than 500 of them."""


@cache
def _engine(budget: BudgetMode) -> StepEngine:
    return tiny_engine(
        num_blocks=96, block_size=4, max_running=BATCH, budget=budget, max_draft_tokens=12
    )


@pytest.mark.timeout(600)
@settings(max_examples=NUM_EXAMPLES, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(data=st.data())
def test_answers_are_those_of_plain_decoding(data: st.DataObject) -> None:
    """
    B009, B022, B023, B025-B027, B030-B032, B034-B037, B044, B059, B063-B065, B080: ids, logprobs,
    finish reasons and usage, with right, wrong, scripted and random trees in one batch.
    """
    cases = [
        draw_case(lambda options: data.draw(st.sampled_from(options)), index + 1, max_tokens=10)
        for index in range(BATCH)
    ]
    plain, drafting = _engine(BudgetMode.ADAPTIVE), _engine(BudgetMode.FIXED)

    assert differences(cases, plain, drafting) == []
    for engine in (plain, drafting):
        engine.check_integrity()
        assert engine.blocks.num_in_use == 0
