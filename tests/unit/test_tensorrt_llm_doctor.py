"""``python -m verify_service doctor --engine tensorrt-llm``: one line per finding, exit codes."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tests.doubles.fake_tensorrt_llm.modules import install
from tests.doubles.tensorrt_verifier import LOGITS, write_target
from verify_service import doctor
from verify_service.engines.tensorrt_llm import examination
from verify_service.findings import Finding, Level
from verify_service.targets import device_choice


@pytest.fixture
def with_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "_gpu", lambda: Finding(Level.FINE, "gpu", "1 visible, a GPU"))


def test_without_the_package_it_says_where_to_run(capsys: pytest.CaptureFixture[str]) -> None:
    code = doctor.run(["--engine", "tensorrt-llm"])

    output = capsys.readouterr().out
    assert code == 1
    assert "wrong    package:" in output
    assert "run the verifier in nvcr.io/nvidia/tensorrt-llm/release:" in output
    assert "model: none is named; pass --model DIR" in output


@pytest.mark.usefixtures("with_gpu")
def test_a_fitting_installation_is_fine_but_unconfirmed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install(monkeypatch, "1.2", LOGITS)

    code = doctor.run(["--engine", "tensorrt-llm", "--model", str(write_target(tmp_path))])

    output = capsys.readouterr().out
    assert code == 0
    assert "ok       package: tensorrt_llm 1.2.1" in output
    assert "warning  contract: as recorded for 1.2, which has not been run on a GPU yet" in output
    assert all(len(line.split(":")) > 1 for line in output.splitlines())


@pytest.mark.usefixtures("with_gpu")
def test_a_different_installation_is_wrong_and_every_difference_is_a_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install(monkeypatch, "1.2rc", LOGITS)
    monkeypatch.setattr("tensorrt_llm.__version__", "1.2.1")

    code = doctor.run(["--engine", "tensorrt-llm", "--model", str(write_target(tmp_path))])

    wrong = [line for line in capsys.readouterr().out.splitlines() if line.startswith("wrong")]
    assert code == 1
    assert len(wrong) == 4
    assert "takes no max_draft_len" in wrong[0]


def test_a_long_chain_is_a_warning(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = str(write_target(tmp_path))

    doctor.run(["--engine", "tensorrt-llm", "--model", folder, "--max-draft-tokens", "20"])

    assert "warning  settings: every step pays for 21 positions" in capsys.readouterr().out


def test_wrong_flags_are_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        doctor.run(["--engine", "warp"])

    assert caught.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_device_that_is_not_there_is_wrong(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code = doctor.run(["--model", str(write_target(tmp_path)), "--device", "cuda"])

    assert code == 1
    assert "wrong    device: setting device: torch finds no CUDA device" in capsys.readouterr().out


def test_a_device_without_the_kernels_compiler_is_a_warning(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(device_choice, "device_named", torch.device)
    known = find_spec
    monkeypatch.setattr(
        "verify_service.doctor.find_spec", lambda name: None if name == "triton" else known(name)
    )

    code = doctor.run(["--model", str(write_target(tmp_path)), "--device", "cuda:0"])

    printed = capsys.readouterr().out
    assert code == 0
    assert "ok       device: cuda:0" in printed
    assert "warning  kernel: triton is not installed" in printed


def test_the_step_engine_is_examined_too(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code = doctor.run(["--model", str(write_target(tmp_path))])

    assert code == 0
    assert "ok       target: torch on cpu" in capsys.readouterr().out
