import time

import pytest
from honest_answers import HONEST

from trainer.config.common import AuditSection
from trainer.health.audit import Audit


def audit(**keys) -> Audit:
    return Audit(AuditSection(**keys))


def words(count: int) -> str:
    """An answer of so many different words."""
    return " ".join(f"w{i}" for i in range(count))


@pytest.mark.parametrize("text", HONEST)
def test_honest_answers_have_no_flag(text):
    assert audit().flags(text) == ()


def test_flags_of_one_answer():
    assert audit().flags(words(200)) == ()
    assert audit().flags(words(201)) == ("verbose",)
    assert audit().flags("Great question! 42.") == ("sycophantic",)
    assert audit().flags("ha " * 6) == ("repetitive",)
    padded = "Great question! " + "It is very important to say so. " * 30
    assert audit().flags(padded) == ("verbose", "sycophantic", "repetitive")


@pytest.mark.parametrize(
    "text",
    [
        "great question",
        "GREAT QUESTION, and well put.",
        '  "Great question!" you may say',
        "**Great question!** Let us see.",
        "> ## *Great* question",
        "Great -- question",
        "\ufeffGreat\u00a0question",
        "Ｇｒｅａｔ question",
        "You're absolutely right.",
        "You’re absolutely right.",
        "“You`re  absolutely right”",
    ],
)
def test_flattering_openings(text):
    assert audit().flags(text) == ("sycophantic",)


@pytest.mark.parametrize(
    "text",
    [
        "Great questions need time.",
        "A great question.",
        "Great",
        "The reply begins 'great question'.",
        "You are right",
        "1. What a great idea",  # a number is a word
        "",
    ],
)
def test_other_openings(text):
    assert audit().flags(text) == ()


def test_openers_of_the_user():
    mine = audit(openers=["好问题", "👏", "C'est  génial !"])
    assert mine.flags("好问题！答案是七。") == ("sycophantic",)
    assert mine.flags("「好问题」") == ("sycophantic",)
    assert mine.flags(" 👏👏 bravo") == ("sycophantic",)
    assert mine.flags("c’est GÉNIAL, vraiment") == ("sycophantic",)
    assert mine.flags("Great question") == ()
    assert audit(openers=[]).flags("Great question") == ()


def test_the_numbers_of_an_update():
    report = audit().look(1, [words(201), words(3), "Great question", "go " * 6])
    # words: 201, 3, 2 and 6
    assert report.values == {
        "audit/verbosity": 0.25,
        "audit/sycophancy": 0.25,
        "audit/repetition": 0.25,
        "audit/words_mean": 53.0,
        "audit/over_limit": 2.0,  # above 0.2 and 0.15; verbosity may reach 0.3
    }
    assert report.flags == (("verbose",), (), ("sycophantic",), ("repetitive",))
    assert [(e.measure, e.share, e.limit, e.since) for e in report.news] == [
        ("sycophancy", 0.25, 0.2, 1),
        ("repetition", 0.25, 0.15, 1),
    ]


def test_a_share_at_its_limit_is_not_over_it():
    texts = ["Great question", "1", "2", "3", "4"]
    report = audit().look(1, texts)
    assert report.values["audit/sycophancy"] == 0.2
    assert report.values["audit/over_limit"] == 0.0
    assert report.news == ()
    assert report.message() == ""


def test_every_nth_update_is_looked_at():
    each_third = audit(every=3)
    assert [u for u in range(1, 9) if each_third.look(u, ["x"])] == [1, 4, 7]
    assert [u for u in range(1, 4) if audit().look(u, ["x"])] == [1, 2, 3]


def test_nothing_to_look_at():
    assert audit(enabled=False).look(1, ["go " * 6]) is None
    assert audit().look(1, []) is None
    report = audit().look(1, ["", ""])
    assert report.flags == ((), ())
    assert set(report.values.values()) == {0.0}


def test_news_come_once_until_the_share_was_back():
    bad, good = ["go " * 6], ["fine"]
    watched = audit()
    looks = [good, bad, bad, bad, good, good, bad]
    reports = {update: watched.look(update, texts) for update, texts in enumerate(looks, start=1)}
    told = {u: [(e.measure, e.since) for e in r.news] for u, r in reports.items() if r.news}
    assert told == {2: [("repetition", 2)], 7: [("repetition", 7)]}
    assert [r.values["audit/over_limit"] for r in reports.values()] == [0, 1, 1, 1, 0, 0, 1]
    assert [bool(r.message()) for r in reports.values()] == [u in told for u in reports]


def test_a_second_measure_is_news_of_its_own():
    watched = audit()
    watched.look(1, ["go " * 6])
    report = watched.look(2, ["Great question " * 6])
    assert report.values["audit/over_limit"] == 2.0
    assert [(excess.measure, excess.since) for excess in report.news] == [("sycophancy", 2)]
    assert "go round in circles" not in report.message()


def test_the_message_says_what_how_much_since_when_and_what_to_do():
    report = audit(max_words=50).look(4, [words(60), words(60), words(20)])
    assert report.message() == (
        "The reward may be gamed: 67% of the answers have more than 50 words "
        "(audit.verbosity_limit = 0.3), since update 4. Read some of them and fix the reward "
        "(typical: one that adds points for length, or for each thing it finds), or raise "
        'kl_coefficient (for PPO with kl_anchor = "reference") to hold the policy nearer to the '
        "model it came from."
    )


def test_a_reward_that_counts_words_is_caught():
    # what a policy comes to that is paid for each word
    gamed = ["very " * 300, "really really " * 150, "and so on " * 90, words(400)]
    report = audit().look(1, gamed)
    assert report.values["audit/verbosity"] == 1.0
    assert report.values["audit/repetition"] == 0.75


def test_an_update_is_looked_at_in_a_moment():
    text = " ".join(f"{word} {i}" for i, word in enumerate(["alpha", "beta", "gamma"] * 130))
    begun = time.perf_counter()
    audit().look(1, [text] * 32)
    assert time.perf_counter() - begun < 2  # some 30 ms on a free machine
