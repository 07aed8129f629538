import json

import pytest

from trainer.errors import DataError
from trainer.judge.labelled import read_labelled


@pytest.fixture
def read(tmp_path):
    def read_(*answers, **fields):
        line = {
            "messages": [{"role": "user", "content": "2 + 2?"}],
            "answers": [*answers],
            **fields,
        }
        (tmp_path / "answers.jsonl").write_text(json.dumps(line) + "\n")
        return read_labelled(tmp_path / "answers.jsonl")[0]

    return read_


def labelled(completion, label):
    return {"completion": completion, "label": label}


def test_answers_are_texts_or_objects_with_a_label(read):
    group = read("4", labelled("5", 0), {"completion": "6"}, rubric="Be right.")
    assert group.answers == ["4", "5", "6"]
    assert group.labels == [None, 0.0, None]
    assert group.prompt.rubric == "Be right."
    assert list(group.to_judge().weights) == [1.0, 1.0, 1.0]


def test_agreement_is_over_the_answers_that_have_a_label(read):
    group = read(labelled("a", 1), "b", labelled("c", 2), labelled("d", 9))
    assert group.agreement([0.1, 0.9, 0.2, 0.3]) == 1.0
    assert group.agreement([0.3, 0.0, 0.2, 0.1]) == -1.0
    # Of the pairs (a, c), (a, d) and (c, d) the last is in the wrong order.
    assert group.agreement([0.1, 0.0, 0.3, 0.2]) == pytest.approx(1 / 3)
    assert read("a", "b").agreement([0.1, 0.2]) is None


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        (["one"], '"answers" must be a list of two or more'),
        ([1, "two"], "answer 1 must be a text"),
        (["one", {"text": "two"}], 'answer 2 has the unknown key "text"'),
        (["one", {"label": 2}], 'answer 2: "completion" must be a text'),
        (["one", labelled("two", "good")], 'answer 2: "label" must be a number'),
        (["one", labelled("two", True)], 'answer 2: "label" must be a number'),
        (["one", labelled("two", None)], 'answer 2: "label" must be a number'),
    ],
)
def test_other_lines_are_refused_with_their_number(read, answers, reason):
    with pytest.raises(DataError) as caught:
        read(*answers)
    assert f"answers.jsonl:1: {reason}" in str(caught.value)


def test_a_prompt_file_without_answers_is_refused(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "2 + 2?"}]}\n')
    with pytest.raises(DataError, match=r'prompts.jsonl:1: "answers" must be a list'):
        read_labelled(path)
