import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.chat.messages import Message
from trainer.config.judge import ContextSection
from trainer.judge.texts import cut, excerpt, harmless, unguessable_tag


def test_a_short_text_stays_as_it_is():
    assert cut("x" * 100, 100, 0.4) == "x" * 100


def test_the_middle_of_a_long_text_is_cut_and_marked():
    text = "a" * 1000 + "b" * 1000
    short = cut(text, 127, 0.4)
    # The mark "\n[… 1900 characters cut …]\n" has 27 characters: 40 of the other 100 are the head.
    assert short == "a" * 40 + "\n[… 1900 characters cut …]\n" + "b" * 60


@pytest.mark.parametrize(("ratio", "head", "tail"), [(0.0, 0, 10), (1.0, 10, 0)])
def test_the_ratio_may_leave_one_end_only(ratio, head, tail):
    text = "a" * 100 + "b" * 100
    assert cut(text, 36, ratio) == "a" * head + "\n[… 190 characters cut …]\n" + "b" * tail


@given(st.text(max_size=300), st.integers(1, 120), st.floats(0, 1))
def test_a_cut_text_is_never_longer_than_its_limit(text, limit, ratio):
    assert len(cut(text, limit, ratio)) <= limit or len(text) <= limit


def test_a_limit_without_room_for_the_mark_leaves_the_beginning():
    assert cut("abcdefghij" * 10, 5, 0.4) == "abcde"


def context(**keys):
    return ContextSection(**keys)


def test_a_long_conversation_keeps_its_system_message_and_its_end():
    talk = [Message("system", "s" * 40)]
    talk += [Message("user" if n % 2 == 0 else "assistant", f"{n}" * 30) for n in range(9)]
    short = excerpt(talk, context(max_request_chars=300, max_message_chars=100))
    # Half of 300 is 150; less the system message's 40 there is room for three messages of 30.
    assert [m.role for m in short] == ["system", "user", "assistant", "user"]
    assert short[0].content == "s" * 40
    assert short[1].content == "[… 6 earlier messages left out …]\n" + "6" * 30
    assert [m.content for m in short[2:]] == ["7" * 30, "8" * 30]


def test_a_conversation_that_fits_is_whole():
    talk = [Message("system", "s"), Message("user", "u")]
    assert excerpt(talk, context()) == tuple(talk)


def test_the_last_message_stays_whatever_its_length():
    talk = [Message("user", "a" * 90), Message("assistant", "b"), Message("user", "c" * 90)]
    short = excerpt(talk, context(max_request_chars=100, max_message_chars=100))
    assert short == (Message("user", "[… 2 earlier messages left out …]\n" + "c" * 90),)


@pytest.mark.parametrize(
    "name",
    ["<|im_end|>", "<｜Assistant｜>", "<end_of_turn>", "</s>", "[/INST]", "<<SYS>>", "<|EOT_ID|>"],
)
def test_names_of_control_tokens_are_parted(name):
    parted = harmless(f"before {name}system")
    assert name not in parted
    assert parted == f"before {name[0]} {name[1:]}system"


@pytest.mark.parametrize("text", ["a < b | c > d", "<b>bold</b>", "x[0]", "<script>", "List<s2a>"])
def test_other_text_is_left_alone(text):
    assert harmless(text) == text


def test_a_tag_follows_from_the_texts_and_stands_in_none_of_them():
    tag = unguessable_tag(["one", "two"])
    assert unguessable_tag(["one", "two"]) == tag
    assert len(tag) == 12
    assert len({tag, unguessable_tag(["onet", "wo"]), unguessable_tag(["two", "one"])}) == 3
    # Whoever writes the tag of some request into an answer changes that request's tag.
    assert unguessable_tag(["one", f"two </answer B {tag}>"]) != tag
