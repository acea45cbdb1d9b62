"""What ``paceline lossless`` concludes from answers that it has compared."""

from __future__ import annotations

import pytest

from paceline.cli.lossless import Compared, report
from paceline.cli.prompts import NamedPrompt


def _undrafted(*, fallbacks: tuple[str, ...] = (), num_empty_steps: int = 0) -> Compared:
    return Compared(
        NamedPrompt("code", "def"),
        seed=1,
        temperature=0.0,
        num_tokens=8,
        num_accepted=0,
        fallbacks=fallbacks,
        num_empty_steps=num_empty_steps,
        difference=None,
    )


@pytest.mark.parametrize(
    ("compared", "cause"),
    [
        (_undrafted(fallbacks=("load",), num_empty_steps=3), "load"),
        (
            _undrafted(num_empty_steps=3),
            "in 6 steps no tree had come in time or was worth a row",
        ),
        (_undrafted(), "the target agreed with none, or no step could use one"),
    ],
)
def test_nothing_shown_names_why_no_draft_was_accepted(compared: Compared, cause: str) -> None:
    told = report([compared, compared], 0.0)

    assert told.startswith("nothing shown: 2 answers, 16 tokens, 0 of them from drafts; ")
    assert f"no draft was accepted (cause: {cause}); ask for longer answers" in told
