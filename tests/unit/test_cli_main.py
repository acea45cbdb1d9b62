from __future__ import annotations

import argparse
import socket
from pathlib import Path

import pytest

from paceline.cli import doctor
from paceline.cli.address import bindable_address, split_address
from paceline.cli.main import build_parser, main
from paceline.errors import ConfigurationError


def test_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--version"])

    assert left.value.code == 0
    assert capsys.readouterr().out.startswith("paceline ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["up", "--demo", "--modle", "x"], "unrecognized arguments: --modle x"),
        (["up"], "one of the arguments --model --gguf --demo is required"),
        (["up", "--model", "missing-folder"], "--model missing-folder: there is no such folder"),
        (["up", "--gguf", "missing.gguf"], "--gguf missing.gguf: there is no such file"),
        (["up", "--demo", "--draft", "eagle:x"], "--draft is host:port"),
        (["up", "--demo", "--draft", "a,b"], "--draft is the name of a drafter"),
        (["generate", "--no-draft", "--draft", "x"], "not allowed with argument"),
        (["fly"], "invalid choice: 'fly'"),
        ([], "required: COMMAND"),
    ],
)
def test_misuse_is_one_line_and_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2

    shown = capsys.readouterr().err
    assert message in shown
    assert shown.count("\n") == 1


@pytest.mark.parametrize("command", ["up", "generate", "bench", "lossless", "doctor"])
def test_every_flag_says_what_it_does_and_its_default(command: str) -> None:
    (commands,) = (
        action.choices
        for action in build_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    for flag in commands[command]._actions:
        assert flag.help, flag.dest
        if flag.default not in (None, False, [], "", argparse.SUPPRESS):
            assert "default" in flag.help, flag.dest


def test_port_in_use_is_named_before_anything_starts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"

        assert main(["up", "--model", str(tmp_path), "--listen", address]) == 2

    expected = f"cannot listen on {address}: the port is in use; choose another address with"
    assert expected in capsys.readouterr().err


def test_folder_without_a_model_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["up", "--model", str(tmp_path), "--listen", "127.0.0.1:0"]) == 2

    assert f"there is no {tmp_path / 'config.json'}" in capsys.readouterr().err


def test_bug_shows_no_traceback_unless_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(options: object) -> int:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr(doctor, "run", broken)

    assert main(["doctor"]) == 1
    shown = capsys.readouterr().err
    assert shown == (
        "paceline: internal error: RuntimeError: two lines; PACELINE_DEBUG=1 shows where\n"
    )

    monkeypatch.setenv("PACELINE_DEBUG", "1")
    with pytest.raises(RuntimeError):
        main(["doctor"])


@pytest.mark.parametrize("address", ["50051", "localhost", ":1", "host:", "host:99999", "a:b:c"])
def test_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ConfigurationError, match="--draft is host:port"):
        split_address(address, "--draft")


def test_port_zero_becomes_a_free_port_outside_the_range_of_outgoing_connections() -> None:
    _, port = split_address(bindable_address("127.0.0.1:0", "--listen"), "--listen")

    assert 20_000 <= port < 32_000
