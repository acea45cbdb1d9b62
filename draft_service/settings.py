"""What the draft service can be told. Drafters of other distributions bring their own settings."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator
from pydantic_settings import SettingsConfigDict

from paceline.settings import Names, ServiceSettings


class DraftSettings(ServiceSettings):
    """Propose trees of likely tokens to verifiers, ahead of need."""

    model_config = SettingsConfigDict(env_prefix="DRAFT_")

    name: str = Field(default="", max_length=100)
    """Name that verifiers see in logs and metrics. Empty: the drafter's."""

    drafter: str = Field(default="ngram", min_length=1)
    """Which drafter proposes, by its name in the registry. ``ngram`` needs no model."""

    max_sessions: int = Field(default=1024, ge=1, le=1_000_000)
    """Sessions held at once, of all verifiers; the least recently used one makes room. An n-gram
    session holds about 90 bytes per token and 0.1 MB, so 1024 of 8k tokens take about 0.9 GB."""

    max_session_tokens: int = Field(default=131_072, ge=16, le=8_388_608)
    """Most committed tokens of a session; longer ones are refused and run without drafts. Bounds
    memory: 131072 is the context of most models and takes about 12 MB."""

    idle_session_seconds: float = Field(default=600.0, gt=0, le=86_400)
    """A session without a message for this long is forgotten: its verifier has lost it. Long, as
    a verifier may suspend a sequence for minutes, and re-opening costs it one message."""

    busy_session_seconds: float = Field(default=1.0, ge=0, le=3600)
    """A session used within this time is not forgotten to make room; the new one is refused
    instead. Longer than a verifier's step, else a full table would evict sessions in use in turn
    and serve none of them."""

    max_draft_tokens: int = Field(default=48, ge=1, le=64)
    """Most nodes of a tree. A verifier takes 5 to 11 a step and uses the rest in later steps, so
    that a copied passage outlasts several round trips; 64 nodes are about 600 bytes."""

    max_tree_depth: int = Field(default=48, ge=1, le=64)
    """Longest path of a tree. As deep as the tree has nodes: while copying one chain is best."""

    ngram_min_len: int = Field(default=1, ge=1, le=64)
    """Shortest match, in tokens, that is worth a draft. Estimates after one token are low (about
    0.2) but honest, so the verifier decides."""

    ngram_max_len: int = Field(default=16, ge=1, le=64)
    """Longest match that is told from a longer one. Beyond 16 tokens the text is being copied."""

    ngram_min_probability: float = Field(default=0.02, gt=0, lt=1)
    """Nodes are left out whose whole path is less likely than this. A row costs a verifier at
    least 1 to 2 % of a step, so that less likely nodes never pay."""

    suffix_min_probability: float = Field(default=0.02, gt=0, lt=1)
    """Nodes of ``suffix`` are left out whose whole path is less likely than this, as with
    ``ngram``. A suffix session holds about 80 bytes per token (at worst 190) and 0.03 MB, so 1024
    of 8k tokens take about 0.7 GB, and the longest one 11 MB."""

    suffix_corpus_tokens: int = Field(default=65_536, ge=0, le=16_777_216)
    """Most tokens of earlier outputs that ``suffix`` keeps of one tenant, the oldest half going
    when that many are there; 0: none. These take about 5 MB, at 80 bytes each. A tenant's corpus
    drafts for sessions with exactly its name; sessions without a tenant have none."""

    suffix_corpus_tenants: int = Field(default=64, ge=1, le=100_000)
    """Tenants whose earlier outputs are kept, those active last; 64 take at most 0.35 GB."""

    onnx_model: Path | None = None
    """Folder with the model of the drafter ``onnx``: one that ``python -m draft_service.export``
    has written, or ``model.onnx`` of another exporter beside its ``tokenizer.json``."""

    onnx_provider: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the model runs. ``auto``: on CUDA where the installed onnxruntime has it. ``cuda``
    refuses to start elsewhere."""

    onnx_threads: int = Field(default=0, ge=0, le=256)
    """Threads of a pass on the CPU; 0: one per core. Fewer leave cores to a verifier beside it."""

    onnx_siblings: int = Field(default=3, ge=1, le=16)
    """Likeliest tokens after each token that the model has read. They cost no pass, and a
    verifier takes only those that pay; beyond 3 they hardly ever do."""

    onnx_min_probability: float = Field(default=0.02, gt=0, lt=1)
    """Nodes are left out whose whole path is less likely than this, as with ``ngram``."""

    onnx_min_read_probability: float = Field(default=0.15, gt=0, lt=1)
    """The model reads on only along paths at least this likely. A pass costs a fifth of a small
    target's step where both share a machine, and gains at most this many tokens."""

    onnx_max_ahead_tokens: int = Field(default=24, ge=1, le=64)
    """Tokens that the model reads beyond the committed ones; bounds what is wasted if the target
    decides otherwise. A verifier takes 5 to 11 a step, so this covers two to three steps."""

    onnx_max_context_tokens: int = Field(default=1024, ge=16, le=131_072)
    """Latest tokens that the model sees, the first four besides. What is further back costs
    memory and time and rarely decides the next token."""

    onnx_chunk_tokens: int = Field(default=32, ge=1, le=65_536)
    """Tokens of prompts that are read at a time, of all sessions. Other sessions wait for them: 32
    take a small model on two cores about as long as a step takes its verifier."""

    onnx_max_kv_tokens: int = Field(default=32_768, ge=64, le=16_777_216)
    """Tokens in memory at once, of all sessions; the longest unused session gives way and is read
    again when it is back. Gemma 3 270M takes 36 kB per token, so that these take 1.2 GB."""

    composite_members: Names = Field(default=("suffix", "onnx"), min_length=1, max_length=8)
    """Drafters that ``composite`` combines, by their names in the registry; repeat the flag or
    separate with commas. A matcher answers at once, a model adds to it while the target
    verifies."""

    composite_min_probability: float = Field(default=0.02, gt=0, lt=1)
    """Nodes of the combined tree are left out whose whole path is less likely than this."""

    composite_max_sure_tokens: float = Field(default=4.0, ge=0, le=64)
    """A model rests while the matchers alone expect to have more tokens accepted than this: it
    would slow down the target's machine, if shared, and add little to a passage being copied."""

    composite_min_gain: float = Field(default=0.15, ge=0, le=64)
    """Tokens per step that a model must add to the matchers' drafts, else it is paused for a
    while. A row costs a verifier 1 to 5 % of a step, so that less hardly pays."""

    @field_validator("composite_members")
    @classmethod
    def _has_distinct_members(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if "composite" in value:
            raise ValueError("a composite cannot be its own member")
        if len(set(value)) < len(value):
            raise ValueError("names a drafter twice")
        return value

    @field_validator("ngram_max_len")
    @classmethod
    def _is_not_below_the_shortest(cls, value: int, info: ValidationInfo) -> int:
        shortest = info.data.get("ngram_min_len", value)
        if value < shortest:
            raise ValueError(f"must be at least ngram_min_len, which is {shortest}")
        return value
