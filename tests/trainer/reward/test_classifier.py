"""Two small models, trained to like answers that say red, as reward models."""

import json
import subprocess
import sys

import pytest
import reward_models
import torch
from reward_models import requests
from safetensors.torch import load_file, save_file

from trainer.chat.messages import Message, PromptLine
from trainer.errors import ConfigError, RewardError
from trainer.reward.classifier import open_reward_model
from trainer.reward.exchange import RewardRequest

CPU = torch.device("cpu")
QUESTION = "Paint it blue, please."
ANSWERS = ["It is red.", "It is blue.", "red", "The wall is green now.", "The wall is red now."]


@pytest.fixture(params=["chat_scorer", "pair_scorer"])
def scorer(request):
    return request.getfixturevalue(request.param)


def scores(path, asked, weight=1.0, **options):
    with open_reward_model(path, weight, device=CPU, **options) as model:
        return [reply.reward for reply in model.score(asked)]


def test_good_answers_score_above_bad_ones(scorer):
    red, blue, bare_red, green, red_wall = scores(scorer, requests(QUESTION, *ANSWERS))
    assert min(red, bare_red, red_wall) > max(blue, green) + 2


def test_the_reward_is_the_weighted_score_and_the_score_is_a_part(scorer):
    asked = requests(QUESTION, *ANSWERS)
    with open_reward_model(scorer, 0.5, device=CPU) as model:
        replies = model.score(asked)
        assert model.stderr_tail() == ""
    plain = scores(scorer, asked)
    assert [reply.reward for reply in replies] == [0.5 * score for score in plain]
    assert [reply.parts for reply in replies] == [{"reward_model": score} for score in plain]
    assert all(reply.judge_weight is None for reply in replies)


def test_one_label_gives_the_logit_of_the_rendered_conversation(chat_scorer):
    """Against transformers' own way: its rendering, its tokens, one row."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    messages = (
        Message("system", "Be brief."),
        Message("user", "Is it blue?"),
        Message("assistant", "It is."),
        Message("user", QUESTION),
    )
    asked = RewardRequest(PromptLine(3, messages, {}, None, "k"), "It is red.")
    tokenizer = AutoTokenizer.from_pretrained(chat_scorer)
    ids = tokenizer.apply_chat_template(
        [{"role": m.role, "content": m.content} for m in messages]
        + [{"role": "assistant", "content": "It is red."}],
        return_tensors="pt",
        return_dict=True,
    )["input_ids"]
    model = AutoModelForSequenceClassification.from_pretrained(chat_scorer, dtype=torch.float32)
    with torch.no_grad():
        (logits,) = model(input_ids=ids).logits
    assert logits.shape == (1,)
    assert scores(chat_scorer, [asked]) == [pytest.approx(logits.item(), abs=1e-6)]


def test_two_labels_give_the_log_odds_of_the_second(pair_scorer):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    encoded = AutoTokenizer.from_pretrained(pair_scorer)(QUESTION, "red", return_tensors="pt")
    model = AutoModelForSequenceClassification.from_pretrained(pair_scorer, dtype=torch.float32)
    with torch.no_grad():
        bad, good = model(**encoded).logits.double().softmax(-1)[0].tolist()
    expected = float(torch.tensor(good / bad, dtype=torch.float64).log())
    assert scores(pair_scorer, requests(QUESTION, "red")) == [pytest.approx(expected, abs=1e-5)]


def test_two_labels_are_told(pair_scorer):
    notes = []
    scores(pair_scorer, [], on_note=notes.append)
    assert notes == ['The reward model\'s score is the log-odds of "LABEL_1" against "LABEL_0".']


def test_neither_batch_nor_padding_changes_a_score(scorer):
    """Forty answers of one to nine words; the decoder's tokenizer and config have no padding."""
    words = ["red", "blue", "It", "is", "wall", "now", "green", "The", "please"]
    answers = [" ".join(words[place % 9 : place % 9 + 1 + place % 7]) for place in range(40)]
    asked = requests(QUESTION, *answers)
    together = scores(scorer, asked)
    alone = [scores(scorer, [one])[0] for one in asked[:12]]
    with open_reward_model(scorer, 1.0, device=CPU) as model:
        alone += [model.score([one])[0].reward for one in asked[12:]]
    assert together == pytest.approx(alone, abs=1e-5)
    assert max(together) - min(together) > 1


def test_a_configured_padding_is_the_one_that_is_used(chat_scorer, copied):
    """With the end of a turn as padding, transformers reads the score before the last such id."""
    folder = copied(chat_scorer, config={"pad_token_id": 1})
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    assert AutoTokenizer.from_pretrained(folder).convert_tokens_to_ids("<|end|>") == 1
    asked = requests(QUESTION, "red", "It is red, I think.")
    text = f"<|start|><|turn|>user\n{QUESTION}<|end|><|turn|>assistant\nred<|end|>"
    ids = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")["input_ids"]
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        expected = model(input_ids=ids).logits.item()
    assert scores(folder, asked)[0] == pytest.approx(expected, abs=1e-5)
    assert scores(folder, asked[:1])[0] != pytest.approx(scores(chat_scorer, asked[:1])[0])


def test_progress_counts_to_the_end_in_passes_of_bounded_size(chat_scorer):
    seen = []
    with open_reward_model(chat_scorer, 1.0, device=CPU) as model:
        model.score(requests(QUESTION, *["It is red."] * 300), lambda *pair: seen.append(pair))
    assert len(seen) > 2
    assert [total for _, total in seen] == [300] * len(seen)
    counts = [done for done, _ in seen]
    assert counts == sorted(set(counts))
    assert counts[-1] == 300


def test_no_answers_are_no_work(chat_scorer):
    assert scores(chat_scorer, []) == []


def test_a_conversation_beyond_the_window_is_cut_and_told_once(scorer):
    notes = []
    asked = requests("It is green. " * 30 + QUESTION, "red", "blue", line=8)
    red, blue = scores(scorer, asked, on_note=notes.append)
    assert red > blue + 2
    (told,) = [note for note in notes if "cut" in note]
    assert "line 8 of the prompts" in told
    assert ("64 tokens" if "chat" in str(scorer) else "32 tokens") in told


def test_positions_that_are_counted_from_the_padding_are_not_overrun(tmp_path):
    """RoBERTa has 34 positions here, of which padding 1 leaves numbers 2 to 33: 32 tokens."""
    from transformers import RobertaConfig, RobertaForSequenceClassification

    tokenizer = reward_models.pair_tokenizer()
    config = RobertaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=34,
        pad_token_id=1,
        num_labels=1,
    )
    reward_models.save(tmp_path, RobertaForSequenceClassification(config), tokenizer)
    notes = []
    scores(tmp_path, requests("now " * 60, "red"), on_note=notes.append)
    assert "reads 32 tokens at most" in notes[0]


def test_an_answer_beyond_the_window_is_refused(scorer):
    with pytest.raises(RewardError) as caught:
        scores(scorer, requests(QUESTION, "red", "now " * 80, line=5))
    message = str(caught.value)
    assert str(scorer) in message
    assert "cannot read an answer: the answer has" in message
    assert 'line 5 of the prompts): "Paint it blue, please."' in message
    assert "max_new_tokens" in message


def test_a_score_that_is_no_number_names_prompt_and_answer(chat_scorer, copied):
    folder = copied(chat_scorer)
    weights = load_file(folder / "model.safetensors")
    weights["score.weight"][0, 0] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(RewardError) as caught:
        scores(folder, requests(QUESTION, "It is red.", line=12))
    message = str(caught.value)
    assert f'The reward model (reward_model.path = "{folder}") gave the score nan' in message
    assert "line 12 of the prompts" in message
    assert 'Answer: "It is red."' in message


def test_a_template_that_refuses_a_conversation_names_the_line(tmp_path):
    tokenizer = reward_models.chat_tokenizer(
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
        + reward_models.TEMPLATE
    )
    from transformers import LlamaForSequenceClassification

    model = LlamaForSequenceClassification(reward_models.llama_config(tokenizer, num_labels=1))
    reward_models.save(tmp_path, model, tokenizer)
    messages = (Message("system", "Be brief."), Message("user", "Hi"))
    asked = [RewardRequest(PromptLine(9, messages, {}, None, "k"), "red")]
    with pytest.raises(RewardError) as caught:
        scores(tmp_path, asked)
    assert "no system role" in str(caught.value)
    assert "line 9 of the prompts" in str(caught.value)


def test_a_closed_model_scores_nothing(chat_scorer):
    model = open_reward_model(chat_scorer, 1.0, device=CPU)
    model.close()
    model.close()
    with pytest.raises(RewardError, match="was closed"):
        model.score(requests(QUESTION, "red"))


def test_errors_name_key_and_folder(tmp_path):
    with pytest.raises(ConfigError) as caught:
        open_reward_model(tmp_path / "nowhere", 1.0, device=CPU)
    assert str(caught.value) == (
        f'The reward model (reward_model.path = "{tmp_path}/nowhere"): there is no such folder: '
        "name that of a model on this disk."
    )


def test_left_over_tensors_are_told(chat_scorer, copied):
    folder = copied(chat_scorer)
    weights = load_file(folder / "model.safetensors")
    weights["value_head.weight"] = torch.zeros(3)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    notes = []
    scores(folder, [], on_note=notes.append)
    assert notes == [
        "The reward model has no place for 1 tensors of its file, such as value_head.weight."
    ]


def test_importing_the_module_imports_no_transformers():
    code = (
        "import sys, trainer.reward.combined; "
        "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


OFFLINE = """
import json, socket, sys
from pathlib import Path

def refuse(*arguments, **options):
    raise AssertionError(f"the network was asked for: {arguments}")

socket.socket.connect = socket.getaddrinfo = socket.create_connection = refuse

import torch
from trainer.chat.messages import Message, PromptLine
from trainer.reward.classifier import open_reward_model
from trainer.reward.exchange import RewardRequest

prompt = PromptLine(1, (Message("user", "Paint it blue, please."),), {}, None, "k")
with open_reward_model(Path(sys.argv[1]), 1.0, device=torch.device("cpu")) as model:
    replies = model.score([RewardRequest(prompt, text) for text in ("red", "blue")])
Path(sys.argv[2]).write_text(json.dumps([reply.reward for reply in replies]))
"""


def test_loading_and_scoring_are_silent_and_ask_no_network(scorer, tmp_path, monkeypatch):
    """In a fresh process, where nothing was set up and any connection fails."""
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_PROGRESS_BARS"):
        monkeypatch.delenv(name, raising=False)
    result = tmp_path / "scores.json"
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", OFFLINE, scorer, result],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    red, blue = json.loads(result.read_text())
    assert red > blue + 2
