"""Loads a decoder from a Hugging Face folder, or says in one line why it cannot serve here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from paceline.errors import ConfigurationError
from paceline.model_folder import ModelFolder, read_model_folder, tokenizer_fingerprint
from verify_service.targets.target import TargetInfo

_REMEDY = "choose a decoder-only model with softmax attention, such as Llama, Qwen or Gemma 3"
_ATTENTION_LAYERS = frozenset({"full_attention", "sliding_attention"})
_MODELOPT_FILE = "hf_quant_config.json"
"""Where NVIDIA's ModelOpt states how it quantised, some releases only there."""
_LENGTH_DEPENDENT_ROPE = frozenset({"longrope", "dynamic"})


def load_model(model_dir: Path, dtype: torch.dtype) -> PreTrainedModel:
    """Load the weights on CPU; raises ``ConfigurationError``."""
    config = _load_config(model_dir)
    check_supported(config)
    _check_unquantised(model_dir)
    if not _weight_files(model_dir):
        raise ConfigurationError(
            f"setting model: {model_dir} holds no *.safetensors; convert the weights first"
        )
    try:
        model, missing = _read_weights(model_dir, config, dtype)
    except Exception as error:  # transformers, safetensors and torch raise many kinds here
        raise ConfigurationError(
            f"setting model: the weights in {model_dir} cannot be loaded ({_one_line(error)}); "
            "restore or convert them again"
        ) from error
    if missing:
        raise ConfigurationError(
            f"setting model: {model_dir} lacks {len(missing)} weights, such as {missing[0]}; "
            "restore or convert them again"
        )
    return model


def num_weight_bytes(model_dir: Path) -> int:
    """Return the size of the weights on disk."""
    return sum(path.stat().st_size for path in _weight_files(model_dir))


def _weight_files(model_dir: Path) -> list[Path]:
    return list(model_dir.glob("*.safetensors"))


def check_supported(config: PretrainedConfig) -> None:
    """Raise ``ConfigurationError`` for a model that cannot be verified in trees."""
    if config.is_encoder_decoder:
        raise _unsupported(config, "it is an encoder-decoder")
    if config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise _unsupported(config, "it is no causal language model")
    text = config.get_text_config()
    others = set(getattr(text, "layer_types", None) or ()) - _ATTENTION_LAYERS
    if others:
        kinds = ", ".join(sorted(others))
        raise _unsupported(config, f"its {kinds} layers hold a state that cannot branch or rewind")
    if getattr(text, "use_bidirectional_attention", False):
        raise _unsupported(config, "its attention looks ahead")


def _check_unquantised(model_dir: Path) -> None:
    """Raise ``ConfigurationError`` for weights that would load without their scales."""
    config = read_model_folder(model_dir).config
    stated = config.get("quantization_config") or config.get("compression_config")
    if stated or (model_dir / _MODELOPT_FILE).exists():
        method = stated.get("quant_method") if isinstance(stated, dict) else "modelopt"
        raise ConfigurationError(
            "setting model: the torch target loads no quantised weights "
            f"({method or 'unknown method'}); take the BF16/FP16 release, or engine tensorrt-llm"
        )


def refuse(config: PretrainedConfig, cause: str) -> ConfigurationError:
    """Return the error for a model whose fault only showed when it ran."""
    return _unsupported(config, cause)


@contextmanager
def refusing_faults(config: PretrainedConfig) -> Iterator[None]:
    """Refuse the model if it fails in ways that no check foresaw; memory is another matter."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise refuse(config, f"it fails over tree attention ({_one_line(error)})") from error


def read_info(model_dir: Path, config: PretrainedConfig) -> TargetInfo:
    """Return what is fixed about the model in ``model_dir``."""
    folder = read_model_folder(model_dir)
    tokenizer = model_dir / "tokenizer.json"
    known = _num_token_ids(tokenizer) if tokenizer.exists() else folder.vocab_size
    return TargetInfo(
        name=folder.name,
        engine="torch",
        vocab_size=folder.vocab_size,
        num_token_ids=min(known, folder.vocab_size),
        context_length=_context_length(folder, config),
        eos_token_ids=folder.eos_token_ids,
        tokenizer_fingerprint=tokenizer_fingerprint(model_dir) if tokenizer.exists() else "",
    )


def _load_config(model_dir: Path) -> PretrainedConfig:
    if not model_dir.is_dir():
        raise ConfigurationError(
            f"setting model: there is no folder {model_dir}; name a folder with config.json, "
            "*.safetensors and tokenizer.json"
        )
    read_model_folder(model_dir)
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(model_dir, local_files_only=True)
    except Exception as error:  # any fault of the file, reported by whichever class parses it
        raise ConfigurationError(
            f"setting model: {model_dir / 'config.json'} is not understood ({_one_line(error)}); "
            f"{_REMEDY}"
        ) from error
    return config


def _read_weights(
    model_dir: Path, config: PretrainedConfig, dtype: torch.dtype
) -> tuple[PreTrainedModel, list[str]]:
    """Return the model and the names of the weights that the folder lacks."""
    auto: Any = AutoModelForCausalLM
    with _quiet_transformers():
        model, report = auto.from_pretrained(
            model_dir,
            config=config,
            dtype=dtype,
            attn_implementation="eager",
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
        )
    return model.eval(), sorted(report["missing_keys"])


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Silence progress bars and reports: what matters is raised or returned."""
    logging: Any = transformers.utils.logging
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        logging.enable_progress_bar()


def _context_length(folder: ModelFolder, config: PretrainedConfig) -> int:
    """
    Return the longest sequence at which a position's rotary angles are the same for every batch.

    Some scalings switch to other angles as soon as one row of a batch is past the original length.
    """
    rope = getattr(config.get_text_config(), "rope_parameters", None) or {}
    scalings = [rope, *(value for value in rope.values() if isinstance(value, dict))]
    originals = [
        scaling["original_max_position_embeddings"]
        for scaling in scalings
        if scaling.get("rope_type") in _LENGTH_DEPENDENT_ROPE
        and isinstance(scaling.get("original_max_position_embeddings"), int)
    ]
    return int(min([folder.context_length, *originals]))


def _num_token_ids(tokenizer: Path) -> int:
    """Return one more than the largest id in a ``tokenizer.json``."""
    try:
        contents = json.loads(tokenizer.read_bytes())
        vocab = contents["model"]["vocab"]
        ids = list(vocab.values()) if isinstance(vocab, dict) else list(range(len(vocab)))
        ids += [token["id"] for token in contents.get("added_tokens", ())]
        largest = int(max(ids))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigurationError(
            f"setting model: {tokenizer} is not a tokenizer ({_one_line(error)}); restore the file"
        ) from error
    return largest + 1


def _unsupported(config: PretrainedConfig, cause: str) -> ConfigurationError:
    return ConfigurationError(
        f"setting model: a {config.model_type} model cannot be served: {cause}; {_REMEDY}"
    )


def _one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
