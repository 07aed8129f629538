"""The base and what a run made of it, on the same questions: the run's own evaluations are the
oracle, whose figures a bench has to find again."""

from __future__ import annotations

import json
import shutil

import pytest
from left_over import nothing_left
from small_runs import (
    DEFAULTS,
    PPO,
    SMALL,
    TALKS,
    Recorder,
    end_often,
    talk,
    teach,
    train,
    write_run,
    write_texts,
)

from trainer.bench import bench
from trainer.config import load_config
from trainer.errors import ConfigError, DataError, ModelError, RewardError
from trainer.model.decoder import Decoder
from trainer.opening.sides import Wish

BY_TEXT = (
    "def score(batch, index, request):\n"
    "    points = sum(map(ord, request['completion'])) % 7\n"
    "    return {'reward': points, 'parts': {'length': len(request['completion'])}}\n"
)
QUESTIONS = ["seven", "in eight", "nine", "ten"]
HELD_OUT = {"evaluation.data": "held.jsonl", "evaluation.every_iterations": 99}

nothing_is_left_running = pytest.fixture(autouse=True)(nothing_left)


@pytest.fixture(scope="module")
def model(random_llama):
    return random_llama(**SMALL)


def write_held(folder, questions=QUESTIONS):
    lines = [json.dumps({"messages": [{"role": "user", "content": q}]}) for q in questions]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "held.jsonl").write_text("\n".join(lines), encoding="utf-8")


@pytest.fixture(scope="module", params=[DEFAULTS, PPO], ids=["grpo", "ppo"])
def trained(request, model, tmp_path_factory):
    """A finished run with evaluations before its first update and after its last; its folder."""
    folder = tmp_path_factory.mktemp("trained")
    write_held(folder)
    algorithm = request.param["run.algorithm"]
    changes = HELD_OUT | {f"{algorithm}.updates": 3, "training.lr": 0.02}
    recorder = train(folder, model, BY_TEXT, changes, prompts=["one", "two"], base=request.param)
    assert recorder.outcome.status == "completed", recorder.outcome.message
    return folder, recorder


@pytest.fixture
def config(trained):
    return load_config(trained[0] / "run.toml")


def texts(result, side):
    return [[t.answer.text for t in pair.answers[side]] for pair in result.comparison.pairs]


def test_one_answer_to_each_prompt_is_what_the_runs_evaluations_saw(trained, config):
    _, recorder = trained
    result = bench(config, Wish(samples=1), Recorder())
    main = result.comparison.main
    first, last = (recorder.evaluations[u]["eval/mean_reward"] for u in (0, 3))
    assert (main.before, main.after) == (first, last)
    for side, update in ((0, 0), (1, 3)):
        seen = [[t.answer.text for t in g.trajectories] for g in recorder.held_out[update]]
        assert texts(result, side) == seen
    assert texts(result, 0) != texts(result, 1), "or there was nothing to see"
    assert [side.name for side in result.sides] == ["base", "adapter"]


def test_more_answers_begin_with_the_first_and_the_same_call_gives_the_same(config):
    one, four = (bench(config, Wish(samples=k), Recorder()) for k in (1, None))
    again = bench(config, Wish(), Recorder())
    assert [[own[0]] for own in texts(four, 1)] == texts(one, 1)
    assert {len(own) for own in texts(four, 1)} == {4}
    assert len({text for own in texts(four, 0) for text in own}) > 4, "each has its own seed"
    assert four.comparison.main == again.comparison.main
    assert texts(four, 0) == texts(again, 0)
    assert "part/length" in four.comparison.others


def test_an_adapter_against_itself_changes_nothing(trained, config):
    own = trained[0] / "adapter.gguf"
    result = bench(config, Wish(baseline=own), Recorder())
    assert [side.name for side in result.sides] == ["baseline", "adapter"]
    assert result.comparison.main.equal == 4
    assert texts(result, 0) == texts(result, 1)


def test_greedy_answers_are_one_to_a_prompt_whatever_the_seed(config):
    first = bench(config, Wish(greedy=True), Recorder())
    sampling = config.rollout.sampling.model_copy(update={"seed": 7})
    section = config.rollout.model_copy(update={"sampling": sampling})
    other = config.model_copy(update={config.run.algorithm: section})
    assert texts(first, 1) == texts(bench(other, Wish(greedy=True), Recorder()), 1)
    assert texts(bench(other, Wish(), Recorder()), 0) != texts(bench(config, Wish(), Recorder()), 0)
    assert {len(own) for own in texts(first, 1)} == {1}
    assert first.drawing.settings.temperature == 0, "and this is what its record says"


def test_a_whole_model_can_stand_in_for_the_adapter(model, config, tmp_path):
    other = end_often(shutil.copy(model, tmp_path / "merged.gguf"))
    result = bench(config, Wish(result=other), Recorder())
    assert [side.name for side in result.sides] == ["base", "model"]
    length = result.comparison.others["tokens"]
    assert length.after < length.before, "the end token stands out more in it"
    assert texts(result, 0) == texts(bench(config, Wish(), Recorder()), 0)


def test_other_prompts_and_fewer_of_them(config, tmp_path):
    write_held(tmp_path, [f"number {i}" for i in range(10)])
    result = bench(config, Wish(data=tmp_path / "held.jsonl", limit=3), Recorder())
    assert [pair.line for pair in result.comparison.pairs] == [1, 4, 7]
    assert result.notes == [note for note in result.notes if "rough" in note]


def test_prompts_that_are_trained_on_are_told(config, tmp_path):
    write_held(tmp_path, ["two", "nine", "one"])
    result = bench(config, Wish(data=tmp_path / "held.jsonl"), Recorder())
    assert result.notes[0] == "2 of the 3 prompts are also trained on."
    without = config.model_copy(update={"evaluation": None})
    result = bench(without, Wish(), Recorder())
    assert result.notes[0].startswith("These prompts are the ones that the run trains on")
    assert [pair.content[-1].content for pair in result.comparison.pairs] == ["one", "two"]


def test_training_prompts_that_are_gone_do_not_matter(trained, config, tmp_path):
    section = config.rollout.model_copy(update={"prompts": tmp_path / "gone.jsonl"})
    moved = config.model_copy(update={config.run.algorithm: section})
    assert bench(moved, Wish(), Recorder()).comparison.main.count == 4


def test_progress_and_what_is_measured_are_told(config):
    recorder = Recorder()
    bench(config, Wish(samples=2), recorder)
    told = [m.partition(":")[0] for m in recorder.messages("bench")]
    assert told == ["base", "adapter"]
    for call in ("evaluate 8/8", "reward 8/8"):
        assert recorder.calls.count(call) == 2


@pytest.fixture
def untrained(model, tmp_path):
    """A configuration whose run has not been made; changes by dotted key."""

    def configure(changes=None, reward=BY_TEXT):
        return write_run(tmp_path, model, reward, changes, prompts=["one", "two"])

    return configure


def test_what_was_not_trained_cannot_be_compared(untrained):
    with pytest.raises(ConfigError, match=r"run\.toml:\d+: .*adapter\.gguf: there is no such file"):
        bench(untrained(), Wish(), Recorder())


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"samples": 2, "greedy": True}, "^samples 2 beside greedy"),
        ({"temperature": 2.0, "greedy": True}, "^temperature 2 beside greedy"),
    ],
)
def test_wishes_that_do_not_go_together(untrained, wish, words):
    with pytest.raises(ConfigError, match=words):
        bench(untrained(), Wish(**wish), Recorder())


def test_the_base_is_nothing_to_compare_with(model, untrained):
    with pytest.raises(ConfigError, match="this is the base itself"):
        bench(untrained(), Wish(result=model), Recorder())


def test_a_baseline_has_to_be_there(trained, config, tmp_path):
    with pytest.raises(ConfigError, match=r"^baseline: .*gone\.gguf: there is no such file"):
        bench(config, Wish(baseline=tmp_path / "gone.gguf"), Recorder())


def test_an_adapter_for_another_model_is_refused_before_anything_is_answered(
    random_llama, random_adapter, untrained
):
    recorder = Recorder()
    other = random_adapter(random_llama(**SMALL | {"width": 48, "heads": 6}))
    with pytest.raises(ModelError, match=r"adapter-0\.gguf: .*made for another model"):
        bench(untrained(), Wish(result=other), recorder)
    assert not [call for call in recorder.calls if call.startswith("evaluate")]


def test_a_model_with_another_vocabulary_is_refused(tiny, untrained):
    with pytest.raises(ModelError, match="another vocabulary than the base"):
        bench(untrained(), Wish(result=tiny), Recorder())


def test_prompts_that_are_not_there_or_do_not_fit(random_adapter, model, untrained, tmp_path):
    adapter = random_adapter(model)
    with pytest.raises(DataError, match=r"^data: .*gone\.jsonl: there is no such file"):
        bench(untrained(), Wish(result=adapter, data=tmp_path / "gone.jsonl"), Recorder())
    write_held(tmp_path, ["far too long " * 9])
    with pytest.raises(DataError, match=r"held\.jsonl:1: the prompt has \d+ tokens"):
        bench(untrained(), Wish(result=adapter, data=tmp_path / "held.jsonl"), Recorder())


def test_a_reward_program_that_dies_ends_it_and_leaves_nothing(random_adapter, model, untrained):
    dies = (
        "def score(batch, index, request):\n    if batch == 2: sys.exit('no more')\n    return 1\n"
    )
    recorder = Recorder()
    with pytest.raises(RewardError, match="no more"):
        bench(untrained(reward=dies), Wish(result=random_adapter(model)), recorder)
    assert len(recorder.messages("bench")) == 2, "the base was scored"


# -- texts ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def taught(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("taught")
    lines = [talk(t) for t in (*TALKS[3:5], ("fourteen", "pp"), ("fifteen in", "qqq in"))]
    (folder / "held.jsonl").write_text("\n".join(lines), encoding="utf-8")
    recorder = teach(folder, model, {"evaluation.data": "held.jsonl", "training.epochs": 3})
    return folder, recorder


def test_of_texts_the_losses_are_those_of_the_runs_evaluations(taught):
    folder, recorder = taught
    result = bench(load_config(folder / "run.toml"), Wish(), Recorder())
    pooled = result.comparison.others["loss per token"]
    first, last = (recorder.evaluations[u]["eval/loss"] for u in (0, max(recorder.evaluations)))
    assert pooled.before == pytest.approx(first, rel=1e-6)
    assert pooled.after == pytest.approx(last, rel=1e-5)
    assert last < first
    assert result.comparison.main.better == 4
    assert result.notes[0] == "2 of the 4 texts are also trained on."
    assert [p.content[-1].content for p in result.comparison.pairs][2:] == ["pp", "qqq in"]


def test_texts_of_a_model_and_of_a_baseline(model, taught, tmp_path):
    folder, _ = taught
    config = load_config(folder / "run.toml")
    same = shutil.copy(model, tmp_path / "same.gguf")
    assert bench(config, Wish(result=same), Recorder()).comparison.main.equal == 4
    own = folder / "adapter.gguf"
    assert bench(config, Wish(baseline=own), Recorder()).comparison.main.equal == 4


def test_a_model_that_both_sides_share_is_loaded_once(model, taught, tmp_path, monkeypatch):
    config, loaded = load_config(taught[0] / "run.toml"), []

    class Counted(Decoder):
        def __init__(self, file, *args, **options):
            loaded.append(file.path)
            super().__init__(file, *args, **options)

    monkeypatch.setattr("trainer.bench.Decoder", Counted)
    bench(config, Wish(), Recorder())
    assert loaded == [model]
    other = shutil.copy(model, tmp_path / "same.gguf")
    bench(config, Wish(result=other), Recorder())
    assert loaded[1:] == [model, other]


def test_texts_are_not_sampled(model, tmp_path):
    config = write_texts(tmp_path, model)
    with pytest.raises(ConfigError, match=r"^samples and greedy: .* nothing is sampled"):
        bench(config, Wish(samples=1, greedy=True), Recorder())


def test_an_adapter_that_brings_its_own_rank_and_targets_can_be_compared(
    random_adapter, model, taught
):
    folder, _ = taught
    result = bench(load_config(folder / "run.toml"), Wish(result=random_adapter(model)), Recorder())
    assert result.comparison.main.equal == 0


def test_a_run_that_began_with_an_adapter_is_told_how_to_leave_that_out(
    random_adapter, model, untrained
):
    start = random_adapter(model)
    keys = dict.fromkeys(("lora.rank", "lora.alpha", "lora.dtype"))
    config = untrained(keys | {"lora.init_adapter": str(start)})
    notes = bench(config, Wish(result=start), Recorder()).notes
    assert any(f"baseline {start} leaves it out" in note for note in notes)
    assert not any(
        "leaves it out" in n for n in bench(config, Wish(start, start), Recorder()).notes
    )
