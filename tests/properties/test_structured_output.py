"""Output under a grammar is always valid, and drafting changes nothing about it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from paceline.errors import ConfigurationError, InvalidRequest, Mismatch
from paceline.noise import gumbel_noise, mix64
from paceline.tree import TokenTree
from paceline.v1 import types_pb2
from tests.doubles.engine_harness import POOL, Emitted, Harness
from verify_service.engine.draft_selection import BudgetMode
from verify_service.engine.sampling import FinishReason, Rule, SamplingParams, TokenLimits
from verify_service.engine.sequence import Request
from verify_service.engine.step_engine import EngineConfig, StepEngine
from verify_service.grammar import GrammarCompiler
from verify_service.targets.table import TableTarget

TOKENIZER = Path(__file__).parents[1] / "models" / "tiny" / "tokenizer.json"
EOS = 2
PROMPT = (1, 300, 301, 302)


@cache
def _tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(TOKENIZER))


@cache
def _compiler() -> GrammarCompiler:
    return GrammarCompiler(TOKENIZER, _tokenizer().get_vocab_size(), (EOS,))


@cache
def _closing() -> list[int]:
    found = (_tokenizer().token_to_id(text) for text in ('"', "}", "]", "1", ":"))
    return [token_id for token_id in found if token_id is not None]


def _logits(tokens: tuple[int, ...]) -> list[float]:
    """A fixed random preference per position; what closes wins sooner or later."""
    ids = np.arange(_tokenizer().get_vocab_size())
    logits = gumbel_noise(tokens[-1], len(tokens), ids)
    logits[EOS] += 8.0 + 0.5 * len(tokens)
    logits[_closing()] += 0.2 * len(tokens)
    return list(map(float, logits))


def _engine() -> StepEngine:
    target = TableTarget(
        _logits,
        vocab_size=_tokenizer().get_vocab_size(),
        context_length=512,
        eos_token_ids=(EOS,),
    )
    config = EngineConfig(
        num_blocks=128, block_size=4, budget=BudgetMode.FIXED, draft_pools=(POOL,)
    )
    return StepEngine(target, config)


def _run(
    output: types_pb2.StructuredOutput,
    *,
    seed: int,
    oracle: Sequence[int] | None,
    rule: Rule = Rule.SAMPLE_AND_MATCH,
) -> Emitted:
    def propose(committed: Sequence[int]) -> TokenTree:
        following = list(oracle or ())[len(committed) : len(committed) + 3]
        wrong = (mix64(seed + len(committed)) % 1000) + 3
        if not following or wrong == following[0]:
            return TokenTree.chain([wrong, 5, 6])
        return TokenTree((wrong, *following), (0, *((0, 2, 3)[: len(following)])))

    harness = Harness(_engine(), None if oracle is None else propose)
    harness.submit(
        Request(
            1,
            PROMPT,
            sampling=SamplingParams(temperature=0.8, seed=seed, rule=rule),
            limits=TokenLimits(max_tokens=400, stop_token_ids=frozenset({EOS})),
            constraint=_compiler().compile(output),
        )
    )
    harness.run()
    return harness.emitted[1]


def _text(emitted: Emitted) -> str:
    ids = [token_id for token_id in emitted.token_ids if token_id != EOS]
    return str(_tokenizer().decode(ids, skip_special_tokens=False))


schemas = st.recursive(
    st.sampled_from(
        [
            {"type": "boolean"},
            {"type": "integer", "minimum": 0, "maximum": 99},
            {"type": "string", "maxLength": 6},
            {"enum": ["red", "green", "blue"]},
            {"type": "null"},
        ]
    ),
    lambda inner: st.one_of(
        st.builds(
            lambda properties: {
                "type": "object",
                "properties": properties,
                "required": sorted(properties),
                "additionalProperties": False,
            },
            st.dictionaries(st.sampled_from(["id", "name", "tags", "ok"]), inner, max_size=3),
        ),
        st.builds(lambda items: {"type": "array", "items": items, "maxItems": 2}, inner),
    ),
    max_leaves=5,
)


@settings(max_examples=25, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(schema=schemas, seed=st.integers(0, 2**32))
def test_any_schema_gives_valid_json_and_the_same_ids(schema: object, seed: int) -> None:
    """B080-B084: wrong and right drafts, forced spans and the grammar's end inside a run."""
    output = types_pb2.StructuredOutput(json_schema=json.dumps(schema))

    plain = _run(output, seed=seed, oracle=None)
    drafted = _run(output, seed=seed, oracle=[*PROMPT, *plain.token_ids])

    assert drafted.token_ids == plain.token_ids
    assert plain.finish_reason is FinishReason.STOP
    json.loads(_text(plain))


@settings(max_examples=10, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(schema=schemas, seed=st.integers(0, 2**32))
def test_rejection_gives_valid_json_too(schema: object, seed: int) -> None:
    """B080, B084: forbidden drafts have no probability; forced ones are accepted always."""
    output = types_pb2.StructuredOutput(json_schema=json.dumps(schema))
    plain = _run(output, seed=seed, oracle=None, rule=Rule.REJECTION)

    drafted = _run(output, seed=seed, oracle=[*PROMPT, *plain.token_ids], rule=Rule.REJECTION)

    for emitted in (plain, drafted):
        assert emitted.finish_reason is FinishReason.STOP
        json.loads(_text(emitted))


@pytest.mark.parametrize("pattern", ["[a-f]{3}-[0-9]{2}", "(yes|no)( indeed)?", "#+ [A-Z][a-z]*"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_regex_matches_the_whole_output(pattern: str, seed: int) -> None:
    """A regular expression holds from the first character to the end."""
    output = types_pb2.StructuredOutput(regex=pattern)

    emitted = _run(output, seed=seed, oracle=())

    assert re.fullmatch(pattern, _text(emitted))


def test_forced_spans_are_drafted_for_nothing() -> None:
    """What a grammar forces is verified in one step, without any drafter."""
    output = types_pb2.StructuredOutput(choice=types_pb2.Choice(options=["import collections.abc"]))

    emitted = _run(output, seed=1, oracle=None)

    assert _text(emitted) == "import collections.abc"
    assert len(emitted.steps) < len(emitted.token_ids)


def test_a_constraint_without_exit_is_a_clear_error() -> None:
    """B081: a bias that forbids the only way on ends the request with the reason."""
    output = types_pb2.StructuredOutput(choice=types_pb2.Choice(options=["ab"]))
    constraint = _compiler().compile(output)
    banned = {
        token_id: -float("inf")
        for token, token_id in _tokenizer().get_vocab().items()
        if "a" in token
    }
    harness = Harness(_engine())
    harness.submit(
        Request(1, PROMPT, sampling=SamplingParams(logit_bias=banned), constraint=constraint)
    )
    harness.run()

    error = harness.emitted[1].error
    assert isinstance(error, Mismatch)
    assert error.reason == "CONSTRAINT_DEAD_END"


DEAD_ENDS = types_pb2.StructuredOutput(
    grammar='start: "a" ("x" endless | "y" "z")\nendless: endless "q"'
)
"""After "ax" nothing may follow, and it is no end either."""


def _ids(text: str) -> list[int]:
    vocabulary = _tokenizer().get_vocab()
    return [vocabulary[letter] for letter in text]


def test_a_draft_into_a_dead_end_changes_nothing_for_other_ways() -> None:
    """B081: the grammar library keeps errors for good, so a look there must leave no mark."""
    constraint = _compiler().compile(DEAD_ENDS)
    constraint.commit(_ids("a"))

    before = constraint.mask(())
    behind = constraint.mask(_ids("x"))
    after = constraint.mask(())

    assert not behind.any()
    assert before.equal(after)
    assert constraint.mask(_ids("y")).nonzero().flatten().tolist() == _ids("z")
    assert constraint.num_allowed(_ids("yz")) == 2


@pytest.mark.parametrize("oracle", [None, [*PROMPT, *_ids("axz")]])
def test_an_answer_that_runs_into_a_dead_end_is_no_answer(oracle: list[int] | None) -> None:
    """B081: drafted or not, the request ends with the reason, not as if it were complete."""
    output = types_pb2.StructuredOutput(grammar='start: "ax" endless\nendless: endless "q"')

    error = _run(output, seed=1, oracle=oracle).error

    assert isinstance(error, Mismatch)
    assert error.reason == "CONSTRAINT_DEAD_END"


@pytest.mark.parametrize(
    "output",
    [
        types_pb2.StructuredOutput(json_schema='{"$ref": "#"}'),
        types_pb2.StructuredOutput(regex=r"[^\s\S]"),
        types_pb2.StructuredOutput(regex=r"a[^\s\S]"),
        types_pb2.StructuredOutput(grammar="start: start"),
    ],
)
def test_what_no_text_can_be_of_is_refused(output: types_pb2.StructuredOutput) -> None:
    with pytest.raises(InvalidRequest, match="no text can be of it") as refused:
        _compiler().compile(output)

    assert refused.value.field == f"structured_output.{output.WhichOneof('constraint')}"


def test_a_choice_among_thousands_comes_to_its_end() -> None:
    options = [f"item {number} of the list" for number in range(4_000)]

    emitted = _run(
        types_pb2.StructuredOutput(choice=types_pb2.Choice(options=options)), seed=1, oracle=None
    )

    assert emitted.error is None
    assert _text(emitted) in options


def test_nested_repetitions_are_given_up_before_they_hold_up_others() -> None:
    """What they force at once tells how much work was put into them."""
    constraint = _compiler().compile(types_pb2.StructuredOutput(regex="(((a{1000}){1000}){900})"))

    assert 0 < len(constraint.forced()) < 200_000


@pytest.mark.parametrize("pattern", ["()", "$", "(?:)"])
def test_what_only_the_empty_text_is_of_ends_at_once(pattern: str) -> None:
    emitted = _run(types_pb2.StructuredOutput(regex=pattern), seed=1, oracle=None)

    assert emitted.token_ids == [EOS]
    assert emitted.error is None


@pytest.mark.parametrize(
    ("output", "field"),
    [
        (types_pb2.StructuredOutput(json_schema="{"), "structured_output.json_schema"),
        (
            types_pb2.StructuredOutput(json_schema='{"type": "nonsense"}'),
            "structured_output.json_schema",
        ),
        (types_pb2.StructuredOutput(regex="(unclosed"), "structured_output.regex"),
        (types_pb2.StructuredOutput(grammar="start: missing"), "structured_output.grammar"),
        (types_pb2.StructuredOutput(choice=types_pb2.Choice()), "structured_output.choice"),
        (types_pb2.StructuredOutput(), "structured_output.constraint"),
    ],
)
def test_what_cannot_be_compiled_names_its_field(
    output: types_pb2.StructuredOutput, field: str
) -> None:
    """A bad constraint is refused before anything runs, in one line."""
    with pytest.raises(InvalidRequest) as caught:
        _compiler().compile(output)

    assert caught.value.field == field
    assert "\n" not in caught.value.message


def test_a_tokenizer_with_more_tokens_than_the_target_is_no_base_for_constraints() -> None:
    with pytest.raises(ConfigurationError, match=r"tokenizer\.json: vocab size too small"):
        GrammarCompiler(TOKENIZER, 3, (EOS,))
