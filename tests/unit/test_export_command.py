"""``python -m draft_service.export``: what it writes, what it refuses, and in which words."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from draft_service.export.command import main
from draft_service.export.decoder_shape import read_shape
from draft_service.export.exporter import ExportOptions, export_model
from draft_service.export.head_tokens import load_tokenizer, most_frequent_tokens
from draft_service.export.source_weights import SourceWeights
from draft_service.onnx_manifest import VOCABULARY, read_manifest, read_onnx_folder
from draft_service.registry import create_drafter
from draft_service.settings import DraftSettings
from paceline.errors import ConfigurationError
from paceline.model_folder import read_model_folder, tokenizer_fingerprint
from tests.doubles.exported_models import TINY


def quiet(line: str) -> None:
    """Say nothing."""


def changed_config(folder: Path, **changes: object) -> Path:
    """Write a folder like the tiny model's, other fields in its configuration."""
    config = json.loads((TINY / "config.json").read_text()) | changes
    for file in TINY.iterdir():
        if file.is_file() and file.name != "config.json":
            (folder / file.name).symlink_to(file)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_an_export_can_draft_and_names_its_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "drafter"

    status = main(["--model", str(TINY), "--weights", "int8", "--output", str(output)])

    printed = capsys.readouterr()
    manifest = read_manifest(output)
    drafter = create_drafter(DraftSettings(drafter="onnx", onnx_model=output))
    assert status == 0
    assert printed.out == f"{output}\n"
    assert "ms on this machine" in printed.err
    assert manifest.tokenizer_fingerprint == tokenizer_fingerprint(TINY)
    assert manifest.report["agreement"] > 0.9
    assert drafter.info.tokenizer_fingerprint == tokenizer_fingerprint(TINY)
    assert drafter.info.uses_shared_noise
    assert drafter.info.is_blocking


def test_a_finished_export_is_not_written_again(tmp_path: Path) -> None:
    options = ExportOptions("float16", reports=False)
    folder = export_model(TINY, tmp_path / "drafter", options, quiet)
    written = (folder / "model.onnx").stat().st_mtime_ns

    said: list[str] = []
    export_model(TINY, folder, options, said.append)

    assert (folder / "model.onnx").stat().st_mtime_ns == written
    assert said == [f"{folder} is up to date"]


@pytest.mark.parametrize("output", ["folder", "folder/file", "folder/file/below", "/"])
def test_what_is_no_export_is_never_replaced(output: str, tmp_path: Path) -> None:
    kept = tmp_path / "folder" / "file"
    kept.parent.mkdir()
    kept.write_text("precious")

    with pytest.raises(ConfigurationError, match="choose another --output"):
        export_model(TINY, tmp_path / output, ExportOptions(reports=False), quiet)
    assert kept.read_text() == "precious"


def test_other_options_replace_an_export(tmp_path: Path) -> None:
    folder = export_model(TINY, tmp_path / "a", ExportOptions("float16", reports=False), quiet)

    export_model(TINY, folder, ExportOptions("float16", 300, reports=False), quiet)

    assert len(np.load(folder / VOCABULARY)) == 300
    assert not list(tmp_path.glob(".partial*"))


def test_a_folder_name_tells_source_and_options() -> None:
    names = {
        ExportOptions("int4", 512).folder_name(TINY),
        ExportOptions("int8", 512).folder_name(TINY),
        ExportOptions("int8", 512, ("text",)).folder_name(TINY),
    }

    assert len(names) == 3
    assert all(name.startswith("tiny-draft-int") and "-head512-" in name for name in names)


@pytest.mark.parametrize("name", ["model.onnx", VOCABULARY])
def test_a_damaged_export_is_refused(tmp_path: Path, name: str) -> None:
    """B098: wrong weights are seen at the start, not in the acceptance."""
    folder = export_model(TINY, tmp_path / "a", ExportOptions(reports=False), quiet)
    content = bytearray((folder / name).read_bytes())
    content[-1] ^= 1
    (folder / name).write_bytes(content)

    with pytest.raises(ConfigurationError, match="not those of its manifest"):
        read_onnx_folder(folder)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_type": "gpt2"}, "holds a gpt2 model"),
        ({"hidden_act": "relu"}, "the activation 'relu'"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "rope scaling 'yarn'"),
        ({"num_hidden_layers": 5}, "lacks the weights model.layers.4.input_layernorm.weight"),
        ({"hidden_size": None}, "states no hidden_size"),
    ],
)
def test_a_model_that_cannot_be_exported_is_refused_with_the_reason(
    tmp_path: Path, changes: dict[str, object], reason: str
) -> None:
    folder = changed_config(tmp_path, **changes)

    with pytest.raises(ConfigurationError, match=reason):
        export_model(folder, tmp_path / "out", ExportOptions("float32", reports=False), quiet)

    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (["--model", "nowhere"], "nowhere"),
        (["--model", str(TINY), "--text", "nowhere.txt"], "nowhere.txt"),
    ],
)
def test_errors_are_one_line_and_exit_code_2(
    arguments: list[str], cause: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main([*arguments, "--no-report"])

    printed = capsys.readouterr()
    assert status == 2
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert cause in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize("kept", [0, 100, 800_000])
def test_weights_that_were_not_loaded_to_the_end_are_refused(kept: int, tmp_path: Path) -> None:
    folder = changed_config(tmp_path)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").write_bytes((TINY / "model.safetensors").read_bytes()[:kept])

    with pytest.raises(ConfigurationError, match="not all of one; download it again"):
        SourceWeights(folder)


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [10**9, 10**9], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": ["x"], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1], "data_offsets": [-8, 4]},
        {"dtype": "I8", "shape": [1], "data_offsets": [0, 5]},
        [],
    ],
)
def test_a_tensor_that_lies_nowhere_is_refused(entry: object, tmp_path: Path) -> None:
    header = json.dumps({"model.norm.weight": entry}).encode()
    content = len(header).to_bytes(8, "little") + header + b"four"
    (tmp_path / "a.safetensors").write_bytes(content)

    with pytest.raises(ConfigurationError, match="is no safetensors file"):
        SourceWeights(tmp_path)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hidden_size": 64}, r"\[1024, 128\] and config.json states \[1024, 64\]"),
        ({"num_attention_heads": 0}, "num_attention_heads as 0"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers as 1000000000"),
        ({"num_hidden_layers": -1}, "num_hidden_layers as -1"),
    ],
)
def test_a_configuration_of_impossible_sizes_is_refused(
    changes: dict[str, int], reason: str, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()

    with pytest.raises(ConfigurationError, match=reason):
        export_model(changed_config(source, **changes), tmp_path / "new", ExportOptions(), quiet)
    assert not (tmp_path / "new").exists()


def test_tokens_of_a_text_are_kept_before_others() -> None:
    text = "zebra " * 4 + "quux(" * 3
    wanted = set(load_tokenizer(TINY).encode(text, add_special_tokens=False).ids)

    head = most_frequent_tokens(TINY, 40, [2], [text])

    assert len(head) == 40
    assert wanted | {2} <= set(head.tolist())
    assert head.tolist() == sorted(head.tolist())


def test_without_a_text_early_merges_and_characters_are_kept() -> None:
    tokenizer = load_tokenizer(TINY)

    head = set(most_frequent_tokens(TINY, 400, [2], []).tolist())

    assert set(tokenizer.encode("return self", add_special_tokens=False).ids) <= head
    assert most_frequent_tokens(TINY, 5000, [2], []).tolist() == list(range(1024))


def test_bfloat16_weights_and_prefixed_names_are_read(tmp_path: Path) -> None:
    values = np.array([[1.5, -2.0], [0.25, 3.0]], np.float32)
    save_file({"model.language_model.norm.weight": values}, tmp_path / "a.safetensors")
    header = {"model.bias": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]}}
    encoded = json.dumps(header).encode()
    halves = (values.view(np.uint32) >> 16).astype(np.uint16)
    parts = [len(encoded).to_bytes(8, "little"), encoded, halves.tobytes()]
    (tmp_path / "b.safetensors").write_bytes(b"".join(parts))

    weights = SourceWeights(tmp_path)

    assert np.array_equal(weights.get("model.norm.weight"), values)
    assert np.array_equal(weights.get("model.bias"), values)
    assert "model.other" not in weights


def test_older_gemma_configurations_have_the_same_windows_and_ropes(tmp_path: Path) -> None:
    sizes = {
        "model_type": "gemma3_text",
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 7,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "max_position_embeddings": 128,
        "sliding_window": 8,
        "hidden_activation": "gelu_pytorch_tanh",
    }
    older = {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window_pattern": 6}
    newer = {
        "layer_types": [*["sliding_attention"] * 5, "full_attention", "sliding_attention"],
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        },
    }
    shapes = []
    for name, fields in (("older", older), ("newer", newer)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(sizes | fields))
        shapes.append(read_shape(read_model_folder(tmp_path / name)))

    assert shapes[0] == shapes[1]
