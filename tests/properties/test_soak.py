"""A short soak: mixed traffic amid cancels, preemptions, drafter faults and policy flips."""

from __future__ import annotations

import pytest

from bench.soak import Soak


@pytest.mark.timeout(300)
def test_answers_are_those_of_plain_runs_whatever_goes_wrong() -> None:
    """
    B045-B047, B062, B063, B067, B070, B074: a cache too small for all, a drafter that lies, and
    requests that come, go and change; every block is accounted for after each step.
    """
    soaked = Soak(seed=5).run(2_000)

    assert soaked.num_different == 0
    assert soaked.num_leaked_blocks == 0
    assert min(soaked.num_cancelled, soaked.num_preemptions, soaked.num_flips) > 0
    assert soaked.num_faults > 20
    assert soaked.num_accepted > 100
