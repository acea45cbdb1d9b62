"""Every known failure of other servers that ours could repeat is tested, or ruled out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

KNOWN_FAILURES = {
    "B001": "a sliding window that wraps keeps rejected drafts",
    "B002": "half-precision ties fall differently in batches of rows",
    "B003": "a cache that cannot be rewound goes on dirty",
    "B004": "another batch or tree shape changes the text",
    "B005": "scoring a block of tokens differs from scoring them one by one",
    "B006": "the first draft token is kept unchecked",
    "B007": "logits of one node leak into another's, hidden by high acceptance",
    "B008": "a long draft overruns a cache block",
    "B009": "the draft length changes the text",
    "B010": "the model's own defaults reach one path only",
    "B011": "nodes of a tree get wrong positions",
    "B012": "captured graphs compute something else",
    "B013": "siblings with a made-up distribution bias the output",
    "B014": "the second of two tokens is drawn wrongly",
    "B015": "after a rejection the wrong row is read",
    "B016": "a greedy draft states a soft distribution",
    "B017": "a mismatch is followed by a second draw",
    "B018": "what was drawn from and what is stated differ by rounding",
    "B019": "acceptance ignores temperature and cuts",
    "B020": "temperature is dropped on the way",
    "B021": "a greedy request changes beside a sampled one",
    "B022": "penalties have no effect on accepted tokens",
    "B023": "min-p and bias reach the last token only",
    "B024": "custom processors are skipped",
    "B025": "a missing penalty loops for ever at full acceptance",
    "B026": "a seed does not repeat",
    "B027": "seeded text depends on the engine's age",
    "B028": "unseeded requests repeat each other",
    "B029": "another seed changes nothing",
    "B030": "accepted tokens have no log-probability",
    "B031": "accepted tokens report probability one",
    "B032": "log-probabilities silently switch drafting off",
    "B033": "prompt scoring is corrupted",
    "B034": "only the first token has a log-probability",
    "B035": "one kind of drafter loses log-probabilities",
    "B036": "text goes on after the end token inside a run",
    "B037": "an end token accepted mid-run is missed",
    "B038": "a stop string inside a run is missed",
    "B039": "drafts pass the context's end",
    "B040": "one drafter lacks the cap",
    "B041": "runs near the limit are written twice",
    "B042": "a rejected end token ends the draft session",
    "B043": "a model without an end token fails",
    "B044": "usage counts tokens that were cut",
    "B045": "blocks leak with each request",
    "B046": "blocks leak in one allocation path",
    "B047": "a wide tree near the limit writes out of range",
    "B048": "the same request accepts less in a batch",
    "B049": "scattered accepted nodes are taken for a dense prefix",
    "B050": "an added branch lowers acceptance",
    "B051": "a fully accepted round leaves a gap in the draft's cache",
    "B052": "a prefix hit leaves the drafter without context",
    "B053": "unverified tokens reach the prefix cache",
    "B054": "trees evict cached prompts",
    "B055": "draft sessions are never freed",
    "B056": "the worst step does not fit in memory",
    "B057": "a NaN row yields an id out of range",
    "B058": "padding is accepted",
    "B059": "zero acceptance reads a wrong index",
    "B060": "acceptance slides over hours",
    "B061": "large batches corrupt tokens",
    "B062": "requests that come and go get nonsense",
    "B063": "drafted and plain requests swap rows",
    "B064": "ragged trees crash",
    "B065": "depth times concurrency corrupts",
    "B066": "a draft batch mixes its sequences",
    "B067": "stale drafts stay with a preempted request",
    "B068": "drafting and verifying race",
    "B069": "replicas wait for each other",
    "B070": "empty trees for all hang",
    "B071": "a drafter out of memory leaves a request unanswered",
    "B072": "an exception in the engine's thread leaves clients waiting",
    "B073": "a dead drafter takes the answer with it",
    "B074": "a remote drafter's lies and hang-ups get through",
    "B075": "one node too many breaks the step",
    "B076": "a last chunk of one token is taken for a decode",
    "B077": "a long prefill starves running streams",
    "B078": "an adapter is not applied",
    "B079": "padded vocabularies differ in width",
    "B080": "a draft that breaks the grammar kills the engine",
    "B081": "drafts run past the grammar's end",
    "B082": "the grammar advances twice",
    "B083": "a grammar that begins mid-run is not enforced",
    "B084": "output stops where a draft left the grammar",
    "B085": "characters of several tokens arrive broken",
    "B086": "streamed pieces do not add up to the answer",
    "B087": "markup is cut or shown where its tokens are split",
    "B088": "markup is missed where several of its tokens come at once",
    "B089": "counts of drafts are wrong or missing",
    "B090": "the mean length is defined otherwise than published",
    "B091": "the root counts as drafted",
    "B092": "a metric's name is a prefix of another's",
    "B093": "ratios are averaged, not pooled",
    "B094": "a setting is read by nobody",
    "B095": "a limit is used by nobody",
    "B096": "flags are not forwarded",
    "B097": "spans of drafts and verification are lost",
    "B098": "acceptance collapses and nobody notices",
    "B111": "a session longer than the drafter takes fails",
    "B112": "the drafter's own limit is read out of range",
    "B113": "vocabularies are not compared",
    "B114": "padded vocabularies are refused or drawn from",
    "B115": "ids are re-encoded across tokenizers",
    "B116": "another tokenizer snapshot is in use",
}
"""By id: what went wrong elsewhere. Greedy and sampled output, options, log-probabilities, limits,
cache, batching, structured output, text, figures and settings, the drafter's vocabulary and
context."""


def _named(text: str) -> set[str]:
    """Return the ids that a text names, ranges spelled out."""
    found = set(re.findall(r"\bB\d{3}\b", text))
    for first, last in re.findall(r"\bB(\d{3})-B(\d{3})\b", text):
        found |= {f"B{number:03d}" for number in range(int(first), int(last) + 1)}
    return found


@pytest.fixture(scope="module")
def covered() -> set[str]:
    """Return the ids that tests name and those that the documentation rules out."""
    tests = [path for path in (ROOT / "tests").rglob("test_*.py") if path != Path(__file__)]
    paths = [*tests, ROOT / "docs" / "losslessness.md"]
    return set[str]().union(*(_named(path.read_text(encoding="utf-8")) for path in paths))


def test_every_known_failure_is_tested_or_ruled_out(covered: set[str]) -> None:
    missing = {
        failure: title for failure, title in KNOWN_FAILURES.items() if failure not in covered
    }

    assert not missing


def test_ranges_of_ids_are_spelled_out() -> None:
    assert _named("B007: one, B012-B014: three; not AB015 or B16") == {
        "B007", "B012", "B013", "B014"
    }  # fmt: skip
