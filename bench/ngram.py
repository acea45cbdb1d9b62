"""
Measures the n-gram drafter: what a proposal and a committed token cost at several history
lengths (CPU time), and how honest its probabilities are on real text.

    python -m bench.ngram [--json FILE]

The text is the Python standard library's own source, in tokens of the tiny test model where it
exists, else in words. It is replayed as if a target had written it: each step takes the first
nodes of the tree as a verifier would, and commits what the text says.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import sysconfig
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from draft_service.drafter import DraftLimits, SessionSpec
from draft_service.ngram import NgramOptions, NgramSession
from paceline.tree import ROOT, TokenTree

TOKENIZER = Path(__file__).parent.parent / "tests" / "models" / "tiny" / "tokenizer.json"
LIMITS = DraftLimits(max_draft_tokens=48, max_tree_depth=48)
NODES_PER_STEP = 8
"""How many nodes the replayed verifier takes."""

HISTORY_LENGTHS = (1_000, 10_000, 100_000)
NUM_STEPS = 500
NUM_FILES = 25
NUM_BUCKETS = 10


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds at one history length."""

    workload: str
    history_len: int
    propose_p50: float
    propose_p99: float
    commit_token_p50: float
    commit_token_p99: float
    open_milliseconds: float
    nodes: float


@dataclass(slots=True)
class Calibration:
    """Predicted probabilities against outcomes, for nodes whose parent was committed."""

    predicted: list[float] = field(default_factory=lambda: [0.0] * NUM_BUCKETS)
    hits: list[int] = field(default_factory=lambda: [0] * NUM_BUCKETS)
    counts: list[int] = field(default_factory=lambda: [0] * NUM_BUCKETS)
    num_steps: int = 0
    num_tokens: int = 0

    def add(self, probability: float, *, hit: bool) -> None:
        """Take in one node."""
        bucket = min(int(probability * NUM_BUCKETS), NUM_BUCKETS - 1)
        self.predicted[bucket] += probability
        self.hits[bucket] += hit
        self.counts[bucket] += 1

    @property
    def error(self) -> float:
        """The expected calibration error."""
        gaps = [abs(hits - sure) for hits, sure in zip(self.hits, self.predicted, strict=True)]
        return sum(gaps) / max(sum(self.counts), 1)

    @property
    def tokens_per_step(self) -> float:
        """The mean acceptance length with ``NODES_PER_STEP`` nodes a step."""
        return self.num_tokens / max(self.num_steps, 1)


def main() -> None:
    """Print all figures; write them as JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    chosen = parser.parse_args()
    costs = list(measure_costs())
    for cost in costs:
        print(
            f"{cost.workload:8} history {cost.history_len:7}: "
            f"propose p50 {cost.propose_p50:6.0f} us, p99 {cost.propose_p99:6.0f} us "
            f"({cost.nodes:4.1f} nodes); commit p50 {cost.commit_token_p50:5.1f} us/token, "
            f"p99 {cost.commit_token_p99:5.1f}; open {cost.open_milliseconds:6.1f} ms"
        )
    documents = load_documents()
    tables = {
        "source read on": replay_all((text, 500) for text in documents),
        "edited copy": replay_all(edited_copies(documents)),
    }
    for name, table in tables.items():
        print_calibration(name, table)
    if chosen.json:
        figures = {
            "costs": [asdict(cost) for cost in costs],
            "calibration": {name: asdict(table) for name, table in tables.items()},
        }
        chosen.json.write_text(json.dumps(figures, indent=1))


def measure_costs() -> Iterator[Cost]:
    """Yield costs while copying, on random text, and without any match."""
    rng = random.Random(1)

    def token() -> int:
        return min(int(rng.paretovariate(0.6)), 5_000)

    for history_len in HISTORY_LENGTHS:
        text = [token() for _ in range(history_len)]
        yield measure("copy", text, [text[5 * step % 900 :][:5] for step in range(NUM_STEPS)])
        fresh = [[token() for _ in range(5)] for _ in range(NUM_STEPS)]
        yield measure("random", text, fresh)
        counted = [[10**6 + 5 * step + i for i in range(5)] for step in range(NUM_STEPS)]
        yield measure("no match", list(range(history_len)), counted)


def measure(workload: str, text: list[int], steps: list[list[int]]) -> Cost:
    """Return the costs of committing steps of tokens after a history."""
    started = time.thread_time()
    session = NgramSession(SessionSpec(text), NgramOptions())
    opened = time.thread_time() - started
    propose_seconds, commit_seconds, num_nodes = [], [], 0
    for token_ids in steps:
        started = time.thread_time()
        draft = session.propose(LIMITS)
        propose_seconds.append(time.thread_time() - started)
        num_nodes += draft.tree.num_nodes
        started = time.thread_time()
        session.commit(draft.base_len, token_ids)
        commit_seconds.append((time.thread_time() - started) / len(token_ids))
    return Cost(
        workload=workload,
        history_len=len(text),
        propose_p50=microseconds(propose_seconds, 0.5),
        propose_p99=microseconds(propose_seconds, 0.99),
        commit_token_p50=microseconds(commit_seconds, 0.5),
        commit_token_p99=microseconds(commit_seconds, 0.99),
        open_milliseconds=opened * 1e3,
        nodes=num_nodes / len(steps),
    )


def microseconds(seconds: Sequence[float], quantile: float) -> float:
    """Return a quantile in microseconds."""
    return sorted(seconds)[int(len(seconds) * quantile)] * 1e6


def load_documents() -> list[list[int]]:
    """Return token ids of some files of the standard library."""
    library = Path(sysconfig.get_paths()["stdlib"])
    files = [path for path in sorted(library.glob("*.py")) if 8_000 < path.stat().st_size < 40_000]
    chosen = random.Random(3).sample(files, NUM_FILES)
    texts = [path.read_text(encoding="utf-8", errors="ignore") for path in chosen]
    if TOKENIZER.exists():
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(TOKENIZER))
        return [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    numbers: dict[str, int] = {}
    words = [re.findall(r"\w{1,6}|\s+|[^\w\s]", text) for text in texts]
    return [[numbers.setdefault(word, len(numbers)) for word in text] for text in words]


def edited_copies(documents: list[list[int]]) -> Iterator[tuple[list[int], int]]:
    """Yield prompts of 700 tokens, each followed by an edited copy; and the prompts' lengths."""
    rng = random.Random(5)
    for document in documents:
        source = document[:700]
        vocabulary = sorted(set(source))
        renamed = {
            token_id: rng.choices(vocabulary, k=rng.choice([1, 1, 2]))
            for token_id in rng.sample(vocabulary, max(1, len(vocabulary) // 50))
        }
        copy: list[int] = []
        for token_id in source:
            copy += renamed.get(token_id, [token_id])
            if rng.random() < 0.005:
                copy += rng.choices(vocabulary, k=rng.randint(1, 6))
        yield source + copy, len(source)


def replay_all(texts: Iterator[tuple[list[int], int]]) -> Calibration:
    """Replay texts from their prompts' ends on, at most 2000 tokens each."""
    table = Calibration()
    for text, prompt_len in texts:
        replay(text[: prompt_len + 2_000], prompt_len, table)
    return table


def replay(text: list[int], prompt_len: int, table: Calibration) -> None:
    """Let a drafter propose and a verifier commit until the text is through."""
    session = NgramSession(SessionSpec(text[:prompt_len]), NgramOptions())
    position = prompt_len
    while position < len(text):
        tree = session.propose(LIMITS).tree
        committed = verify(tree, text[position:], table)
        session.commit(position, committed)
        position += len(committed)
        table.num_steps += 1
        table.num_tokens += len(committed)


def verify(tree: TokenTree, rest: list[int], table: Calibration) -> list[int]:
    """Return what a step commits, and note for each node on its way whether it was right."""
    node, committed = ROOT, list[int]()
    for token_id in rest:
        committed.append(token_id)
        for child in range(1, min(tree.num_nodes, NODES_PER_STEP) + 1):
            if tree.parents[child - 1] == node:
                hit = tree.token_ids[child - 1] == token_id
                table.add(math.exp(tree.log_probs[child - 1]), hit=hit)
        found = tree.child(node, token_id)
        if found is None or found > NODES_PER_STEP:
            break
        node = found
    return committed


def print_calibration(name: str, table: Calibration) -> None:
    """Print a table of predicted against observed hit rates."""
    print(f"\n{name}: {table.tokens_per_step:.2f} tokens/step, calibration error {table.error:.4f}")
    for bucket in range(NUM_BUCKETS):
        count = table.counts[bucket]
        if count:
            print(
                f"  {bucket / NUM_BUCKETS:.1f}: {count:6} nodes, "
                f"predicted {table.predicted[bucket] / count:.3f}, "
                f"observed {table.hits[bucket] / count:.3f}"
            )


if __name__ == "__main__":
    main()
