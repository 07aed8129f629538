from __future__ import annotations

import json
import re
import shlex

import pytest
import reward_models
from left_over import nothing_left
from random_models import TEMPLATE
from small_runs import DEFAULTS, SERVE, SMALL, end_often, rewards, train, write_run, write_texts

import trainer.check
from trainer.check import check
from trainer.config import load_config
from trainer.errors import ConfigError

LIVE, DEAD = [0.0, 1.0, 0.0, 2.0], [1.0] * 4


@pytest.fixture(scope="module")
def model(random_llama):
    return random_llama(**SMALL)


nothing_is_started_for_good = pytest.fixture(autouse=True)(nothing_left)


@pytest.fixture(autouse=True)
def no_model_is_left(tmp_path):
    yield
    assert not list(tmp_path.glob("*.gguf"))


@pytest.fixture
def looked_at(tmp_path, model):
    """The findings of a check, as (level, detail) by title."""

    def look(changes=None, *, reward=None, model=model, sample=0, prompts=("hello",)):
        config = write_run(tmp_path, model, reward or rewards(LIVE), changes, prompts=prompts)
        findings = check(config, sample=sample).findings
        titles = [f.title for f in findings]
        assert len(titles) == len(set(titles)), "no title twice"
        return {f.title: (f.level, f.detail) for f in findings}

    return look


def test_a_configuration_in_order(looked_at, tmp_path):
    found = looked_at(prompts=["hello", "you"])
    assert {level for level, _ in found.values()} == {"ok"}
    assert list(found) == [
        "model",
        "prompts",
        "adapter",
        "reward program",
        "output",
        "memory",
        "sampler and trainer",
    ]
    assert found["model"][1].endswith("model.gguf: llama, 1 layers of 32, vocabulary 260")
    assert found["prompts"][1] == (
        "2 prompts of at most 8 tokens; with answers of 6 the longest takes 14 of ctx = 48"
    )
    assert found["adapter"][1] == (
        "rank 2 on q, k, v, o, ffn_gate, ffn_up, ffn_down: 928 parameters"
    )
    assert found["output"][1] == str(tmp_path / "adapter.gguf")


def test_memory_is_told_by_its_parts(looked_at):
    level, detail = looked_at()["memory"]
    assert level == "ok"
    # a prompt of 8 tokens and four answers of 6
    assert re.sub("[0-9,]+ MiB", "N", detail) == (
        "about N of N free: base in F32 N, weights for sampling N, sampler's cache N, one pass of "
        "32 tokens N, logits N, adapter N"
    )


def test_too_little_memory_is_a_warning_with_a_cure(looked_at, monkeypatch):
    monkeypatch.setattr(trainer.check, "available_bytes", lambda: 1000)
    level, detail = looked_at()["memory"]
    assert level == "warning"
    assert "of 0 MiB free" in detail
    assert "turn on gradient_checkpointing" in detail


def test_sampler_and_trainer_are_compared_under_an_adapter_that_changes_the_model(looked_at):
    level, detail = looked_at()["sampler and trainer"]
    assert level == "ok"
    change, gap = map(float, re.search("by (.*) nats a token, .* by (.*)", detail).groups())
    assert gap < 1e-4 < 0.1 < change


def test_notes_on_the_configuration_are_warnings(looked_at):
    level, detail = looked_at({"grpo.importance_sampling_level": "sequence"})["configuration"]
    assert level == "warning"
    assert "hardly ever clips" in detail


def test_what_the_chat_template_is_given_and_does_is_told(looked_at, random_llama):
    template = "{{ strftime_now('%j') }}{{ style }}" + TEMPLATE
    dated = random_llama(**SMALL, template=template)
    found = looked_at({"model.template_variables.style": ["x", 1]}, model=dated)
    assert found["template variables"] == ("ok", '{"style": ["x", 1]}')
    level, words = found["chat template"]
    assert level == "warning"
    assert "writes today's date into the conversations" in words
    assert "use a copy of the model whose template has a fixed date" in words


def test_an_adapter_that_would_be_replaced_is_a_warning(looked_at, tmp_path):
    path = tmp_path / "out" / "adapter.gguf"
    path.parent.mkdir()
    path.write_bytes(b"GGUF, an earlier one")
    level, detail = looked_at({"output.path": "out/adapter.gguf"})["output"]
    assert (level, detail) == ("warning", f"{path} exists, and the run would replace it")
    assert path.read_bytes() == b"GGUF, an earlier one"


def test_a_folder_as_output_is_an_error(looked_at, tmp_path):
    level, detail = looked_at({"output.path": "."})["output"]
    assert level == "error"
    assert f"{tmp_path}: this is a folder. Set [output] path" in detail


@pytest.mark.parametrize(
    "key", ["observe.directory", "metrics.tensorboard_dir", "checkpoint.directory"]
)
@pytest.mark.parametrize("place", ["a-file", "a-file/inside", "a-link-to-nowhere"])
def test_a_place_for_records_that_is_no_folder_is_an_error(looked_at, tmp_path, key, place):
    (tmp_path / "a-file").write_text("in the way")
    (tmp_path / "a-link-to-nowhere").symlink_to(tmp_path / "nowhere")
    level, detail = looked_at({key: place})["output"]
    section, name = key.split(".")
    assert level == "error"
    assert re.match(r".*run\.toml:\d+: ", detail)
    assert f"{tmp_path / place} cannot be written" in detail
    assert f"with [{section}].{name}, or leave that key out." in detail


def test_a_place_for_records_that_is_not_there_yet_is_not_made(looked_at, tmp_path):
    assert looked_at({"metrics.tensorboard_dir": "new/board"})["output"][0] == "ok"
    assert not (tmp_path / "new").exists()


# -- PPO -----------------------------------------------------------------------------------------

PPO = {
    "rollout_batch_size": 4,
    "ppo_epochs": 1,
    "clip_range": 0.2,
    "kl_coefficient": 0.0,
    **{
        key.removeprefix("grpo."): value
        for key, value in DEFAULTS.items()
        if key.startswith(("grpo.prompts", "grpo.reward", "grpo.updates", "grpo.sampling"))
        and key != "grpo.prompts_per_update"
    },
}


@pytest.fixture
def ppo_looked_at(tmp_path, model):
    """The same for a PPO run; changes are keys of its own section, None removes one."""

    def look(changes=None, *, reward=None, sample=0, prompts=("a", "b", "c")):
        lines = [json.dumps({"messages": [{"role": "user", "content": p}]}) for p in prompts]
        (tmp_path / "prompts.jsonl").write_text("\n".join(lines))
        (tmp_path / "reward.py").write_text((reward or rewards(LIVE)) + SERVE)
        common = {k: v for k, v in DEFAULTS.items() if not k.startswith("grpo.")}
        own = {f"ppo.{key}": value for key, value in {**PPO, **(changes or {})}.items()}
        keys = {**common, "run.algorithm": "ppo", "model.path": str(model), **own}
        text = [f"{k} = {json.dumps(v)}" for k, v in keys.items() if v is not None]
        (tmp_path / "ppo.toml").write_text("\n".join(text))
        findings = check(load_config(tmp_path / "ppo.toml"), sample=sample).findings
        return {f.title: (f.level, f.detail) for f in findings}

    return look


def test_a_ppo_configuration_in_order(ppo_looked_at):
    found = ppo_looked_at()
    assert {level for level, _ in found.values()} == {"ok"}
    assert "group" not in " ".join(detail for _, detail in found.values()), "PPO has none"
    assert "python3 reward.py gave 0 to the answer" in found["reward program"][1]


@pytest.mark.parametrize(
    ("critic", "mib"),
    [
        # 4 answers of 30 tokens, 32 numbers each, over 2^20: as kept, joined and standardised
        ({}, 4096 * 30 * 32 * (4 + 4 + 8) / 2**20),
        ({"feature_dtype": "bf16"}, 4096 * 30 * 32 * (2 + 2 + 8) / 2**20),
        # no standardised copies
        ({"kind": "shared"}, 4096 * 30 * 32 * (4 + 4 + 4) / 2**20),
        ({"enabled": False}, None),
    ],
)
def test_the_memory_of_the_critics_features(ppo_looked_at, critic, mib):
    changes = {"rollout_batch_size": 4096, "sampling.max_new_tokens": 30}
    keys = {f"critic.{key}": value for key, value in critic.items()}
    detail = ppo_looked_at(changes | keys)["memory"][1]
    told = re.search("critic's features ([0-9,]+) MiB", detail)
    assert (told and int(told[1].replace(",", ""))) == (mib and int(mib))


def test_ppo_samples_an_answer_to_each_prompt(ppo_looked_at):
    # the first batch is the made-up answer; the second has the rewards 0, 1, 0, 2, 0
    found = ppo_looked_at(reward=rewards([0.0], [0.0, 1.0, 0.0, 2.0, 0.0]), sample=5)
    level, detail = found["reward spread"]
    assert detail.startswith(
        "5 answers from the base: mean 0.600, from 0 to 2; 100% of the answers"
    )
    assert level == "warning", "answers are cut"
    best, middle, worst = found["sample answers"][1].splitlines()
    # prompts are taken in turn: the fourth answer is to the first prompt again
    assert best.startswith("best 2, to 'a': ")
    assert middle.startswith("middle 0, to ")
    assert worst.startswith("worst 0, to 'a': ")


def test_a_batch_of_equal_rewards_is_a_warning(ppo_looked_at):
    level, detail = ppo_looked_at(reward=rewards(DEAD), sample=4)["reward spread"]
    assert level == "warning"
    assert "PPO cannot learn from this" in detail


@pytest.fixture(scope="module")
def scorer(tmp_path_factory):
    return reward_models.train_chat_scorer(tmp_path_factory.mktemp("scorer"))


def test_a_reward_model_that_scores_alone_is_named(ppo_looked_at, scorer):
    alone = {"reward_command": None, "reward_model.path": str(scorer)}
    found = ppo_looked_at(alone, sample=2)
    level, detail = found["reward model"]
    assert level == "ok"
    assert re.fullmatch(rf"{scorer} gave -?\d.* to the answer 'A made-up answer.' in .* s", detail)
    assert "reward program" not in found
    assert found["reward spread"][1].startswith("2 answers from the base")


def test_a_reward_model_beside_a_program_is_named_with_both_scores(ppo_looked_at, scorer):
    both = {"reward_model.path": str(scorer), "reward_model.weight": 0.5}
    level, detail = ppo_looked_at(both, reward=rewards([0.25]))["reward program and model"]
    assert level == "ok"
    name = f"{shlex.join(PPO['reward_command'])} and {scorer} together gave "
    total, of_model = re.fullmatch(
        re.escape(name) + r"(\S+) \(the program 0.25, the model (\S+)\) to the answer .*", detail
    ).groups()
    assert float(total) == pytest.approx(0.25 + 0.5 * float(of_model), abs=1e-4)


def test_a_reward_model_that_is_not_there_is_an_error(ppo_looked_at, tmp_path):
    gone = {"reward_command": None, "reward_model.path": str(tmp_path / "gone")}
    level, detail = ppo_looked_at(gone)["reward model"]
    assert level == "error"
    assert f'reward_model.path = "{tmp_path / "gone"}"' in detail


# -- what stops a run ----------------------------------------------------------------------------


def test_a_missing_model(looked_at, tmp_path):
    found = looked_at(model=tmp_path / "gone.bin")
    level, detail = found["model and prompts"]
    assert level == "error"
    assert "gone.bin: there is no such file" in detail
    # the rest is looked at all the same
    assert found["output"][0] == "ok"
    assert "sampler and trainer" not in found


def test_a_prompt_that_cannot_fit(looked_at):
    level, detail = looked_at(prompts=["short", "x" * 60])["model and prompts"]
    assert level == "error"
    assert "prompts.jsonl:2: the prompt has 63 tokens" in detail


def test_a_bad_prompt_line(looked_at, tmp_path):
    (tmp_path / "bad.jsonl").write_text('{"messages": []}\n')
    level, detail = looked_at({"grpo.prompts": "bad.jsonl"})["model and prompts"]
    assert level == "error"
    assert 'bad.jsonl:1: "messages" is empty' in detail


def test_a_reward_command_that_is_not_there(looked_at):
    found = looked_at({"grpo.reward_command": ["no-such-program-here"]})
    level, detail = found["reward program"]
    assert level == "error"
    assert "no-such-program-here" in detail
    assert found["sampler and trainer"][0] == "ok"


def test_every_fault_is_found_in_one_go(looked_at, tmp_path):
    found = looked_at(
        {"grpo.reward_command": ["no-such-program-here"], "output.path": "."},
        model=tmp_path / "gone.bin",
    )
    assert [title for title, (level, _) in found.items() if level == "error"] == [
        "model and prompts",
        "reward program",
        "output",
    ]


def test_what_is_not_available_yet_is_refused(tmp_path, model):
    config = write_run(tmp_path, model, rewards(LIVE), {"reference.model": "other.gguf"})
    with pytest.raises(ConfigError, match="reference is not available yet"):
        check(config)


# -- other runs ----------------------------------------------------------------------------------


def test_a_run_of_sft_is_checked_without_rewards(tmp_path, model):
    config = write_texts(tmp_path, model, {"training.epochs": 3})
    assert [f.title for f in check(config, sample=2).findings][-1] == "sample answers"
    report = check(config)
    found = {f.title: (f.level, f.detail) for f in report.findings}
    assert {level for level, _ in found.values()} == {"ok"}
    assert list(found) == ["model", "texts", "adapter", "output", "memory", "llama.cpp and trainer"]
    # ten texts are two steps of an epoch
    assert found["texts"][1].startswith("10 texts of at most ")
    assert found["texts"][1].endswith("3 epochs are 6 optimizer steps")
    assert "weights to check the adapter with" in found["memory"][1]


def test_texts_that_cannot_be_learnt_are_an_error_and_the_rest_is_still_looked_at(tmp_path, model):
    report = check(write_texts(tmp_path, model, talks=[("a question alone",)]))
    levels = {f.title: f.level for f in report.findings}
    assert levels == {"model and texts": "error", "output": "ok", "not looked at": "warning"}


def test_answers_are_sampled_under_the_adapter_to_begin_with(tmp_path, model, random_adapter):
    """So the spread is that of the first update, and not that of the base."""
    start = random_adapter(model)
    changes = {"lora.init_adapter": str(start)} | dict.fromkeys(
        ("lora.rank", "lora.alpha", "lora.dtype")
    )
    by_text = "def score(batch, index, request):\n    return len(set(request['completion']))\n"
    shown = []
    for own in (changes, {}):
        config = write_run(tmp_path, model, by_text, own)
        found = {f.title: f.detail for f in check(config, sample=2).findings}
        shown.append(found["sample answers"])
        assert ("beginning with" in found["adapter"]) is (own is changes)
    assert "from the adapter to begin with" not in found["reward spread"]
    assert shown[0] != shown[1]


# -- sampling ------------------------------------------------------------------------------------


def test_sampled_groups_show_the_spread_of_their_rewards(looked_at):
    # the first batch is the made-up answer, the second holds the four groups
    groups = [*LIVE, *DEAD, *LIVE, *DEAD]
    found = looked_at(reward=rewards([0.0], groups), sample=4, prompts=["a", "b", "c"])
    level, detail = found["reward spread"]
    # means 0.75 and 1; six tokens hardly ever hold an end token of 260, so answers are cut
    assert detail.startswith("4 groups of 4 from the base: mean 0.875, from 0 to 2; 50% of the")
    assert "groups carry signal; 100% of the answers are cut at 6 tokens" in detail
    assert level == "warning"
    assert "Raise max_new_tokens" in detail


def test_a_spread_with_signal_and_answers_that_end_is_in_order(looked_at, random_llama):
    program = "def score(batch, index, request):\n    return index\n"
    changes = {"grpo.sampling.max_new_tokens": 30, "grpo.group_size": 8}
    ending = end_often(random_llama(**SMALL))
    found = looked_at(changes, reward=program, model=ending, sample=2)
    level, detail = found["reward spread"]
    assert "100% of the groups carry signal" in detail
    assert int(re.search(r"(\d+)% of the answers are cut", detail)[1]) < 50
    assert level == "ok"


def test_groups_without_any_signal_are_a_warning_with_a_cure(looked_at):
    level, detail = looked_at(reward=rewards(DEAD), sample=2)["reward spread"]
    assert level == "warning"
    assert "0% of the groups carry signal" in detail
    assert "GRPO cannot learn from this. Give partial credit" in detail


def test_the_best_and_the_worst_answer_of_a_group_are_shown(looked_at):
    level, detail = looked_at(reward=rewards([0.5, -1.0, 2.25, 0.0]), sample=1)["sample answers"]
    assert level == "ok"
    best, worst = detail.splitlines()
    assert best.startswith("best 2.25: ")
    assert worst.startswith("worst -1: ")
    assert best.removeprefix("best 2.25: ") != worst.removeprefix("worst -1: ")


def test_the_answers_are_those_that_a_runs_first_update_will_score(looked_at, tmp_path, model):
    """The base is sampled, and not the adapter of the comparison, with the run's own seeds."""
    by_index = "def score(batch, index, request):\n    return index\n"
    found = looked_at(reward=by_index, sample=1)["sample answers"][1]
    [group] = train(tmp_path / "run", model, by_index).groups[1]
    first, *_, last = [t.answer.text.replace("\n", "⏎") for t in group.trajectories]
    assert found == f"best 3: {last!r}\nworst 0: {first!r}"
    (tmp_path / "run" / "adapter.gguf").unlink()


def test_a_reward_program_that_breaks_the_protocol_is_an_error(looked_at):
    nan = "def score(batch, index, request):\n    return 'much'\n"
    found = looked_at(reward=nan, sample=1)
    level, detail = found["reward program"]
    assert level == "error"
    assert 'whose reward is the text "much"' in detail
    assert "sample answers" not in found


def test_the_program_scores_a_made_up_answer(looked_at):
    level, detail = looked_at(reward=rewards([0.25]))["reward program"]
    assert level == "ok"
    assert "python3 reward.py gave 0.25 to the answer 'A made-up answer.'" in detail


def test_a_program_that_dies_is_found_without_sampling(looked_at):
    dies = "def score(batch, index, request):\n    sys.exit(3)\n"
    level, detail = looked_at(reward=dies)["reward program"]
    assert level == "error"
    assert "status 3" in detail


def test_a_script_that_is_not_there_is_found(looked_at):
    found = looked_at({"grpo.reward_command": ["python3", "rewrad.py"]})
    level, detail = found["reward program"]
    assert level == "error"
    assert "rewrad.py" in detail
