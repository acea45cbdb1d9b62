from __future__ import annotations

import argparse
import socket
from pathlib import Path

import pytest

from paceline.address import split_address
from paceline.cli import doctor
from paceline.cli.address import bindable_address, gateway_address
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
        (["up", "--demo", "--draft", "nosuch"], "(ngram, suffix, onnx, composite, none)"),
        (["generate", "--no-draft", "--draft", "x"], "not allowed with argument"),
        (
            ["bench", "--seed", "-1"],
            "--seed: -1 is not a whole number in [0, 18446744073709551615]",
        ),
        (["bench", "--streams", "1", "0"], "--streams: 0 is not a whole number in [1, 65536]"),
        (["bench", "--requests", "0"], "--requests: 0 is not a whole number in [1, 1000000]"),
        (["bench", "--max-tokens", "1.5"], "--max-tokens: 1.5 is not a whole number"),
        (["bench", "--seed", "18446744073709551615"], "--seed 18446744073709551615 is not in [0,"),
        (["lossless", "--streams", "0"], "--streams: 0 is not a whole number in [1, 65536]"),
        (["lossless", "--seed", "18446744073709551615"], "each of "),
        (["generate", "--seed", "-1", "x"], "--seed: -1 is not a whole number in [0, "),
        (["generate", "--max-tokens", "0", "x"], "--max-tokens: 0 is not a whole number in [1, "),
        (
            ["generate", "--top-k", "-1", "x"],
            "--top-k: -1 is not a whole number in [0, 4294967295]",
        ),
        (["generate", "--max-draft-tokens", "0", "x"], "--max-draft-tokens: 0 is not a whole"),
        (["generate", "--regex", "a", "--choice", "b", "x"], "not allowed with argument --regex"),
        (["generate", "--grammar", "missing.lark", "x"], "--grammar missing.lark: No such file"),
        (["generate", "--address", "nowhere", "x"], "--address is host:port, such as"),
        (["generate", "--address", "http://a:1", "x"], "--address is host:port without a scheme"),
        (["generate", "--max-tokens", "1_0", "x"], "--max-tokens: 1_0 is not a whole number"),
        (["generate", "--seed", "\u0663", "x"], "--seed: \u0663 is not a whole number"),
        (["bench", "7"], "paceline bench: error: unrecognized arguments: 7; see paceline bench"),
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


@pytest.mark.parametrize(
    "address",
    [
        "",
        "host",
        "host:",
        ":1",
        "host:x",
        "host:70000",
        "host:-1",
        "host:+1",
        "host:0",
        "host:1/",
        "host :1",
        "user@host:1",
        "host:1:1",
        "host:1,host:2",
        "::1:1",
        "[::1",
        "[::1]",
        "host:\uff11",
        "h\u00e9:1",
        "\udcff:1",
        "ipv4:127.0.0.1",
        "ipv6:[::1]",
        "dns:",
    ],
)
def test_an_address_that_cannot_be_one_is_refused_before_anything_is_dialled(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", f"--address={address}", "x"]) == 2

    shown = capsys.readouterr().err
    assert shown.startswith("paceline: error: --address ")
    assert shown.count("\n") == 1


@pytest.mark.parametrize("command", [["generate", "x"], ["bench"], ["lossless"], ["doctor"]])
def test_malformed_address_of_the_environment_names_the_variable(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PACELINE_ADDRESS", "nowhere")

    assert main(command) == 2

    assert capsys.readouterr().err == (
        "paceline: error: the variable PACELINE_ADDRESS is host:port, such as 127.0.0.1:50051, "
        "not 'nowhere'\n"
    )


def test_every_whole_number_has_a_range() -> None:
    """A plain ``int`` would let nonsense through to the gateway, once per request."""
    (commands,) = (
        action.choices
        for action in build_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )

    plain = [
        (name, action.option_strings)
        for name, command in commands.items()
        for action in command._actions
        if action.type is int
    ]

    assert plain == []


@pytest.mark.parametrize(
    "target",
    [
        "127.0.0.1:1",
        "[::1]:1",
        "[fe80::1%eth0]:1",
        "my_gateway.my-space.svc:50051",
        "dns:///gateway:50051",
        "ipv4:127.0.0.1:1,127.0.0.2:1",
        "ipv6:[::1]:1",
        "unix:/tmp/socket",
    ],
)
def test_every_target_of_grpc_is_an_address(target: str) -> None:
    assert gateway_address(target) == target


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
