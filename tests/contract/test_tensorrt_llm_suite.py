"""
The verify service's own contract suite, run against the tensorrt-llm engine on the fake package.

What the engine does not promise, as ``GetModelInfo`` says, is left out by name; all else holds.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tests.doubles.tensorrt_verifier import running_tensorrt_verifier

ROOT = Path(__file__).resolve().parents[2]
SERVICE = "tests/contract/test_verify_service.py"
SESSIONS = "tests/contract/test_verify_sessions.py"
SUITE = (SERVICE, SESSIONS, "tests/contract/test_verify_refusals.py")

NOT_PROMISED = {
    "seeded_invariance": (
        f"{SERVICE}::test_ids_are_the_same_alone_and_in_a_batch[sampled]",
        *(
            f"{SERVICE}::test_resume_continues_where_the_answer_broke_off[{length}-sampled]"
            for length in (1, 10, 23)
        ),
        *(
            f"{SESSIONS}::test_ids_are_those_of_plain_decoding_whatever_is_proposed[{kind}-sampled]"
            for kind in ("none", "right", "wrong", "mixed")
        ),
        f"{SESSIONS}::test_session_resumes_after_emitted_tokens",
        f"{SESSIONS}::test_sessions_and_streams_share_the_engine",
    ),
    "penalties": (f"{SERVICE}::test_stop_token_ends_the_answer_and_is_named",),
    "minimum length": (f"{SERVICE}::test_stop_token_is_not_chosen_before_the_minimum",),
    "max_logprobs": tuple(
        f"{SERVICE}::test_every_token_has_its_logprobs_when_asked[{count}]" for count in (0, 2)
    ),
}


@pytest.mark.asyncio
@pytest.mark.timeout(240)
async def test_the_service_contract_holds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    left_out = [name for names in NOT_PROMISED.values() for name in names]
    async with running_tensorrt_verifier(monkeypatch, tmp_path) as verifier:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "pytest", "-q", "-p", "no:randomly", "--verify-address", verifier.address),
            *(f"--deselect={name}" for name in left_out),
            *SUITE,
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()

    text = output.decode()
    assert process.returncode == 0, text[-4000:]
    assert f"{len(left_out)} deselected" in text
