"""How long a step may wait for trees."""

from __future__ import annotations

import pytest

from verify_service.engine.goodput import MIN_WAIT_SECONDS, worthwhile_wait


@pytest.mark.parametrize(
    ("expected_tokens", "num_sequences", "seconds"),
    [
        pytest.param(0.4, 1, 0.004, id="half of what the tokens are worth"),
        pytest.param(0.4, 4, 0.001, id="all sequences wait for the tree of one"),
        pytest.param(3.0, 1, 0.008, id="never longer than allowed"),
        pytest.param(0.001, 1, 0.0, id="too short for anything to come"),
        pytest.param(0.0, 0, 0.0, id="nobody is there"),
    ],
)
def test_a_step_waits_as_long_as_pays(
    expected_tokens: float, num_sequences: int, seconds: float
) -> None:
    found = worthwhile_wait(
        expected_tokens=expected_tokens,
        num_sequences=num_sequences,
        step_seconds=0.02,
        max_seconds=0.008,
    )

    assert found == pytest.approx(seconds)
    assert found == 0.0 or found >= MIN_WAIT_SECONDS
