"""A conversation in a terminal, with a real model at the other end."""

from __future__ import annotations

import io

import pytest
from talking import sampled

from app.terminal.dialogue import (
    HELP,
    LARGEST_SEED,
    CommandError,
    Dialogue,
    Speaker,
    lines_of_a_script,
)
from trainer.conversation import Partner
from trainer.rollout.answers import SamplingSettings

QUESTION = "Add 2 and 3."


@pytest.fixture(scope="module")
def partner(tiny):
    with Partner(tiny, threads=1, use_gpu=False) as partner:
        yield partner


@pytest.fixture
def dialogue(partner):
    """Made when asked for, because it writes to the streams that there are then."""

    def make(*labels, interactive=False, tokens=24):
        speakers = [Speaker(label, partner.conversation()) for label in labels or ("base",)]
        return Dialogue(speakers, SamplingSettings(1.0, 1.0, tokens), 5, interactive)

    return make


def test_a_script_reads_the_answers_and_nothing_else(dialogue, tiny, capsys):
    dialogue().run(iter(["", QUESTION, "/reset", "/seed 5", QUESTION, "/exit", QUESTION]))
    out, err = capsys.readouterr()
    assert out == 2 * f"{sampled(tiny, QUESTION, 5)}\n"
    assert "The conversation begins anew." in err


def test_every_speaker_answers_with_the_same_seed_and_the_next_one_is_one_more(
    dialogue, tiny, capsys
):
    talk = dialogue("base", "adapter")
    talk.run(iter([QUESTION]))
    answer = sampled(tiny, QUESTION, 5)
    out, err = capsys.readouterr()
    assert out == 2 * f"{answer}\n"
    assert err.index("base") < err.index("adapter"), "whose answer it is is told beside them"
    assert talk.seed == 6
    talk.seed = LARGEST_SEED
    talk.run(iter([QUESTION]))
    assert talk.seed == 0


def test_a_system_message_begins_anew(dialogue, capsys):
    talk = dialogue()
    talk.run(iter([QUESTION, "/system Be brief."]))
    conversation = talk.speakers[0].conversation
    assert (conversation.system, conversation.messages) == ("Be brief.", [])
    talk.run(iter(["/system"]))
    assert conversation.system == ""
    assert "begins anew without a system message" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/dance", "there is no such command"),
        ("/exit now", "there is no such command"),
        ("/seed", "a seed is a whole number"),
        ("/seed -1", "a seed is a whole number"),
        (f"/seed {LARGEST_SEED + 1}", "a seed is a whole number"),
        (f"/seed {'0' * 31}{'9' * 40}", "a seed is a whole number"),
        (f"/seed {'9' * 5000}", "a seed is a whole number"),
    ],
)
def test_a_wrong_command_ends_a_script_and_is_told_to_a_person(dialogue, capsys, line, said):
    with pytest.raises(CommandError, match=said):
        dialogue().run(iter([line]))
    dialogue(interactive=True).run(iter([line, "/help", "/exit"]))
    out = capsys.readouterr().out
    assert said in out
    assert HELP.splitlines()[0] in out


def test_what_cannot_be_seen_of_an_answer_is_told_beside_it(dialogue, capsys):
    dialogue(tokens=1).run(iter([QUESTION]))
    assert "(cut off after 1 tokens; --max-new-tokens allows more" in capsys.readouterr().err


def test_a_script_is_read_as_utf_8_whatever_it_holds(monkeypatch):
    given = io.TextIOWrapper(io.BytesIO("eins\r\nzwölf\n".encode() + b"\xff\n"), "ascii")
    monkeypatch.setattr("sys.stdin", given)
    assert list(lines_of_a_script()) == ["eins", "zwölf", "\ufffd"]
