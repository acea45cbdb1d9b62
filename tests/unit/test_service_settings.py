"""Where a setting comes from, which one wins, and how wrong ones are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from draft_service.settings import DraftSettings
from gateway.settings import GatewaySettings
from paceline.errors import ConfigurationError
from paceline.settings import ServiceSettings, exit_with_usage_error, load_settings
from verify_service.server import engine_config
from verify_service.settings import VerifySettings
from verify_service.targets.registry import load_target
from verify_service.targets.target import TargetInfo

PROGRAM = "verify_service"


def _load(*argv: str) -> VerifySettings:
    return load_settings(VerifySettings, PROGRAM, argv)


def _file(folder: Path, text: str) -> str:
    path = folder / "settings.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def _problem(*argv: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        _load(*argv)
    return caught.value.message


def test_flag_beats_environment_beats_file_beats_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _file(tmp_path, "max_running: 2\nmax_waiting: 2\nblock_size: 2\n")
    monkeypatch.setenv("VERIFY_MAX_RUNNING", "3")
    monkeypatch.setenv("VERIFY_MAX_WAITING", "3")

    settings = _load("--config", path, "--max-running", "4")

    assert settings.max_running == 4
    assert settings.max_waiting == 3
    assert settings.block_size == 2
    assert settings.max_draft_tokens == VerifySettings.model_fields["max_draft_tokens"].default


def test_pools_come_from_repeated_flags() -> None:
    settings = _load("--pools", "a=127.0.0.1:1", "--pools", "b=127.0.0.1:2")

    assert settings.pools == {"a": "127.0.0.1:1", "b": "127.0.0.1:2"}


def test_pools_come_from_one_flag_with_commas() -> None:
    settings = _load("--pools", "ngram=a:1,suffix=b:2")

    assert settings.pools == {"ngram": "a:1", "suffix": "b:2"}


def test_pools_come_from_a_map_in_the_file(tmp_path: Path) -> None:
    path = _file(tmp_path, "pools:\n  a: 127.0.0.1:1\n  b: 127.0.0.1:2\n")

    assert _load("--config", path).pools == {"a": "127.0.0.1:1", "b": "127.0.0.1:2"}


@pytest.mark.parametrize(
    "target", ["ipv4:127.0.0.1:1,127.0.0.2:1", "dns:///draft.default.svc:50061", "[::1]:1"]
)
def test_a_pool_may_be_several_servers_in_one_of_the_forms_of_grpc(
    tmp_path: Path, target: str
) -> None:
    """While one replica drains, the next address is taken."""
    path = _file(tmp_path, f'pools:\n  a: "{target}"\n')

    assert _load("--config", path).pools == {"a": target}


def test_pools_come_from_json_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERIFY_POOLS", '{"a": "127.0.0.1:1"}')

    assert _load().pools == {"a": "127.0.0.1:1"}


def test_switches_have_a_no_form() -> None:
    assert _load().prefix_caching
    assert not _load("--no-prefix-caching").prefix_caching


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        pytest.param(["--no-such-flag", "1"], "no-such-flag", id="unknown flag"),
        pytest.param(["--max-run", "4"], "max-run", id="abbreviation"),
        pytest.param(["--max-running", "0"], "max_running", id="out of range"),
        pytest.param(["--max-running", "many"], "max_running", id="no number"),
        pytest.param(["--target", "abacus"], "target", id="unknown choice"),
        pytest.param(["--max-draft-wait-ms", "-1"], "max_draft_wait_ms", id="negative wait"),
        pytest.param(["--config", "no-such-file.yaml"], "no-such-file.yaml", id="no file"),
    ],
)
def test_wrong_flag_is_one_line_that_names_it(argv: list[str], named: str) -> None:
    """B074, B094: nothing is ignored, negative times are refused at the start."""
    problem = _problem(*argv)

    assert named in problem
    assert "\n" not in problem


@pytest.mark.parametrize(
    ("text", "named"),
    [
        pytest.param("max_runing: 3\n", "max_runing", id="unknown key"),
        pytest.param("max_running: 0\n", "max_running", id="out of range"),
        pytest.param("- 1\n", "mapping", id="no mapping"),
        pytest.param("a: [1\n", "not YAML", id="no YAML"),
        pytest.param("", "is empty; {} stands for no settings", id="empty"),
    ],
)
def test_wrong_file_is_one_line_that_names_it(tmp_path: Path, text: str, named: str) -> None:
    problem = _problem("--config", _file(tmp_path, text))

    assert named in problem
    assert "\n" not in problem


def test_file_without_settings_changes_nothing(tmp_path: Path) -> None:
    assert _load("--config", _file(tmp_path, "{}")) == _load()


def test_wrong_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERIFY_MAX_RUNNING", "-3")

    assert "max_running" in _problem()


@pytest.mark.parametrize(
    ("kind", "variable", "meant"),
    [
        (VerifySettings, "VERIFY_MAX_RUNNIN", "VERIFY_MAX_RUNNING"),
        (VerifySettings, "verify_max_runing", "VERIFY_MAX_RUNNING"),
        (GatewaySettings, "GATEWAY_VERIFIER", "GATEWAY_VERIFIERS"),
        (GatewaySettings, "GATEWAY_MAXRUNNING", "GATEWAY_MAX_RUNNING"),
        (DraftSettings, "DRAFT_LISTENS", "DRAFT_LISTEN"),
    ],
)
def test_misspelled_variable_is_refused_with_the_setting_it_resembles(
    kind: type[ServiceSettings], variable: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "3")

    with pytest.raises(ConfigurationError) as caught:
        load_settings(kind, PROGRAM, [])

    told = f"variable {variable} is no setting; did you mean {meant}? "
    assert caught.value.message.startswith(told)


@pytest.mark.parametrize("service", ["verify", "verify-listen", "verify-max-running", "verify-a"])
def test_variables_that_kubernetes_sets_for_a_service_do_not_keep_it_from_starting(
    service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = service.upper().replace("-", "_")
    for end in (
        *("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_GRPC", "PORT", "PORT_50051_TCP"),
        *("PORT_50051_TCP_PROTO", "PORT_50051_TCP_PORT", "PORT_50051_TCP_ADDR"),
    ):
        monkeypatch.setenv(f"{begin}_{end}", "tcp://10.0.0.1:50051")
    monkeypatch.setenv("VERIFY_OTHER_THING", "1")

    assert _load().listen == "127.0.0.1:0"


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--listen", "nonsense"], "setting listen: must be host:port, such as 127.0.0.1:50051"),
        (["--listen", "127.0.0.1"], "setting listen: must be host:port"),
        (["--listen", "127.0.0.1:99999"], "setting listen: must be host:port"),
        (["--listen", "::1:5"], "setting listen: must be host:port"),
        (["--admin-listen", "9090"], "setting admin_listen: must be host:port"),
        (["--pools", "foo"], "setting pools: must be NAME=HOST:PORT"),
        (["--pools", "=a:1"], "setting pools: must be NAME=HOST:PORT"),
        (["--pools", "a=foo"], "setting pools.a: must be host:port or [v6]:port"),
        (["--pools", "a=foo:0"], "setting pools.a: must be host:port or [v6]:port"),
        (["--max-runnin", "3"], "unrecognized arguments: --max-runnin 3; did you mean --max-runn"),
    ],
)
def test_what_is_no_address_or_flag_is_refused_with_what_it_must_look_like(
    argv: list[str], told: str
) -> None:
    problem = _problem(*argv)

    assert problem.startswith(told)
    assert "\n" not in problem


@pytest.mark.parametrize("address", ["foo", "foo:0", "::1:5", "dns:", "dns:name", "dns:[::1]:1"])
def test_what_is_no_verifier_is_refused_with_the_forms_there_are(address: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_settings(GatewaySettings, "gateway", ["--model", "m", "--verifiers", address])

    assert caught.value.message == (
        "setting verifiers.0: must be host:port, [v6]:port or dns:name:port, got " + repr(address)
    )


def test_every_form_of_an_address_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERIFY_POOLS", "a=127.0.0.1:1,b=[::1]:2")
    argv = ["--model", "m", "--verifiers", "a:1,[::1]:2,dns:name.space.svc:3"]

    verify = _load("--listen", "[::]:0", "--admin-listen", "0.0.0.0:0")
    gateway = load_settings(GatewaySettings, "gateway", argv)

    assert verify.pools == {"a": "127.0.0.1:1", "b": "[::1]:2"}
    assert _load("--listen", "unix:/tmp/socket").listen == "unix:/tmp/socket"
    assert gateway.verifiers == ("a:1", "[::1]:2", "dns:name.space.svc:3")


def test_usage_error_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        exit_with_usage_error("verify_service", ConfigurationError("setting x: wrong"))

    assert caught.value.code == 2
    assert capsys.readouterr().err == "verify_service: error: setting x: wrong\n"


INFO = TargetInfo(
    name="m",
    engine="table",
    vocab_size=8,
    num_token_ids=8,
    context_length=4096,
    eos_token_ids=(),
    tokenizer_fingerprint="",
)


def test_every_engine_setting_reaches_the_engine() -> None:
    """B094-B096: a setting that is accepted has an effect."""
    config = engine_config(
        VerifySettings(
            max_running=3,
            max_waiting=5,
            num_kv_blocks=70,
            block_size=8,
            max_prefill_rows=11,
            max_draft_tokens=13,
            max_draft_wait_ms=2.5,
            draft_budget="fixed",
            prefix_caching=False,
            pools={"a": "127.0.0.1:1"},
        ),
        INFO,
    )

    assert (config.max_running, config.max_waiting) == (3, 5)
    assert (config.num_blocks, config.block_size) == (70, 8)
    assert (config.max_prefill_rows, config.max_draft_tokens) == (11, 13)
    assert config.max_draft_wait_seconds == 0.0025
    assert config.budget.name == "FIXED"
    assert not config.prefix_caching
    assert config.draft_pools == ("a",)


def test_default_cache_holds_one_whole_context_and_the_running_sequences() -> None:
    few = engine_config(VerifySettings(max_running=1), INFO)
    many = engine_config(VerifySettings(max_running=16), INFO)

    assert few.num_blocks * few.block_size >= INFO.context_length
    assert many.num_blocks * many.block_size >= 16 * 1024


def test_cache_too_small_for_anything_is_refused_at_the_start() -> None:
    """B056: what cannot fit fails at the start."""
    with pytest.raises(ConfigurationError, match="num_kv_blocks"):
        engine_config(VerifySettings(num_kv_blocks=1), INFO)


def test_torch_target_without_a_model_names_the_flag() -> None:
    with pytest.raises(ConfigurationError, match="--model"):
        load_target(VerifySettings(target="torch"))
