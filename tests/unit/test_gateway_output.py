"""One output as it grows: where it is cut, and what its statistics say then."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.detokenizer import Decoding
from gateway.generation import DraftFallback, FinishReason, Step, TokenLimits, TokenLogprobs
from gateway.output import Ending, Output
from gateway.speculation_record import SpeculationRecord
from gateway.stop_strings import StopStrings
from gateway.text_assembler import TextAssembler
from tests.doubles.model_folders import byte_level_tokenizer

TOKENIZER = byte_level_tokenizer()
DECODING = Decoding(TOKENIZER)


def new_output(
    *stops: str, max_tokens: int = 1000, include_stop: bool = False, min_tokens: int = 0
) -> Output:
    """Return an empty output with steps kept."""
    text = TextAssembler(
        DECODING.detokenizer(skip_special_tokens=True),
        StopStrings(stops, include_stop=include_stop) if stops else None,
        min_tokens=min_tokens,
    )
    record = SpeculationRecord.at_level(with_steps=True)
    return Output(text, TokenLimits(max_tokens, min_tokens), record, include_stop=include_stop)


def ids_of(text: str) -> tuple[int, ...]:
    """Return a text's token ids."""
    return tuple(TOKENIZER.encode(text, add_special_tokens=False).ids)


def test_a_step_cut_by_a_stop_string_counts_only_the_drafts_that_were_kept() -> None:
    """B044: accepted tokens never exceed emitted ones."""
    output = new_output("c")
    token_ids = ids_of("wzcqq")
    output.add(Step(token_ids, num_drafted=9, num_accepted=4))

    piece, record = output.take(), output.statistics

    assert piece.text == "wz"
    assert tuple(piece.token_ids) == ids_of("wzc")
    assert output.ending == Ending(FinishReason.STOP, "c")
    assert record.num_accepted_draft_tokens == 3
    assert record.acceptance_histogram == [0, 0, 0, 1]
    assert (record.per_step_accepted, record.per_step_drafted) == ([3], [9])


def test_nothing_is_taken_in_after_the_end() -> None:
    """B036."""
    output = new_output(max_tokens=2)

    output.add(Step(ids_of("ab"), finish_reason=FinishReason.LENGTH))
    output.add(Step(ids_of("cd"), num_drafted=1, num_accepted=1))

    assert output.take().text == "ab"
    assert output.statistics.num_spec_steps == 1


def test_a_stop_string_in_the_held_back_text_is_found_at_the_end() -> None:
    output = new_output("\ufffd")
    cut_off = ids_of("w😀")[:-1]

    output.add(Step(cut_off, finish_reason=FinishReason.LENGTH))

    assert output.take().text == "w"
    assert output.ending == Ending(FinishReason.STOP, "\ufffd")


def test_held_back_text_comes_out_when_generation_ends_otherwise() -> None:
    output = new_output("END")

    output.add(Step(ids_of("the EN"), finish_reason=FinishReason.LENGTH))

    assert output.take().text == "the EN"


def test_logprobs_are_cut_with_their_tokens() -> None:
    output = new_output("c")
    logprobs = tuple(TokenLogprobs(-float(index)) for index in range(5))
    output.add(Step(ids_of("wzcqq"), logprobs=logprobs))

    assert output.take().logprobs == logprobs[:3]


def test_a_prefill_is_no_verification_step() -> None:
    output = new_output()

    output.add(Step(ids_of("a"), is_prefill=True))

    assert output.statistics.num_spec_steps == 0
    assert output.statistics.mean_acceptance_length == 0.0


def test_steps_of_a_drafting_request_without_drafts_are_counted_as_empty() -> None:
    output = new_output()
    output.statistics.pool = "ngram"

    output.add(Step(ids_of("a")))

    assert output.statistics.num_empty_steps == 1
    assert output.statistics.mean_acceptance_length == 1.0


def test_merged_figures_are_pooled_and_not_averaged() -> None:
    """B093: requests of 1/2 and 9/10 make 10/12."""
    one, other = SpeculationRecord(), SpeculationRecord()
    one.add(Step((1, 2), num_drafted=2, num_accepted=1), 2)
    other.add(Step(tuple(range(10)), num_drafted=10, num_accepted=9), 10)
    other.note_fallback(DraftFallback.LOAD)

    one.merge(other)

    assert one.draft_acceptance_rate == 10 / 12
    assert one.fallbacks == [DraftFallback.LOAD]


@given(
    runs=st.lists(st.tuples(st.text(alphabet="wzc é", min_size=1, max_size=6), st.integers(0, 9))),
    stop=st.sampled_from(["c", "zc", "é", "www"]),
)
def test_the_invariants_of_the_statistics_hold_wherever_a_stop_string_cuts(
    runs: list[tuple[str, int]], stop: str
) -> None:
    """B044, B089: the figures that AIPerf checks."""
    output = new_output(stop)

    for text, extra in runs:
        token_ids = ids_of(text)
        output.add(Step(token_ids, len(token_ids) - 1 + extra, len(token_ids) - 1))

    record = output.statistics
    accepted = sum(j * count for j, count in enumerate(record.acceptance_histogram))
    assert record.num_spec_steps == len(record.per_step_accepted or [])
    assert record.num_accepted_draft_tokens == accepted == sum(record.per_step_accepted or [])
    assert accepted <= record.num_draft_tokens == sum(record.per_step_drafted or [])
    assert accepted <= len(output.token_ids)
    if record.acceptance_histogram:
        assert record.acceptance_histogram[-1] > 0
