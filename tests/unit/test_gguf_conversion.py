"""Converts small GGUF files, written here from random models, and compares with those models."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from tokenizers import Tokenizer
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
)

from paceline.errors import ConfigurationError
from paceline.model_folder import read_model_folder
from tests.doubles.small_gguf import (
    FAMILIES,
    TOKENS,
    Family,
    gguf_tensors,
    random_model,
    write_gguf,
)
from verify_service import convert
from verify_service.gguf_conversion import MANIFEST, convert_gguf, is_intact


def logits_of(model: Any) -> Any:
    """Logits over a fixed sequence that is longer than the sliding window under test."""
    torch.manual_seed(2)
    with torch.no_grad():
        return model(input_ids=torch.randint(0, len(TOKENS), (1, 48))).logits


def loaded(folder: Path) -> Any:
    """The converted model in float32."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval()


@pytest.fixture
def llama_gguf(tmp_path: Path) -> Path:
    """A GGUF file of a random Llama."""
    family = FAMILIES["llama"]
    model = random_model(family, tie_word_embeddings=True)
    return write_gguf(tmp_path / "small.gguf", family, gguf_tensors(model, family))


def add_sliding_window(writer: GGUFWriter) -> None:
    writer.add_sliding_window(16)
    writer.add_uint32("gemma3.attention.sliding_window_pattern", 2)


@pytest.mark.parametrize(
    ("name", "tied", "options", "extend"),
    [
        ("llama", True, {"rope_theta": 50000.0}, lambda writer: None),
        ("llama", False, {"rope_theta": 50000.0}, lambda writer: None),
        ("qwen2", True, {"rope_theta": 50000.0}, lambda writer: None),
        ("qwen3", True, {"rope_theta": 50000.0}, lambda writer: None),
        (
            "gemma3",
            True,
            {
                "rope_theta": 50000.0,
                "sliding_window": 16,
                "query_pre_attn_scalar": 16,
                "layer_types": ["sliding_attention", "full_attention"],
            },
            add_sliding_window,
        ),
    ],
)
def test_converted_model_computes_what_the_original_computes(
    tmp_path: Path,
    name: str,
    tied: bool,
    options: dict[str, object],
    extend: Callable[[GGUFWriter], None],
) -> None:
    family = FAMILIES[name]
    model = random_model(family, tie_word_embeddings=tied, **options)
    path = write_gguf(tmp_path / "small.gguf", family, gguf_tensors(model, family), extend=extend)

    folder = convert_gguf(path, tmp_path / "cache", lambda line: None)

    torch.testing.assert_close(logits_of(loaded(folder)), logits_of(model), rtol=1e-5, atol=1e-5)


def test_llama3_rope_scaling_is_recovered_from_its_factors(tmp_path: Path) -> None:
    family = FAMILIES["llama"]
    scaling = {
        "rope_type": "llama3",
        "rope_theta": 50000.0,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    model = random_model(family, tie_word_embeddings=True, rope_parameters=scaling)
    plain = 50000.0 ** -(np.arange(8, dtype=np.float32) / 8)
    factors = plain / model.model.rotary_emb.inv_freq.numpy()
    tensors = gguf_tensors(model, family) | {"rope_freqs.weight": factors}
    path = write_gguf(tmp_path / "small.gguf", family, tensors)

    folder = convert_gguf(path, tmp_path / "cache", lambda line: None)

    assert AutoConfig.from_pretrained(folder).rope_parameters == scaling
    torch.testing.assert_close(logits_of(loaded(folder)), logits_of(model), rtol=1e-5, atol=1e-5)


def test_quantized_weights_lose_no_more_than_float16_rounding(tmp_path: Path) -> None:
    family = FAMILIES["llama"]
    model = random_model(family, tie_word_embeddings=True)
    tensors = gguf_tensors(model, family)
    path = write_gguf(tmp_path / "small.gguf", family, tensors, GGMLQuantizationType.Q8_0)

    folder = convert_gguf(path, tmp_path / "cache", lambda line: None)

    original = model.model.layers[0].mlp.down_proj.weight
    converted = loaded(folder).model.layers[0].mlp.down_proj.weight
    torch.testing.assert_close(converted, original, rtol=0.0, atol=0.02)


def test_tokenizer_merges_falls_back_to_bytes_and_adds_the_begin_token(
    llama_gguf: Path, tmp_path: Path
) -> None:
    folder = convert_gguf(llama_gguf, tmp_path / "cache", lambda line: None)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    encoding = tokenizer.encode("hello world \u00e9<|eot_id|>")

    assert encoding.tokens == [
        "<s>", "\u2581", "hello", "\u2581world", "\u2581", "<0xC3>", "<0xA9>", "<|eot_id|>",
    ]  # fmt: skip
    assert tokenizer.decode(encoding.ids) == "hello world \u00e9"
    assert AutoTokenizer.from_pretrained(folder)("hello world \u00e9<|eot_id|>")["input_ids"] == (
        encoding.ids
    )


def test_every_end_token_is_listed(llama_gguf: Path, tmp_path: Path) -> None:
    folder = convert_gguf(llama_gguf, tmp_path / "cache", lambda line: None)

    described = read_model_folder(folder)

    assert described.eos_token_ids == (2, len(TOKENS) - 1)
    assert described.bos_token_id == 1
    assert described.name == "small"
    assert described.context_length == 512


def test_chat_template_is_carried_over(tmp_path: Path) -> None:
    family = FAMILIES["llama"]
    tensors = gguf_tensors(random_model(family, tie_word_embeddings=True), family)
    path = write_gguf(
        tmp_path / "small.gguf",
        family,
        tensors,
        extend=lambda writer: writer.add_chat_template("{{ messages }}"),
    )

    folder = convert_gguf(path, tmp_path / "cache", lambda line: None)

    assert read_model_folder(folder).chat_template == "{{ messages }}"


def test_second_conversion_is_taken_from_the_cache(llama_gguf: Path, tmp_path: Path) -> None:
    progress: list[str] = []
    first = convert_gguf(llama_gguf, tmp_path / "cache", lambda line: None)

    second = convert_gguf(llama_gguf, tmp_path / "cache", progress.append)

    assert second == first
    assert progress == []


def test_same_file_elsewhere_shares_the_folder(llama_gguf: Path, tmp_path: Path) -> None:
    first = convert_gguf(llama_gguf, tmp_path / "cache", lambda line: None)
    (tmp_path / "elsewhere").mkdir()
    moved = llama_gguf.rename(tmp_path / "elsewhere" / "small.gguf")

    assert convert_gguf(moved, tmp_path / "cache", lambda line: None) == first


def test_damaged_folder_is_rebuilt(llama_gguf: Path, tmp_path: Path) -> None:
    folder = convert_gguf(llama_gguf, tmp_path / "cache", lambda line: None)
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    assert not is_intact(folder)

    rebuilt = convert_gguf(llama_gguf, tmp_path / "cache", lambda line: None)

    assert rebuilt == folder
    assert (folder / "model.safetensors").read_bytes() == weights


def test_copied_folder_stays_intact_although_its_times_differ(
    llama_gguf: Path, tmp_path: Path
) -> None:
    folder = convert_gguf(llama_gguf, tmp_path / "cache", lambda line: None)

    copy = shutil.copytree(folder, tmp_path / "copy", copy_function=shutil.copyfile)

    assert is_intact(copy)


def test_leftovers_of_a_killed_conversion_are_removed(llama_gguf: Path, tmp_path: Path) -> None:
    folder = convert_gguf(llama_gguf, tmp_path / "cache", lambda line: None)
    (tmp_path / "cache" / f".partial-{folder.name}-1").mkdir()
    (folder / MANIFEST).unlink()

    convert_gguf(llama_gguf, tmp_path / "cache", lambda line: None)

    assert is_intact(folder)
    assert not list((tmp_path / "cache").glob(".partial-*"))


def test_manifest_names_the_source_and_every_file(llama_gguf: Path, tmp_path: Path) -> None:
    folder = convert_gguf(llama_gguf, tmp_path / "cache", lambda line: None)

    manifest = json.loads((folder / MANIFEST).read_text())

    assert manifest["source_name"] == "small.gguf"
    assert {MANIFEST, *manifest["files"]} == {path.name for path in folder.iterdir()}


def refused(path: Path, cache_dir: Path) -> str:
    """The one-line message with which a file is refused."""
    with pytest.raises(ConfigurationError) as caught:
        convert_gguf(path, cache_dir, lambda line: None)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    assert "there is no file" in refused(tmp_path / "absent.gguf", tmp_path)


@pytest.mark.parametrize("contents", [b"", b"PK\x03\x04 no model"])
def test_other_file_is_refused(tmp_path: Path, contents: bytes) -> None:
    path = tmp_path / "other.gguf"
    path.write_bytes(contents)

    assert "is not a GGUF file" in refused(path, tmp_path)


@pytest.mark.parametrize("kept", [4, 20, 200, 5000, -40])
def test_truncated_file_is_refused(llama_gguf: Path, tmp_path: Path, kept: int) -> None:
    llama_gguf.write_bytes(llama_gguf.read_bytes()[:kept])

    assert "is truncated" in refused(llama_gguf, tmp_path)


def test_unsupported_architecture_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "small.gguf", Family("mamba", LlamaConfig, {}), {})

    assert "holds a mamba model" in refused(path, tmp_path / "cache")


def test_missing_tensor_is_refused(tmp_path: Path) -> None:
    family = FAMILIES["llama"]
    tensors = gguf_tensors(random_model(family, tie_word_embeddings=True), family)
    del tensors["blk.1.attn_v.weight"]
    path = write_gguf(tmp_path / "small.gguf", family, tensors)

    assert "lacks blk.1.attn_v.weight" in refused(path, tmp_path / "cache")


def test_values_beyond_float16_are_refused(tmp_path: Path) -> None:
    family = FAMILIES["llama"]
    tensors = gguf_tensors(random_model(family, tie_word_embeddings=True), family)
    tensors["blk.0.ffn_up.weight"] = np.full((96, 64), 1e6, np.float32)
    path = write_gguf(tmp_path / "small.gguf", family, tensors)

    assert "float16 cannot hold" in refused(path, tmp_path / "cache")


def test_full_disk_is_refused_before_writing(
    llama_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1024)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)

    assert "free space" in refused(llama_gguf, tmp_path / "cache")


def test_unwritable_cache_is_refused(llama_gguf: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("in the way")

    assert "--cache-dir" in refused(llama_gguf, tmp_path / "cache")


def test_command_prints_the_folder_last(
    llama_gguf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = convert.main(["--gguf", str(llama_gguf), "--cache-dir", str(tmp_path / "cache")])

    printed = capsys.readouterr()
    assert status == 0
    assert (Path(printed.out.splitlines()[-1]) / "config.json").exists()
    assert "converting small.gguf" in printed.err


def test_command_reports_bad_input_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = convert.main(["--gguf", str(tmp_path / "absent.gguf"), "--cache-dir", str(tmp_path)])

    printed = capsys.readouterr()
    assert status == 2
    assert printed.out == ""
    assert printed.err.count("\n") == 1


def test_unknown_packaged_model_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = convert.main(["--packaged", "gemma9", "--cache-dir", str(tmp_path)])

    assert status == 2
    assert "choose one of gemma3-270m" in capsys.readouterr().err
