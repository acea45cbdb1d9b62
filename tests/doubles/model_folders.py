"""Small model folders without weights: what a gateway reads of a model."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role == 'system' and not loop.first %}"
    "{{ raise_exception('system comes first') }}{% endif %}"
    "{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
TEXT = "the quick brown fox jumps over the lazy dog. def main(argument): return the argument + 1\n"


def byte_level_tokenizer() -> Tokenizer:
    """Return a byte-level tokenizer with a few merges: ids 0 to 2 are special."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<pad>", "<bos>", "<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT] * 8, trainer)
    return tokenizer


def byte_fallback_tokenizer() -> Tokenizer:
    """Return a tokenizer as Gemma's and Llama's: pieces with a space mark, bytes as fallback."""
    words = ["<pad>", "<bos>", "<eos>", "\u2581", "\u2581the", "\u2581a", "b", "caf\u00e9", "\n"]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    vocab = {token: token_id for token_id, token in enumerate([*words, *bytes_])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in words[:3]])
    return tokenizer


def write_model_folder(
    path: Path, *, chat_template: str | None = CHAT_TEMPLATE, context_length: int = 512
) -> Path:
    """Write a folder with a byte-level tokenizer and return it."""
    path.mkdir(parents=True, exist_ok=True)
    byte_level_tokenizer().save(str(path / "tokenizer.json"))
    config = {"vocab_size": 400, "max_position_embeddings": context_length, "eos_token_id": 2}
    (path / "config.json").write_text(json.dumps(config))
    tokenizer_config = {"bos_token": "<bos>", "eos_token": "<eos>", "chat_template": chat_template}
    (path / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    return path
