"""Folders that cannot give a reward, each refused with what is wrong and what to do."""

import json
import sys

import pytest
import reward_models
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM, LlamaForSequenceClassification
from transformers.utils import logging

from trainer.errors import ConfigError
from trainer.reward.model_folder import load_folder


def refusal(folder):
    with pytest.raises(ConfigError) as caught:
        load_folder(folder)
    return str(caught.value)


@pytest.fixture
def saved(tmp_path):
    """Saves a model of the small decoder's kind, untrained."""

    def save(kind=LlamaForSequenceClassification, **options):
        tokenizer = reward_models.chat_tokenizer()
        torch.manual_seed(0)
        config = reward_models.llama_config(tokenizer, **{"num_labels": 1} | options)
        return reward_models.save(tmp_path / "model", kind(config), tokenizer)

    return save


def test_a_trained_model_is_loaded_whole(chat_scorer):
    loaded = load_folder(chat_scorer)
    weights = load_file(chat_scorer / "model.safetensors")
    state = loaded.model.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in weights.items())
    assert (loaded.labels, loaded.unused) == (("LABEL_0",), ())
    assert loaded.model.training is False


def test_half_precision_weights_are_computed_in_f32(chat_scorer, copied):
    folder = copied(chat_scorer, config={"dtype": "float16"})
    weights = load_file(folder / "model.safetensors")
    halves = {name: tensor.half() for name, tensor in weights.items()}
    save_file(halves, folder / "model.safetensors", metadata={"format": "pt"})
    model = load_folder(folder).model
    assert {tensor.dtype for tensor in model.state_dict().values()} == {torch.float32}
    assert torch.equal(model.score.weight, weights["score.weight"].half().float())


def test_a_missing_folder(tmp_path):
    assert "there is no such folder" in refusal(tmp_path / "none")


def test_a_file_in_place_of_the_folder(chat_scorer):
    assert "it is not a folder" in refusal(chat_scorer / "model.safetensors")


def test_a_folder_without_config(chat_scorer, copied):
    folder = copied(chat_scorer)
    (folder / "config.json").unlink()
    assert "no config.json" in refusal(folder)


@pytest.mark.parametrize("text", ["{", "[]", "\ufeff", '{"model_type": "no-such-kind"}'])
def test_a_config_that_is_none(chat_scorer, copied, text):
    folder = copied(chat_scorer)
    (folder / "config.json").write_text(text)
    assert refusal(folder).startswith("config.json ")


def test_a_language_model_has_no_head(saved):
    assert "it is a LlamaForCausalLM" in refusal(saved(LlamaForCausalLM))


def test_a_head_that_the_file_lacks_is_not_made_up(chat_scorer, copied):
    folder = copied(chat_scorer)
    weights = load_file(folder / "model.safetensors")
    del weights["score.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    message = refusal(folder)
    assert "lacks 1 of the model's tensors (score.weight)" in message
    assert "random numbers" in message


def test_a_head_of_another_size(chat_scorer, copied):
    folder = copied(chat_scorer)
    weights = load_file(folder / "model.safetensors")
    weights["score.weight"] = torch.zeros(2, 32)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert "its weights cannot be loaded: " in refusal(folder)


def test_damaged_weights(chat_scorer, copied):
    folder = copied(chat_scorer)
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])
    assert "its weights cannot be loaded: " in refusal(folder)


def test_three_labels(saved):
    message = refusal(saved(num_labels=3))
    assert "it has 3 labels (LABEL_0, LABEL_1, LABEL_2)" in message
    assert "one label or two" in message


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        ("regression", "its two numbers have no order"),
        ("multi_label_classification", "do not exclude each other"),
    ],
)
def test_two_labels_that_are_no_alternative(saved, problem, reason):
    message = refusal(saved(num_labels=2, problem_type=problem))
    assert f'problem_type = "{problem}"' in message
    assert reason in message


def test_one_label_of_a_choice_that_was_none(chat_scorer, copied):
    folder = copied(chat_scorer, config={"problem_type": "single_label_classification"})
    assert "single_label_classification" in refusal(folder)


@pytest.mark.parametrize(
    ("labels", "problem"),
    [
        (1, "regression"),
        (1, "multi_label_classification"),
        (2, "single_label_classification"),
    ],
)
def test_a_problem_that_gives_one(saved, labels, problem):
    assert len(load_folder(saved(num_labels=labels, problem_type=problem)).labels) == labels


@pytest.mark.parametrize("names", [("Good", "other"), ("safe", "TOXIC")])
def test_labels_in_the_wrong_order(saved, names):
    message = refusal(saved(num_labels=2, id2label=dict(enumerate(names))))
    assert f'its labels are "{names[0]}" (0) and "{names[1]}" (1)' in message
    assert "swap the two rows" in message


def test_pickled_weights(chat_scorer, copied):
    folder = copied(chat_scorer)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    message = refusal(folder)
    assert "pytorch_model.bin" in message
    assert "safetensors" in message


def test_no_weights(chat_scorer, copied):
    folder = copied(chat_scorer)
    (folder / "model.safetensors").unlink()
    assert "holds no weights" in refusal(folder)


def test_code_in_the_folder_is_never_run(chat_scorer, copied, tmp_path):
    folder = copied(
        chat_scorer, config={"auto_map": {"AutoModelForSequenceClassification": "code.Model"}}
    )
    trace = tmp_path / "trace"
    (folder / "code.py").write_text(f"open({str(trace)!r}, 'w')\n")
    assert "auto_map" in refusal(folder)
    assert not trace.exists()


def test_code_of_a_tokenizer_is_never_run(chat_scorer, copied, tmp_path):
    folder = copied(chat_scorer)
    trace = tmp_path / "trace"
    (folder / "code.py").write_text(f"open({str(trace)!r}, 'w')\nclass Words: pass\n")
    file = folder / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    settings |= {"tokenizer_class": "Words", "auto_map": {"AutoTokenizer": ["code.Words", None]}}
    file.write_text(json.dumps(settings))
    assert "its tokenizer cannot be loaded: " in refusal(folder)
    assert not trace.exists()


def test_attention_code_is_never_fetched(chat_scorer, copied):
    folder = copied(chat_scorer, config={"attn_implementation": "someone/kernel"})
    assert "attn_implementation" in refusal(folder)


def test_quantised_weights(chat_scorer, copied):
    folder = copied(chat_scorer, config={"quantization_config": {"quant_method": "gptq"}})
    assert "quantised" in refusal(folder)


def test_an_adapter(chat_scorer, copied):
    folder = copied(chat_scorer)
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "someone/model"}')
    assert "merge it into its base model" in refusal(folder)


def test_no_tokenizer(chat_scorer, copied):
    folder = copied(chat_scorer)
    for file in folder.glob("tokenizer*"):
        file.unlink()
    assert "tokenizer" in refusal(folder)


def test_a_tokenizer_of_another_model(chat_scorer, pair_scorer, copied):
    folder = copied(pair_scorer)
    for file in chat_scorer.glob("tokenizer*"):
        (folder / file.name).write_bytes(file.read_bytes())
    assert "the two do not belong together" in refusal(folder)


def test_without_the_package_the_extra_is_named(chat_scorer, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    message = refusal(chat_scorer)
    assert "the package transformers" in message
    assert "pip install transformers" in message


def test_what_was_set_for_the_output_of_transformers_stays(chat_scorer):
    before = logging.get_verbosity()
    logging.set_verbosity_info()
    try:
        load_folder(chat_scorer)
        assert logging.get_verbosity() == logging.INFO
        assert logging.is_progress_bar_enabled()
    finally:
        logging.set_verbosity(before)
