from __future__ import annotations

import json

import pytest
from small_runs import SMALL, rewards, write_run, write_texts

from trainer.config import load_config
from trainer.errors import ConfigError, DataError, ModelError, TemplateError
from trainer.inputs import coverage, data_files, learnt_from, read_inputs, read_text_inputs


@pytest.fixture(scope="module")
def deep(random_llama):
    return random_llama(**SMALL | {"layers": 3})


@pytest.fixture
def read(tmp_path, deep):
    def _read(changes=None, *, model=deep, prompts=("hello",)):
        return read_inputs(write_run(tmp_path, model, rewards([0.0]), changes, prompts=prompts))

    return _read


def test_prompts_are_rendered_with_the_models_own_template(read):
    inputs = read(prompts=["hi", "in"])
    # <|user|>, the text, <|end|>, <|bot|>; "in" is the vocabulary's one merge
    assert [p.tokens for p in inputs.prompts] == [(258, 104, 105, 257, 259), (258, 256, 257, 259)]
    assert [p.line.line for p in inputs.prompts] == [1, 2]
    assert inputs.longest_prompt == 5


def test_the_models_shape_is_described(read):
    a = read().architecture
    assert (a.layers, a.width, a.ff_width, a.heads, a.kv_heads) == (3, 32, 48, 4, 2)
    assert (a.vocabulary, a.trained_context) == (260, 64)


@pytest.mark.parametrize(
    ("targets", "count", "words"),
    [
        ("auto", 21, "q, k, v, o, ffn_gate, ffn_up, ffn_down"),
        (["q", "v"], 6, "q, v"),
        (["blk.1.attn_q.weight", "o"], 4, "o, q (1 of 3)"),
        (["blk.[02].ffn_*.weight"], 6, "ffn_gate (2 of 3), ffn_up (2 of 3), ffn_down (2 of 3)"),
    ],
)
def test_targets_and_their_coverage(read, targets, count, words):
    inputs = read({"lora.targets": targets})
    assert len(inputs.lora.targets) == count
    assert sorted(coverage(inputs).split(", ")) == sorted(words.split(", "))


def test_a_target_that_matches_nothing_stops_although_another_matches(read):
    with pytest.raises(ConfigError, match=r"'attn_qkv_typo' matches no matrix"):
        read({"lora.targets": ["q", "attn_qkv_typo"]})


def test_a_context_beyond_the_models_own_is_refused(read):
    with pytest.raises(
        ConfigError, match=r"run\.toml:\d+: training\.ctx = 65 is longer than the 64"
    ):
        read({"training.ctx": 65})
    assert read({"training.ctx": 64}).longest_prompt == 8


def test_a_prompt_may_fill_the_context_to_the_last_token(read):
    """Three control tokens, the text, and six tokens of answer in a context of 48."""
    assert read(prompts=["x" * 39]).longest_prompt == 42
    with pytest.raises(
        DataError, match=r"prompts\.jsonl:2: the prompt has 43 tokens, .* ctx = 48\n.*ctx .* to 49"
    ):
        read(prompts=["short", "x" * 40])


def test_a_model_that_cannot_be_trained_is_refused(read, random_llama, tmp_path):
    with pytest.raises(ModelError, match="'mamba' is not supported"):
        read(model=random_llama(architecture="mamba"))
    with pytest.raises(ModelError, match="1 tensors are missing"):
        read(model=random_llama(drop=("blk.1.ffn_up.weight",)))
    with pytest.raises(ModelError, match=r"gone\.gguf: there is no such file"):
        read(model=tmp_path / "gone.gguf")


def test_a_missing_prompt_file_is_named(tmp_path, deep):
    config = write_run(tmp_path, deep, rewards([0.0]), {"grpo.prompts": "gone.jsonl"})
    with pytest.raises(DataError, match=r"run\.toml:\d+: .*gone\.jsonl: there is no such file"):
        read_inputs(config)


def hold_out(folder, *questions):
    lines = [json.dumps({"messages": [{"role": "user", "content": q}]}) for q in questions]
    (folder / "held.jsonl").write_text("\n".join(lines))


def test_held_out_prompts_are_read_like_those_trained_on(read, tmp_path):
    hold_out(tmp_path, "in", "longer than hello")
    inputs = read({"evaluation.data": "held.jsonl"})
    assert inputs.held_out[0].tokens == (258, 256, 257, 259)
    assert [p.line.question for p in inputs.prompts] == ["hello"]
    # three control tokens and the text
    assert inputs.longest_prompt == 3 + 17
    assert read().held_out == []


def test_a_fault_in_the_held_out_file_is_named_with_its_line(read, tmp_path):
    changes = {"evaluation.data": "held.jsonl"}
    with pytest.raises(DataError, match=r"run\.toml:\d+: .*held\.jsonl: there is no such file"):
        read(changes)
    hold_out(tmp_path, "in", "x" * 40)
    with pytest.raises(DataError, match=r"held\.jsonl:2: the prompt has 43 tokens"):
        read(changes)
    assert len(read(changes | {"evaluation.max_examples": 1}).held_out) == 1


LARGE = "ü" * 620_000
"""In a request as prompt and as message, six bytes each: 7,440,000, where 7 MiB may be."""


def test_a_prompt_that_no_reward_program_could_be_asked_about_is_refused(read):
    with pytest.raises(
        DataError, match=r"prompts\.jsonl:2: as a request to the reward program this line has 744"
    ):
        read(prompts=["short", LARGE])


def test_a_reward_model_alone_is_asked_about_any_prompt_that_fits_the_context(read, tmp_path):
    alone = {"grpo.reward_command": None, "grpo.reward_model.path": str(tmp_path)}
    with pytest.raises(DataError, match=r"prompts\.jsonl:2: the prompt has 1240003 tokens"):
        read(alone, prompts=["short", LARGE])


# -- the chat template ---------------------------------------------------------------------------

THINKING = (
    "{% for m in messages if m.role == 'system' %}{{ raise_exception('no system') }}{% endfor %}"
    "{% for m in messages %}{{ '<|bot|>' if m.role == 'assistant' else '<|user|>' }}{{ m.content }}"
    "<|end|>{% endfor %}{% if add_generation_prompt %}<|bot|>{{ 'in' if thinking }}{% endif %}"
)
DATED = "{{ date_string if date_string is defined else strftime_now('%j') }}" + THINKING


@pytest.fixture(scope="module")
def thinking(random_llama):
    return random_llama(**SMALL, template=THINKING)


def test_variables_of_the_configuration_reach_the_template(read, thinking):
    plain = read(model=thinking, prompts=["hi"])
    [prompt] = read({"model.template_variables": {}}, model=thinking, prompts=["hi"]).prompts
    assert prompt == plain.prompts[0]
    inputs = read({"model.template_variables.thinking": True}, model=thinking, prompts=["hi"])
    assert inputs.prompts[0].tokens == (*prompt.tokens, 256)  # "in", the vocabulary's one merge
    assert inputs.remarks == ()


def test_a_variable_that_is_never_read_is_named_with_its_line(read, thinking, tmp_path):
    with pytest.raises(TemplateError) as caught:
        read({"model.template_variables.thinks": True}, model=thinking)
    where = f"{tmp_path / 'run.toml'}:"
    message = str(caught.value)
    assert message.startswith(where)
    line = (tmp_path / "run.toml").read_text().splitlines()[int(message[len(where) :][:2]) - 1]
    assert line == "thinks = true"
    assert "model.template_variables.thinks: the chat template of" in message
    assert message.endswith(
        "never reads thinks; what it reads: thinking: correct the name, or remove it"
    )


def test_a_system_message_is_merged_where_the_configuration_says_so(read, thinking, tmp_path):
    talk = [{"role": "system", "content": "in"}, {"role": "user", "content": "hi"}]
    (tmp_path / "own.jsonl").write_text(json.dumps({"messages": talk}))
    own = {"grpo.prompts": "own.jsonl"}
    with pytest.raises(DataError, match=r"own\.jsonl:1 \(roles: system, user\): .* merge_system"):
        read(own, model=thinking)
    inputs = read(own | {"model.merge_system": True}, model=thinking)
    assert inputs.prompts[0].tokens == (258, 256, 10, 10, 104, 105, 257, 259)
    assert inputs.remarks == (
        "the chat template takes no system message: each one is put before the first user message, "
        "since model.merge_system = true",
    )


def test_a_template_that_writes_the_date_is_remarked_on_with_the_cure(read, random_llama):
    dated = random_llama(**SMALL, template=DATED)
    [remark] = read(model=dated).remarks
    assert remark.startswith("the chat template writes today's date into the conversations")
    assert remark.endswith("set date_string in [model.template_variables]")
    assert read({"model.template_variables.date_string": "x"}, model=dated).remarks == ()


def test_lines_of_texts_that_become_several_are_remarked_on(tmp_path, random_llama):
    shown = "(m.content if loop.last or m.role == 'user' else 'in')"
    forgetful = THINKING.replace("m.content", shown)
    model = random_llama(**SMALL, template=forgetful)
    talks = [["hi", "you", "hi", "me"], ["hi", "you"]]
    inputs = read_text_inputs(write_texts(tmp_path, model, talks=talks))
    assert [text.line for text in inputs.texts] == [1, 1, 2]
    [remark] = inputs.remarks
    assert remark.startswith("the chat template rewrites earlier answers of a conversation, so 1")
    assert remark.endswith("so 1 of 2 lines of texts.jsonl became a text for each answer, 3 in all")


@pytest.mark.parametrize(
    ("example", "key"), [("grpo", "grpo.prompts"), ("ppo", "ppo.prompts"), ("sft", "sft.data")]
)
def test_what_is_learnt_from_is_named_by_its_key(root, example, key):
    config = load_config(root / "examples" / f"smoke_tiny_{example}.toml")
    name, path = learnt_from(config)
    assert name == key
    assert path.is_file()
    assert data_files(config)[key] == path
