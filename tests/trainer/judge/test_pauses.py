from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from trainer.judge.pauses import Pauses, retry_after

NOON = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("0", 0.0),
        (" 17 ", 17.0),
        ("Sun, 01 Mar 2026 12:00:30 GMT", 30.0),
        ("Sun, 01 Mar 2026 11:59:00 GMT", 0.0),
        ("Sunday, 01-Mar-26 12:00:05 GMT", 5.0),
        ("Sun Mar  1 12:00:09 2026", 9.0),
        ("soon", None),
        ("-3", None),
        ("", None),
        ("1.5", None),
    ],
)
def test_both_forms_of_the_header_are_read(header, seconds):
    assert retry_after(header, NOON) == seconds


def test_a_number_of_any_length_is_read():
    assert retry_after("9" * 5000, NOON) == float("9" * 15)


def test_a_servers_wish_is_bounded():
    pauses = Pauses(longest_wish=60)
    assert pauses.wish("3600") == 60
    assert pauses.wish("5") == 5
    assert pauses.wish(None) is None
    tomorrow = format_datetime(datetime.now(UTC) + timedelta(days=1), usegmt=True)
    assert pauses.wish(tomorrow) == 60


def test_pauses_double_up_to_the_longest_and_half_of_each_is_drawn():
    pauses = Pauses(first=1.0, longest=10.0)
    for repetition, full in [(1, 1.0), (2, 2.0), (3, 4.0), (4, 8.0), (5, 10.0), (2000, 10.0)]:
        drawn = {pauses.before(repetition) for _ in range(200)}
        assert full / 2 <= min(drawn) < max(drawn) <= full
        assert max(drawn) - min(drawn) > full / 4
