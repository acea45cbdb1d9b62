"""
Trains the tiny model in ``tests/models/tiny``: a Llama that writes Python-like text.

Run ``python tests/models/train_tiny_model.py`` (about eleven minutes of CPU time). The
corpus is the running interpreter's standard library; it is no general training program.
"""

import argparse
import ast
import json
import logging
import math
import random
import sysconfig
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

logger = logging.getLogger("train_tiny_model")

PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"
PAD_ID, BOS_ID, EOS_ID = 0, 1, 2
IGNORED_LABEL = -100
CONTEXT_LENGTH = 2048
VOCAB_SIZE = 1024
HIDDEN_SIZE = 128
HEAD_DIM = 32
EMBEDDING_STD = 0.1
PEAK_LEARNING_RATE = 3e-3
WARM_UP_STEPS = 60
TOKENS_PER_STEP = 2048
EXCLUDED_FOLDERS = {
    "site-packages",
    "test",
    "tests",
    "idlelib",
    "lib2to3",
    "encodings",
    "__pycache__",
    "config",
}
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "# {{ message['role'] }}: {{ message['content'] | trim }}\n"
    "{% endfor %}{% if add_generation_prompt %}# assistant:{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Corpus:
    """The training text as token ids, without special tokens."""

    training: list[list[int]]
    """One entry per module."""
    held_out: list[list[int]]
    """Modules that are never trained on."""
    functions: list[list[int]]
    """Top-level functions of the training modules: short documents that end."""


@dataclass(frozen=True, slots=True)
class Example:
    """One sequence and the labels to learn from it."""

    token_ids: list[int]
    labels: list[int]


def standard_library_sources() -> list[str]:
    """Read the running interpreter's own modules, in a fixed order."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = sorted(
        path
        for path in root.rglob("*.py")
        if not EXCLUDED_FOLDERS.intersection(path.relative_to(root).parts[:-1])
    )
    sources = (path.read_text(encoding="utf-8", errors="ignore") for path in paths)
    return [source for source in sources if len(source) > 400]


def function_sources(source: str) -> Iterator[str]:
    """Yield the text of every top-level function of a module."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef):
            segment = ast.get_source_segment(source, node)
            if segment and len(segment) < 1500:
                yield segment + "\n"


def train_tokenizer(sources: list[str]) -> Tokenizer:
    """Train a byte-level BPE tokenizer, so that any UTF-8 text has an encoding."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[PAD, BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sources, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, BOS_ID)]
    )
    return tokenizer


def encode_all(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    """Encode texts without special tokens."""
    return [encoding.ids for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]


def build_corpus(tokenizer: Tokenizer, sources: list[str]) -> Corpus:
    """Split the modules into training and held-out ones, and cut out functions."""
    held_out = sources[::40]
    training = [source for index, source in enumerate(sources) if index % 40]
    functions = [text for source in training for text in function_sources(source)]
    return Corpus(
        training=[ids for ids in encode_all(tokenizer, training) if len(ids) > 200],
        held_out=[ids for ids in encode_all(tokenizer, held_out) if len(ids) > 200],
        functions=encode_all(tokenizer, functions),
    )


def sample_span(rng: random.Random, documents: list[list[int]], length: int) -> list[int]:
    """Cut a span of at most *length* ids out of a module, modules weighted by their size."""
    weights = [len(document) for document in documents]
    document = rng.choices(documents, weights)[0]
    start = rng.randrange(max(1, len(document) - length + 1))
    return document[start : start + length]


def labelled(token_ids: list[int], length: int) -> Example:
    """Cut and pad a sequence to *length*; padding is not learnt."""
    kept = token_ids[:length]
    padding = length - len(kept)
    return Example(kept + [PAD_ID] * padding, kept + [IGNORED_LABEL] * padding)


def module_example(rng: random.Random, corpus: Corpus, length: int) -> Example:
    """A stretch of one module."""
    return labelled([BOS_ID, *sample_span(rng, corpus.training, length - 1)], length)


def functions_example(rng: random.Random, corpus: Corpus, length: int) -> Example:
    """Whole functions, each between a begin and an end token."""
    token_ids: list[int] = []
    while len(token_ids) < length:
        token_ids += [BOS_ID, *rng.choice(corpus.functions), EOS_ID]
    return labelled(token_ids, length)


def repeated_text_example(rng: random.Random, corpus: Corpus, length: int) -> Example:
    """A span of source that comes back again and again, with other source between."""
    span = sample_span(rng, corpus.training, rng.randrange(8, length // 3))
    token_ids = [BOS_ID]
    while len(token_ids) < length:
        gap = rng.randrange(1 + min(length // 4, 128))
        token_ids += span + sample_span(rng, corpus.training, gap)
    return labelled(token_ids, length)


def repeated_noise_example(rng: random.Random, _: Corpus, length: int) -> Example:
    """Distinct random ids that repeat; only what copying can predict is learnt."""
    period = rng.randrange(8, min(length // 2, 256))
    span = rng.sample(range(EOS_ID + 1, VOCAB_SIZE), period)
    token_ids = [BOS_ID, *(span * (length // period + 1))][:length]
    return Example(token_ids, [IGNORED_LABEL] * (period + 2) + token_ids[period + 2 :])


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of the training and its mixture."""

    share_of_steps: float
    lengths: tuple[int, ...]
    weights: dict[Callable[[random.Random, Corpus, int], Example], float]


# Copying is learnt from short repetitions first. Later sequences are mostly short for speed; some
# fill the context, so that every position is trained.
PHASES = (
    Phase(
        share_of_steps=0.15,
        lengths=(128,),
        weights={module_example: 0.3, repeated_text_example: 0.25, repeated_noise_example: 0.45},
    ),
    Phase(
        share_of_steps=0.85,
        lengths=(128, 256, 256, 256, 512, 512, 1024, 2048),
        weights={
            module_example: 0.6,
            functions_example: 0.12,
            repeated_text_example: 0.18,
            repeated_noise_example: 0.1,
        },
    ),
)


def sample_batch(rng: random.Random, corpus: Corpus, phase: Phase) -> tuple[Tensor, Tensor]:
    """Draw one batch: inputs and labels, both [sequences, length]."""
    length = rng.choice(phase.lengths)
    kinds = rng.choices(
        list(phase.weights), list(phase.weights.values()), k=TOKENS_PER_STEP // length
    )
    examples = [kind(rng, corpus, length) for kind in kinds]
    inputs = torch.tensor([example.token_ids for example in examples])
    return inputs, torch.tensor([example.labels for example in examples])


def new_model() -> LlamaForCausalLM:
    """A Llama with grouped-query attention and tied embeddings."""
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=HIDDEN_SIZE,
        intermediate_size=320,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=HEAD_DIM,
        rope_parameters={"rope_type": "default", "rope_theta": 500_000.0},
        max_position_embeddings=CONTEXT_LENGTH,
        tie_word_embeddings=True,
        pad_token_id=PAD_ID,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
    )
    model = LlamaForCausalLM(config)
    wire_copying(model)
    return model


def orthonormal(rows: int, columns: int) -> Tensor:
    """Random orthonormal rows (fewer rows than columns) that leave the first column alone."""
    basis, _ = torch.linalg.qr(torch.randn(columns - 1, rows))
    return torch.cat([torch.zeros(rows, 1), basis.T], dim=1)


@torch.no_grad()
def wire_copying(model: LlamaForCausalLM) -> None:
    """
    Start with two attention heads that copy, which a model this small would hardly find itself.

    In the first block a head looks one token back and notes what stands there; in the second one
    a head looks for a note of the current token and copies the token that carries it. Training
    is free to change them.
    """
    embedding = model.model.embed_tokens.weight
    embedding.normal_(std=EMBEDDING_STD)
    embedding[:, 0] = 2 * EMBEDDING_STD
    first, second = (model.model.layers[layer].self_attn for layer in (0, 1))
    frequencies = model.model.rotary_emb.inv_freq
    reads, notes, copies = (orthonormal(HEAD_DIM, HIDDEN_SIZE) for _ in range(3))

    # The constant first feature makes the same query and key everywhere; turned against each other
    # by one position, they meet where the distance is one.
    fast = (torch.arange(HEAD_DIM // 2) < 6) * 12**0.5
    first.q_proj.weight[: 2 * HEAD_DIM, 0] = torch.cat(
        [fast * frequencies.cos(), -fast * frequencies.sin()]
    ).repeat(2)
    first.k_proj.weight[:HEAD_DIM, 0] = torch.cat([fast, torch.zeros(HEAD_DIM // 2)])
    first.v_proj.weight[:HEAD_DIM] = 0.15 * reads
    first.o_proj.weight[:, :HEAD_DIM] = 0.15 * notes.T

    # Only slowly turning features can match tokens whatever their distance.
    slow = (frequencies < 0.02).repeat(2)[:, None] * 8**0.5
    second.q_proj.weight[: 2 * HEAD_DIM] = (slow * reads).repeat(2, 1)
    second.k_proj.weight[:HEAD_DIM] = slow * notes
    second.v_proj.weight[:HEAD_DIM] = 0.6 * copies
    second.o_proj.weight[:, : 2 * HEAD_DIM] = 0.3 * copies.T.repeat(1, 2)


def learning_rate_share(step: int, num_steps: int) -> float:
    """Linear warm-up, then a cosine to two percent."""
    if step < WARM_UP_STEPS:
        return (step + 1) / WARM_UP_STEPS
    return 0.02 + 0.98 * (1 + math.cos(math.pi * step / num_steps)) / 2


def train(model: LlamaForCausalLM, corpus: Corpus, num_steps: int, rng: random.Random) -> None:
    """Run the optimizer for *num_steps* batches."""
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.01)
    started = time.monotonic()
    probe_text = [module_example(rng, corpus, 256) for _ in range(8)]
    probe_copies = [repeated_noise_example(rng, corpus, 256) for _ in range(8)]
    for step in range(num_steps):
        phase = PHASES[0] if step < num_steps * PHASES[0].share_of_steps else PHASES[1]
        inputs, labels = sample_batch(rng, corpus, phase)
        loss = model(input_ids=inputs, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        share = learning_rate_share(step, num_steps)
        optimizer.param_groups[0]["lr"] = PEAK_LEARNING_RATE * share
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 99:
            logger.info(
                "step %d, %.0f s: text %.3f, copies %.3f",
                step,
                time.monotonic() - started,
                mean_loss(model, probe_text),
                mean_loss(model, probe_copies),
            )


@torch.no_grad()
def mean_loss(model: LlamaForCausalLM, examples: list[Example]) -> float:
    """Average loss per learnt token over examples of one length each."""
    losses: list[float] = [
        model(
            input_ids=torch.tensor([example.token_ids]), labels=torch.tensor([example.labels])
        ).loss.item()
        for example in examples
    ]
    return sum(losses) / len(losses)


def evaluate(model: LlamaForCausalLM, corpus: Corpus) -> dict[str, float]:
    """Loss on unseen modules, and on the second copy of unseen noise (what copying achieves)."""
    rng = random.Random(7)  # noqa: S311 (a reproducible draw, no secret)
    unseen = Corpus(corpus.held_out, [], [])
    return {
        "held_out_loss": mean_loss(model, [module_example(rng, unseen, 512) for _ in range(64)]),
        "held_out_loss_2048": mean_loss(
            model, [module_example(rng, unseen, CONTEXT_LENGTH) for _ in range(8)]
        ),
        "copy_loss": mean_loss(
            model, [repeated_noise_example(rng, unseen, 512) for _ in range(32)]
        ),
    }


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json compactly, its configuration and the chat template."""
    fast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        model_max_length=CONTEXT_LENGTH,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)


def save(model: LlamaForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the model folder, weights in float16."""
    model.to(torch.float16).save_pretrained(folder)  # type: ignore[arg-type]
    generation = GenerationConfig(  # type: ignore[no-untyped-call]
        bos_token_id=BOS_ID, eos_token_id=EOS_ID, pad_token_id=PAD_ID, do_sample=False
    )
    generation.save_pretrained(folder)
    save_tokenizer(tokenizer, folder)


def main() -> None:
    """Train, evaluate and write the model folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "tiny")
    parser.add_argument("--steps", type=int, default=1400)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.manual_seed(0)
    torch.set_flush_denormal(True)

    sources = standard_library_sources()
    tokenizer = train_tokenizer(sources)
    corpus = build_corpus(tokenizer, sources)
    logger.info("%d modules, %d tokens", len(sources), sum(map(len, corpus.training)))
    model = new_model()
    rng = random.Random(0)  # noqa: S311 (a reproducible draw, no secret)
    train(model, corpus, arguments.steps, rng)
    logger.info("%s", json.dumps(evaluate(model, corpus)))
    save(model, tokenizer, arguments.output)


if __name__ == "__main__":
    main()
