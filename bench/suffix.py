"""
Measures the suffix drafter: what a proposal and a commit cost with a million tokens indexed (CPU
time), what a token takes, how long a prompt of 128k tokens takes; and how well it drafts, beside
prompt lookup on the same texts.

    python -m bench.suffix

The texts are the Python standard library's own source, in tokens of the tiny test model, and
random tokens of a Pareto law. Steps around which the scheduler gave the core to another process
are left out, as that one empties the caches: on a machine that does nothing else there are few.
What interrupts the core (a virtual one a thousand times a second, for 20 microseconds and more) is
counted as the step's: in one of thirty steps of 20 microseconds. The same steps are therefore taken
three times, by sessions that know the same, and beside the quantiles of all stand those of the
medians of each step, in which what the drafter itself costs remains, its cache misses included.
Replays are those of ``bench.ngram``; in the corpus workload the same tenant has had an edited
version of each text written before.
"""

from __future__ import annotations

import asyncio
import math
import random
import resource
import statistics
import sysconfig
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.bar import Bar
from bench.ngram import (
    LIMITS,
    TOKENIZER,
    Calibration,
    edited_copies,
    load_documents,
    microseconds,
    verify,
)
from draft_service.drafter import DraftLimits, DraftSession, SessionSpec
from draft_service.ngram import NgramOptions, NgramSession
from draft_service.suffix import SuffixDrafter, SuffixOptions
from draft_service.suffix_session import SuffixSession, Workspace

ISSUE: Final = 4
NUM_INDEXED: Final = 1_000_000
PROMPT_LEN: Final = 131_072 - 1_024
NUM_STEPS: Final = 2_000
NUM_WARM_UP_STEPS: Final = 200
NUM_REPLAYS: Final = 3
TREE: Final = DraftLimits(max_draft_tokens=32, max_tree_depth=32)

_WORKSPACE: Final = Workspace()


def suffix_session(prompt: Sequence[int]) -> DraftSession:
    """Return a suffix session without a corpus."""
    return SuffixSession(SessionSpec(prompt), _WORKSPACE)


def ngram_session(prompt: Sequence[int]) -> DraftSession:
    """Return a session of the n-gram drafter."""
    return NgramSession(SessionSpec(prompt), NgramOptions())


@dataclass(slots=True)
class Steps:
    """Seconds of CPU time of each step; infinite where the core was given to another process."""

    propose: list[float] = field(default_factory=list)
    commit: list[float] = field(default_factory=list)


def main() -> None:
    """Print each figure beside its target, and how well both drafters draft."""
    for bar in asyncio.run(measure()):
        print(f"{bar.bar:60} {bar.figure:10.4g}  {bar.shown_target}")


async def measure() -> list[Bar]:
    """Return the figures; needs no service and no model."""
    SuffixDrafter(SuffixOptions()).warm_up()
    source = source_tokens(NUM_INDEXED + 4 * NUM_STEPS)
    drawn = random.Random(1)
    pareto = [min(int(drawn.paretovariate(0.6)), 5_000) for _ in source]
    costs = [
        *_costs("source read on", source[:NUM_INDEXED], source[NUM_INDEXED:]),
        *_costs("source copied", source[:NUM_INDEXED], source[NUM_INDEXED // 3 :]),
        *_costs("random text", pareto[:NUM_INDEXED], pareto[NUM_INDEXED:]),
    ]
    return [*costs, _ingestion(source[:PROMPT_LEN]), *_quality()]


def source_tokens(num_tokens: int) -> list[int]:
    """Return tokens of distinct files of the standard library."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    library = Path(sysconfig.get_paths()["stdlib"])
    files = [path for path in sorted(library.rglob("*.py")) if "site-packages" not in path.parts]
    random.Random(1).shuffle(files)
    token_ids: list[int] = []
    for path in files:
        if path.stat().st_size < 200_000:
            text = path.read_text(encoding="utf-8", errors="ignore")
            token_ids += tokenizer.encode(text, add_special_tokens=False).ids
        if len(token_ids) >= num_tokens:
            break
    return token_ids[:num_tokens]


def replay(session: DraftSession, text: list[int], prompt_len: int, table: Calibration) -> None:
    """Let a session that knows the prompt propose, and commit, until the text is through."""
    position = prompt_len
    while position < len(text):
        tree = session.propose(LIMITS).tree
        committed = verify(tree, text[position:], table)
        session.commit(position, committed)
        position += len(committed)
        table.num_steps += 1
        table.num_tokens += len(committed)
    session.close()


def _costs(workload: str, history: list[int], rest: list[int]) -> Iterable[Bar]:
    replays = list[Steps]()
    for _ in range(NUM_REPLAYS):
        session = SuffixSession(SessionSpec(history), _WORKSPACE)
        while session.propose(TREE).may_grow:
            pass
        replays.append(_timed(session, rest))
        num_bytes = session.num_bytes
    name = f"suffix, {workload}"
    proposals = [steps.propose for steps in replays]
    yield from _quantiles(f"{name}: propose 32 nodes", proposals, target=50.0)
    commits = [steps.commit for steps in replays]
    yield from _quantiles(f"{name}: commit 1 to 5 tokens", commits, target=20.0)
    yield _at_most(f"{name}: bytes per token", num_bytes / len(history), 100.0)


def _timed(session: SuffixSession, rest: list[int]) -> Steps:
    steps = Steps()
    drawn, position = random.Random(2), 0
    num_switches = _num_switches()
    for step in range(NUM_STEPS):
        committed = rest[position : position + drawn.randint(1, 5)]
        position = (position + len(committed)) % (len(rest) - 5)
        started = time.thread_time()
        session.propose(TREE)
        proposed = time.thread_time()
        session.commit(0, committed)
        ended, former_switches, num_switches = time.thread_time(), num_switches, _num_switches()
        if step >= NUM_WARM_UP_STEPS:
            is_whole = num_switches == former_switches
            steps.propose.append(proposed - started if is_whole else math.inf)
            steps.commit.append(ended - proposed if is_whole else math.inf)
    return steps


def _num_switches() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


def _quantiles(name: str, replays: list[list[float]], *, target: float) -> Iterable[Bar]:
    everything = [seconds for replay in replays for seconds in replay if seconds < math.inf]
    medians = [statistics.median(seconds) for seconds in zip(*replays, strict=True)]
    whole = [seconds for seconds in medians if seconds < math.inf]
    yield _at_most(f"{name}, p50 (us)", microseconds(everything, 0.5), target)
    yield _at_most(f"{name}, p99 (us)", microseconds(everything, 0.99), target)
    yield _at_most(f"{name}, p99 of steps' medians (us)", microseconds(whole, 0.99), target)


def _at_most(name: str, figure: float, target: float) -> Bar:
    return Bar(ISSUE, name, figure, target, "at most")


def _ingestion(prompt: list[int]) -> Bar:
    started = time.thread_time()
    session = SuffixSession(SessionSpec(prompt), _WORKSPACE)
    while session.propose(TREE).may_grow:
        pass
    return _at_most("suffix: prompt of 128k tokens (s)", time.thread_time() - started, 1.5)


def _quality() -> Iterable[Bar]:
    documents = load_documents()
    read_on = [(text[:2_500], 500) for text in documents]
    edited = [(text[: length + 2_000], length) for text, length in edited_copies(documents)]
    for workload, texts in (("source read on", read_on), ("edited copy", edited)):
        looked_up = _replayed(ngram_session, texts)
        yield from _beside(workload, _replayed(suffix_session, texts), looked_up)
    looked_up, with_corpus = _replayed(ngram_session, read_on), _with_corpus(read_on)
    yield from _beside("source written before", with_corpus, looked_up)


def _replayed(
    open_session: Callable[[Sequence[int]], DraftSession], texts: list[tuple[list[int], int]]
) -> Calibration:
    table = Calibration()
    for text, prompt_len in texts:
        replay(open_session(text[:prompt_len]), text, prompt_len, table)
    return table


def _with_corpus(texts: list[tuple[list[int], int]]) -> Calibration:
    """Replay each text after the same tenant has had an edited version of it written."""
    table = Calibration()
    drafter = SuffixDrafter(SuffixOptions(corpus_tokens=1_000_000))
    for text, prompt_len in texts:
        pieces = [text[start : start + 700] for start in range(prompt_len, len(text), 700)]
        session = drafter.open(SessionSpec([0], prompt_len=1, tenant="bench"))
        for pair, length in edited_copies(pieces):
            session.commit(0, pair[length:])
        session.close()
        spec = SessionSpec(text[:prompt_len], prompt_len=prompt_len, tenant="bench")
        replay(drafter.open(spec), text, prompt_len, table)
    return table


def _beside(workload: str, suffix: Calibration, looked_up: Calibration) -> Iterable[Bar]:
    name = f"suffix, {workload}"
    lookup = looked_up.tokens_per_step
    yield Bar(ISSUE, f"{name}: tokens per step (n-gram: target)", suffix.tokens_per_step, lookup)
    yield _at_most(f"{name}: calibration error (n-gram: {looked_up.error:.4f})", suffix.error, 0.03)


if __name__ == "__main__":
    main()
