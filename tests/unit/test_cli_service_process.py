from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paceline.cli.address import bindable_address
from paceline.cli.health import wait_until_serving
from paceline.cli.service_process import ServiceProcess, ServiceSpec, error_text, last_error

ROOT = Path(__file__).resolve().parents[2]
MODULE = "tests.doubles.fake_service"


def _process(folder: Path, *arguments: str) -> ServiceProcess:
    address = bindable_address("127.0.0.1:0", "--listen")
    return ServiceProcess(ServiceSpec("fake", MODULE, address, arguments, folder / "fake.log"))


@pytest.mark.asyncio
async def test_service_serves_and_stops_when_told(tmp_path: Path) -> None:
    process = _process(tmp_path)

    await process.start()
    async with asyncio.timeout(20):
        await wait_until_serving(process.spec.address)
        await process.stop(10)

    assert process.exit_code == 0


@pytest.mark.asyncio
async def test_killed_service_starts_again_at_its_address(tmp_path: Path) -> None:
    process = _process(tmp_path)

    async with asyncio.timeout(30):
        await process.start()
        await wait_until_serving(process.spec.address)
        process.signal(signal.SIGKILL)
        assert await process.wait() == -signal.SIGKILL
        await process.start()
        await wait_until_serving(process.spec.address)
        await process.stop(10)


@pytest.mark.asyncio
async def test_obituary_names_the_last_error(tmp_path: Path) -> None:
    process = _process(tmp_path, "--says", "fake: error: no such model", "--exits", "2")

    await process.start()
    assert await process.wait() == 2

    assert process.obituary() == (
        f"fake ended with code 2: no such model (log: {tmp_path / 'fake.log'})"
    )


def test_service_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    """Nothing tells the child: it notices that its standard input has ended."""
    address = bindable_address("127.0.0.1:0", "--listen")
    pid_file = tmp_path / "pid"
    starter = (
        "import subprocess, sys, time;"
        f"subprocess.Popen([sys.executable, '-m', 'paceline.cli.child', '{MODULE}', '--listen',"
        f" '{address}', '--pid-file', '{pid_file}'], stdin=subprocess.PIPE, process_group=0);"
        "time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", starter], cwd=ROOT)  # noqa: S603 own script
    pid = _eventual_pid(pid_file)

    parent.kill()
    parent.wait()

    assert _ends(pid)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("gateway: error: --model x: no such folder", "--model x: no such folder"),
        (
            '{"level": "error", "event": "load_failed", "error": "bad file"}',
            "load_failed: bad file",
        ),
        ('{"level": "error", "event": "x", "exception": "T\\nValueError: 3"}', "x: ValueError: 3"),
        ("ModuleNotFoundError: No module named 'torch'",) * 2,
        ('{"level": "info", "event": "ready"}', ""),
        ("{broken", ""),
        ("Loading weights", ""),
    ],
)
def test_error_is_read_from_any_kind_of_log_line(line: str, expected: str) -> None:
    assert error_text(line) == expected


def test_last_error_is_found_above_later_lines(tmp_path: Path) -> None:
    log_path = tmp_path / "a.log"
    log_path.write_text("ValueError: first\nKeyError: second\n  ^^^^\ngoodbye\n", encoding="utf-8")

    assert last_error(log_path) == "KeyError: second"
    assert last_error(tmp_path / "missing.log") == ""


def _eventual_pid(pid_file: Path) -> int:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if pid_file.exists() and (text := pid_file.read_text(encoding="utf-8")):
            return int(text)
        time.sleep(0.05)
    pytest.fail("the child never came up")


def _ends(pid: int) -> bool:
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        if not _is_running(pid):
            return True
        time.sleep(0.05)
    return False


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return _answers_signals(pid) if not Path("/proc").exists() else False
    return state != "Z"


def _answers_signals(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
