"""What the suffix drafter makes of fields that differ from record to record."""

from __future__ import annotations

import pytest

from paceline.tree import ROOT, TokenTree
from tests.doubles.suffix_sessions import LIMITS, probability, session_over

pytestmark = pytest.mark.timeout(300)  # the first test may compile

NAME, END, TAIL = [10, 11, 12], [20, 21], [40, 41]


def records(*values: list[int]) -> list[int]:
    """Return records that differ, each with a field's name, its value and what ends it."""
    return [
        token_id
        for number, value in enumerate(values)
        for token_id in (1000 + number, *NAME, *value, *END)
    ]


def test_a_value_that_was_never_there_is_followed_by_what_ends_its_field() -> None:
    session = session_over([*records([101], [102, 103], [104, 105, 106]), *NAME])

    session.commit(0, [999])
    tree = session.propose(LIMITS).tree

    assert probability(tree, END[0]) > 0.1
    assert tree.num_held(END) == len(END)


def test_the_end_of_a_field_is_waited_for_however_long_the_value_is() -> None:
    session = session_over([*records([101], [102, 103], [104, 105, 106]), *NAME])

    for token_id in (999, 998, 997):
        session.commit(0, [token_id])

    assert probability(session.propose(LIMITS).tree, END[0]) > 0.1


def test_a_field_most_likely_ends_where_it_is_as_long_as_the_one_before() -> None:
    session = session_over([*records([101, 102], [103, 104], [105, 106]), *NAME])

    ends = list[float]()
    for token_id in (999, 998, 997):
        session.commit(0, [token_id])
        ends.append(probability(session.propose(LIMITS).tree, END[0]))

    shorter, as_long, longer = ends
    assert as_long > 1.5 * max(shorter, longer)
    assert min(shorter, longer) > 0.1


def test_a_field_that_has_ended_ends_no_second_time() -> None:
    session = session_over([*records([101], [102, 103], [104, 105, 106]), *NAME])

    session.commit(0, [999, END[0], 998])

    assert session.propose(LIMITS).tree == TokenTree()


def test_what_is_followed_by_the_same_again_and_again_is_no_field() -> None:
    session = session_over([*records([101], [101], [102], [101], [101]), *NAME])

    session.commit(0, [999])

    assert session.propose(LIMITS).tree == TokenTree()


def test_no_field_reaches_from_the_predicted_output_into_the_prompt() -> None:
    predicted = [*records([101], [102], [103]), *NAME]
    session = session_over([7, *NAME, 999], predicted)

    assert probability(session.propose(LIMITS).tree, 7) == 0


def probability_behind(tree: TokenTree, path: list[int], token_id: int) -> float:
    """Return the probability of a token behind a path of the tree that must be there."""
    node = ROOT
    for step in path:
        found = tree.child(node, step)
        assert found is not None
        node = found
    return probability(tree, token_id, node)


def test_the_value_of_the_record_before_is_not_expected_where_values_differ() -> None:
    """A record is copied with its fields' names; what it held is no guess for the next one."""
    differing = session_over([*records([101], [102], [103], [104]), 1003])
    alike = session_over([*records([101], [101], [101], [101]), 1003])

    behind_name = [
        probability_behind(session.propose(LIMITS).tree, NAME, value)
        for session, value in ((differing, 104), (alike, 101))
    ]

    assert behind_name[0] < 0.4 < 0.8 < behind_name[1]


def test_no_earlier_value_is_expected_in_the_field_after_the_one_that_ends() -> None:
    """What ended the field before is copied on into the next field's name, but no further."""
    second = [13, 14, 15]
    rows = [
        token_id
        for number in range(6)
        for token_id in (*NAME, 100 + number, *END, *second, 200 + number, *END)
    ]
    session = session_over([*rows, *NAME])

    session.commit(0, [999])
    tree = session.propose(LIMITS).tree

    assert probability(tree, END[0]) > 0.3
    assert probability_behind(tree, [*END, *second], 205) < 0.45


def test_a_long_copy_goes_on_through_fields_that_differ_elsewhere() -> None:
    """An edited file repeats its source through places that look like fields."""
    text = [*range(200, 220), *records([101], [102], [103], [104]), *range(300, 304)]
    session = session_over([*text, *text[: text.index(104)]])

    assert probability(session.propose(LIMITS).tree, 104) > 0.8


def notes(*values: list[int]) -> list[int]:
    """Return notes, in which something else follows each value, with the record of each but one."""
    texts = [
        [*(30 + number, *value), *TAIL, *NAME, *value, *END] for number, value in enumerate(values)
    ]
    texts[-1] = texts[-1][: -len(values[-1]) - len(END)]
    return [token_id for text in texts for token_id in text]


def test_a_value_that_is_copied_from_elsewhere_ends_where_its_field_ends() -> None:
    """What follows the value in the text that the record is made of does not follow it here."""
    value = [107, 108, 109]
    session = session_over(notes([101, 102, 103], [104, 105, 106], value))

    session.commit(0, value[:1])
    tree = session.propose(LIMITS).tree

    inside = probability_behind(tree, value[1:], TAIL[0])
    assert probability_behind(tree, value[1:], END[0]) > max(inside, 0.4)


def test_a_field_does_not_end_within_a_value_that_was_copied() -> None:
    """Its tokens stand in the text and in the record: as often as there were fields."""
    session = session_over([*notes([101, 102, 103], [104, 105, 106], [107, 108])])

    session.commit(0, [999, 998, 997])

    assert probability(session.propose(LIMITS).tree, END[0]) > 0.3


def test_a_copy_of_records_goes_on_behind_a_token_that_was_left_out_of_a_value() -> None:
    values = [[100 + 10 * number + place for place in range(5)] for number in range(4)]
    source = records(*values)
    session = session_over([7], source)
    before = source.index(values[3][0])

    session.commit(0, [*source[: before + 1], *values[3][2:3]])
    tree = session.propose(LIMITS).tree

    assert probability(tree, values[3][3]) > 8 * probability(tree, END[0])
