"""What the ONNX drafter refuses to start with, and the reasons that it gives."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pytest

from draft_service.onnx_manifest import GRAPH, MANIFEST, VOCABULARY, record_file
from draft_service.onnx_signature import read_signature
from draft_service.registry import create_drafter
from draft_service.settings import DraftSettings
from paceline.errors import ConfigurationError
from tests.doubles.exported_models import TINY, exported_tiny_model, usual_tiny_model


@dataclass(frozen=True, slots=True)
class Value:
    """An input or output of a graph."""

    name: str
    type: str = "tensor(int64)"
    shape: tuple[int | str, ...] = ("batch", "rows")


def kv(name: str, dtype: str = "tensor(float)", *, rank: int = 4) -> Value:
    """Return keys or values of a layer."""
    return Value(name, dtype, ("batch", 2, "past", 16)[:rank])


INPUTS = [
    Value("input_ids"),
    Value("attention_mask"),
    *(kv(f"past_key_values.{layer}.{part}") for layer in (10, 9) for part in ("value", "key")),
]
OUTPUTS = [
    Value("logits", "tensor(float)", ("batch", "rows", 100)),
    *(kv(f"present.{layer}.{part}") for layer in (9, 10) for part in ("key", "value")),
]


def refused(folder: Path | None, **settings: object) -> str:
    """Return the reason for which a drafter on a folder does not start."""
    chosen = DraftSettings.model_validate({"drafter": "onnx", "onnx_model": folder, **settings})
    with pytest.raises(ConfigurationError) as refusal:
        create_drafter(chosen)
    message = refusal.value.message
    assert "\n" not in message
    return message


def test_layers_are_paired_by_number_whatever_their_order() -> None:
    signature = read_signature(INPUTS, OUTPUTS, {})

    assert signature.past_names == (
        "past_key_values.9.key",
        "past_key_values.9.value",
        "past_key_values.10.key",
        "past_key_values.10.value",
    )
    assert signature.present_names[0] == "present.9.key"
    assert (signature.num_kv_heads, signature.head_dim) == (2, 16)
    assert signature.has_mask
    assert not signature.has_positions
    assert not signature.takes_trees


@pytest.mark.parametrize(
    ("inputs", "outputs", "reason"),
    [
        ([*INPUTS, Value("inputs_embeds")], OUTPUTS, "needs the input inputs_embeds"),
        (INPUTS[1:], OUTPUTS, "has no input_ids"),
        (INPUTS, OUTPUTS[1:], "has no logits"),
        (INPUTS[:2], OUTPUTS, "does not take and return its keys and values"),
        (INPUTS, OUTPUTS[:-1], "does not take and return its keys and values"),
        (
            [*INPUTS[:2], *(kv(f"past.0.{each}", rank=3) for each in ("key", "value"))],
            [OUTPUTS[0], kv("present.0.key"), kv("present.0.value")],
            r"not \[batch, heads, tokens, size\]",
        ),
        (
            [*INPUTS[:2], *(kv(f"past.0.{e}", "tensor(bfloat16)") for e in ("key", "value"))],
            [OUTPUTS[0], kv("present.0.key"), kv("present.0.value")],
            "float and float16 are supported",
        ),
    ],
)
def test_a_graph_that_cannot_draft_is_refused_with_the_reason(
    inputs: list[Value], outputs: list[Value], reason: str
) -> None:
    """B072: an incompatible drafter is seen when it starts."""
    with pytest.raises(ConfigurationError, match=reason):
        read_signature(inputs, outputs, {})


def test_a_drafter_without_a_model_says_how_to_make_one() -> None:
    assert "python -m draft_service.export" in refused(None)


def test_cuda_is_refused_where_there_is_none() -> None:
    assert "no CUDA provider" in refused(exported_tiny_model(), onnx_provider="cuda")


def test_a_folder_without_a_graph_or_tokenizer_is_refused(tmp_path: Path) -> None:
    """B116: whose tokens a graph speaks must be known."""
    assert f"no {GRAPH}" in refused(TINY)
    shutil.copy(usual_tiny_model() / GRAPH, tmp_path)
    assert "tokenizer.json" in refused(tmp_path)
    assert "no folder" in refused(tmp_path / "nowhere")


def test_a_file_that_is_no_graph_is_refused(tmp_path: Path) -> None:
    (tmp_path / GRAPH).write_bytes(b"not a graph")
    shutil.copy(TINY / "tokenizer.json", tmp_path)

    assert "cannot load" in refused(tmp_path)


def test_a_manifest_of_another_format_is_refused(tmp_path: Path) -> None:
    folder = shutil.copytree(exported_tiny_model(), tmp_path / "copy")
    manifest = (folder / MANIFEST).read_text()
    (folder / MANIFEST).write_text(manifest.replace('"format_version": 1', '"format_version": 2'))
    assert "format version 2" in refused(folder)
    (folder / MANIFEST).write_text("[]")
    assert "cannot be read" in refused(folder)


@pytest.mark.parametrize("changes", [{"files": {}}, {"num_embeddings": "many"}])
def test_a_manifest_that_says_too_little_is_refused(
    changes: dict[str, object], tmp_path: Path
) -> None:
    folder = shutil.copytree(exported_tiny_model(), tmp_path / "copy")
    manifest = json.loads((folder / MANIFEST).read_text()) | changes
    (folder / MANIFEST).write_text(json.dumps(manifest))

    assert "cannot be read" in refused(folder)


def test_a_vocabulary_that_is_no_list_is_refused(tmp_path: Path) -> None:
    folder = shutil.copytree(exported_tiny_model(), tmp_path / "copy")
    (folder / VOCABULARY).write_bytes(b"garbage")
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["files"][VOCABULARY] = asdict(record_file(folder / VOCABULARY))
    (folder / MANIFEST).write_text(json.dumps(manifest))

    assert "no list of token ids" in refused(folder)


def test_a_vocabulary_of_another_width_is_refused(tmp_path: Path) -> None:
    """B113, B116: a map that does not fit the graph is seen at the start."""
    folder = shutil.copytree(exported_tiny_model(), tmp_path / "copy")
    before = record_file(folder / VOCABULARY)
    np.save(folder / VOCABULARY, np.arange(1000, dtype=np.int32))
    after = record_file(folder / VOCABULARY)
    manifest = (folder / MANIFEST).read_text()
    manifest = manifest.replace(before.sha256, after.sha256)
    manifest = manifest.replace(f'"size": {before.size}', f'"size": {after.size}')
    (folder / MANIFEST).write_text(manifest)

    assert "gives 1024 logits and its vocabulary names 1000" in refused(folder)
