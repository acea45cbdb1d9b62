"""Builds the tokenizer that a GGUF file's vocabulary describes. No text is tokenized here."""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from paceline.errors import ConfigurationError
from verify_service.gguf_file import GgufFile

_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6
_SPACE = "\u2581"

_GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN_SPLIT = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class _Split:
    """How a byte-level vocabulary cuts text before merging."""

    pattern: str
    digits_apart: bool = False
    ignores_merges: bool = False
    """A whole piece that is in the vocabulary needs no merges."""
    composes: bool = False
    """Text is brought to Unicode's composed form first."""
    adds_bos: bool = False
    """A begin token is the default where the file is silent."""


_LLAMA3 = _Split(_LLAMA3_SPLIT, ignores_merges=True, adds_bos=True)
_SPLITS = {
    "default": _Split(_GPT2_SPLIT),
    "gpt-2": _Split(_GPT2_SPLIT),
    "smollm": _Split(_GPT2_SPLIT, digits_apart=True),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "tekken": _Split(_TEKKEN_SPLIT, ignores_merges=True, adds_bos=True),
    "qwen2": _Split(_QWEN2_SPLIT, composes=True),
    "deepseek-r1-qwen": _Split(_QWEN2_SPLIT, composes=True, adds_bos=True),
}


def build_tokenizer(file: GgufFile) -> Tokenizer:
    """Return a tokenizer with the file's vocabulary, special tokens and begin/end habits."""
    kind = file.text("tokenizer.ggml.model")
    if kind == "llama":
        tokenizer, adds_bos = _sentencepiece(file), True
    elif kind == "gpt2":
        split = _split_of(file)
        tokenizer, adds_bos = _byte_level(file, split), split.adds_bos
    else:
        raise ConfigurationError(
            f"{file.path} has a {kind or 'missing'} tokenizer; from GGUF only llama and gpt2 "
            "tokenizers are supported: use the model's safetensors folder instead"
        )
    _add_special_tokens(tokenizer, file)
    _set_begin_and_end(tokenizer, file, adds_bos)
    return tokenizer


def tokenizer_config(file: GgufFile) -> dict[str, object]:
    """Return the contents of ``tokenizer_config.json``."""
    tokens = file.texts("tokenizer.ggml.tokens")
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    ids = {
        f"{name}_token": file.integer(f"tokenizer.ggml.{key}_token_id")
        for name, key in names.items()
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": file.integer(f"{file.architecture}.context_length"),
        "clean_up_tokenization_spaces": False,
        **{name: tokens[token_id] for name, token_id in ids.items() if token_id is not None},
    }


def _split_of(file: GgufFile) -> _Split:
    name = file.text("tokenizer.ggml.pre") or "default"
    if name not in _SPLITS:
        raise ConfigurationError(
            f"{file.path} cuts text by the rules {name!r}, which are not supported; "
            "use the model's safetensors folder instead"
        )
    return _SPLITS[name]


def _byte_level(file: GgufFile, split: _Split) -> Tokenizer:
    vocab = {token: index for index, token in enumerate(file.texts("tokenizer.ggml.tokens"))}
    merges = []
    for merge in file.texts("tokenizer.ggml.merges"):
        left, _, right = merge.partition(" ")
        merges.append((left, right))
    tokenizer = Tokenizer(
        models.BPE(vocab=vocab, merges=merges, ignore_merges=split.ignores_merges)
    )
    if split.composes:
        tokenizer.normalizer = normalizers.NFC()
    steps: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Split(Regex(split.pattern), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    if split.digits_apart:
        steps.insert(0, pre_tokenizers.Digits(individual_digits=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(file: GgufFile) -> Tokenizer:
    vocab: dict[str, int] = {}
    for index, token in enumerate(file.texts("tokenizer.ggml.tokens")):
        vocab.setdefault(_respelled(token), index)
    unknown = file.integer("tokenizer.ggml.unknown_token_id")
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=_derived_merges(file, vocab),
            unk_token=next((token for token, index in vocab.items() if index == unknown), None),
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if file.flag("tokenizer.ggml.add_space_prefix") is False:
        tokenizer.normalizer = normalizers.Replace(" ", _SPACE)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
            replacement=_SPACE, prepend_scheme="first", split=False
        )
        steps.append(decoders.Strip(content=" ", left=1))
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _respelled(token: str) -> str:
    """Gemma's runs of spaces stand in the file as spaces, but are matched with them replaced."""
    return _SPACE * len(token) if len(token) > 1 and not token.strip(" ") else token


def _derived_merges(file: GgufFile, vocab: dict[str, int]) -> list[tuple[str, str]]:
    """
    Return every pair of tokens that forms a token, best first, the longest left half first.

    Gemma's scores do not follow the order of its merges; the order of its tokens does.
    """
    kinds = file.numbers("tokenizer.ggml.token_type")
    scores = file.numbers("tokenizer.ggml.scores")
    unmergeable = {index for index, kind in enumerate(kinds) if kind in (_UNKNOWN, _CONTROL, _BYTE)}
    pieces = [(token, index) for token, index in vocab.items() if index not in unmergeable]
    if scores and not file.architecture.startswith("gemma"):
        pieces.sort(key=lambda piece: -scores[piece[1]])
    return [
        (token[:cut], token[cut:])
        for token, _ in pieces
        for cut in range(len(token) - 1, 0, -1)
        if token[:cut] in vocab and token[cut:] in vocab
    ]


def _add_special_tokens(tokenizer: Tokenizer, file: GgufFile) -> None:
    tokens = file.texts("tokenizer.ggml.tokens")
    kinds = file.numbers("tokenizer.ggml.token_type")
    known = tokenizer.get_vocab()
    marked = [(token, kind) for token, kind in zip(tokens, kinds, strict=False) if token in known]
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False) for token, kind in marked if kind == _CONTROL]
    )
    tokenizer.add_tokens(
        [AddedToken(token, normalized=False) for token, kind in marked if kind == _USER_DEFINED]
    )


def _set_begin_and_end(tokenizer: Tokenizer, file: GgufFile, adds_bos: bool) -> None:
    """Add the begin and end tokens that llama.cpp would add."""
    tokens = file.texts("tokenizer.ggml.tokens")
    begin = file.integer("tokenizer.ggml.bos_token_id")
    end = file.integer("tokenizer.ggml.eos_token_id")
    stated = file.flag("tokenizer.ggml.add_bos_token")
    if begin is None or not (adds_bos if stated is None else stated):
        begin = None
    if not file.flag("tokenizer.ggml.add_eos_token"):
        end = None
    added = {tokens[index]: index for index in (begin, end) if index is not None}
    before = [] if begin is None else [tokens[begin]]
    after = [] if end is None else [tokens[end]]
    if added:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[*before, "$A", *after],
            pair=[*before, "$A", *after, "$B:1", *after],
            special_tokens=list(added.items()),
        )
