"""Runs that begin with an adapter: what they sample from first, what they are pulled toward, how
they go on, and which files are refused. The chain is SFT, then GRPO or PPO."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch
from small_runs import (
    DEFAULTS,
    PPO,
    SMALL,
    Recorder,
    exported,
    opened,
    sampled,
    teach,
    train,
    write_run,
    write_texts,
)

from trainer.algorithms.optimise import score_groups
from trainer.config import load_config
from trainer.errors import ConfigError, ModelError
from trainer.inputs import read_inputs
from trainer.resume import checkpoint_folder
from trainer.run import run
from trainer.session import open_session

BY_TEXT = "def score(batch, index, request):\n    return sum(map(ord, request['completion'])) % 7\n"
NO_KEYS = dict.fromkeys(("lora.rank", "lora.alpha", "lora.dtype"))
BASES = pytest.mark.parametrize("base", [DEFAULTS, PPO], ids=["grpo", "ppo"])


@pytest.fixture(scope="module")
def model(random_llama):
    return random_llama(**SMALL)


@pytest.fixture(scope="module")
def taught(model, tmp_path_factory):
    """The adapter of a run of SFT, of rank 3, and that run."""
    changes = {"training.epochs": 8, "lora.rank": 3, "lora.alpha": 9.0, "lora.targets": ["q", "v"]}
    recorder = teach(tmp_path_factory.mktemp("sft"), model, changes)
    return Path(recorder.outcome.output), recorder


def beginning(path, **changes):
    return NO_KEYS | {"lora.init_adapter": str(path)} | changes


def penalised(base):
    """A penalty toward the initial policy."""
    name = base["run.algorithm"]
    own = {f"{name}.kl_coefficient": 0.1, f"{name}.updates": 3}
    return own | ({"ppo.kl_anchor": "reference"} if name == "ppo" else {})


# -- the chain -----------------------------------------------------------------------------------


@BASES
def test_a_run_begins_where_the_adapter_left_off(model, taught, tmp_path, base):
    """Its first answers are those of the policy in the file, by llama.cpp and by torch; nothing
    separates it from its initial policy yet, and afterwards something does."""
    path, _ = taught
    own = beginning(path) | penalised(base)
    first = train(tmp_path / "one", model, BY_TEXT, own, base=base)
    assert first.outcome.status == "completed"
    assert first.values[1]["policy/kl_per_answer"] == 0.0
    assert first.values[3]["policy/kl_per_answer"] > 1e-6
    # what the sampler said of its draws is what torch says of them under the adapter in the file
    assert first.values[1]["sampler/logprob_gap_max"] < 1e-4
    from_base = train(tmp_path / "two", model, BY_TEXT, penalised(base), base=base)
    texts = [
        [t.answer.text for g in run_.groups[1] for t in g.trajectories]
        for run_ in (first, from_base)
    ]
    assert texts[0] != texts[1]


def test_the_sampler_has_the_files_weights_before_the_first_update(model, taught, tmp_path):
    path, _ = taught
    config = write_run(tmp_path, model, BY_TEXT, beginning(path))
    with opened(config) as session:
        engine = session.loop.tools.collector.engine
        tokens = [258, 72, 105, 257, 259, 65]
        decoder = session.loop.learner.decoder
        theirs = torch.from_numpy(engine.logits(tokens))
        torch.testing.assert_close(
            theirs, decoder.logits(tokens, session.adapter), rtol=0, atol=1e-4
        )
        assert not torch.allclose(theirs, decoder.logits(tokens, None), atol=1e-2)
        for name, value in session.adapter.state().items():
            np.testing.assert_array_equal(value.numpy(), exported(path)[name].reshape(value.shape))
        assert session.loop.learner.initial is not session.adapter


def test_rank_alpha_targets_and_type_are_those_of_the_file(model, taught, tmp_path):
    path, _ = taught
    recorder = train(tmp_path, model, BY_TEXT, beginning(path))
    lora = recorder.info.params["lora"]
    assert (lora["rank"], lora["alpha"], lora["dtype"]) == (3, 9.0, "f32")
    assert lora["targets"] == ["blk.0.attn_q.weight", "blk.0.attn_v.weight"]
    assert recorder.info.facts["adapter"].startswith("rank 3 on q, v: ")
    assert recorder.info.facts["begins with"] == str(path)
    result = exported(recorder.outcome.output)
    assert result.keys() == exported(path).keys()
    assert {v.dtype for v in result.values()} == {np.dtype(np.float32)}


def test_sft_goes_on_from_an_adapter_too(model, taught, tmp_path):
    path, _ = taught
    own = beginning(path) | {"sft.shuffle": False}
    with opened(write_texts(tmp_path, model, own)) as session:
        first = [session.loop.texts[i] for i in session.loop.order.of(1)]
        scored = session.loop.learner.score_apart(
            [t.prompt for t in first], [t.rest for t in first], session.adapter
        )
        learnt = [
            s.logprobs[torch.from_numpy(t.learnt)] for s, t in zip(scored, first, strict=True)
        ]
    recorder = teach(tmp_path, model, own)
    assert recorder.values[1]["sft/loss"] == pytest.approx(-float(torch.cat(learnt).mean()))
    afresh = teach(tmp_path / "afresh", model, {"sft.shuffle": False})
    assert recorder.values[1]["sft/loss"] < afresh.values[1]["sft/loss"]


def test_the_initial_policy_is_the_base_with_the_adapter_however_far_training_went(
    model, taught, tmp_path
):
    path, _ = taught
    config = write_run(tmp_path, model, BY_TEXT, beginning(path))
    with opened(config) as session:
        learner = session.loop.learner
        start = session.adapter.frozen()
        with torch.no_grad():
            for parameter in session.adapter.parameters():
                parameter.add_(0.1)
        scored = sampled(config)
        score_groups(
            learner, [scored], unscored=[], with_reference=True, on_progress=lambda *_: None
        )
        for answer, old, reference in zip(
            scored.live_tokens, scored.old, scored.reference, strict=True
        ):
            ids = [*scored.prompt.tokens, *answer.tolist()]
            for adapter, found in ((session.adapter, old), (start, reference)):
                logprobs = learner.decoder.logits(ids, adapter).log_softmax(-1)
                rows = range(len(scored.prompt.tokens) - 1, len(ids) - 1)
                expected = logprobs[list(rows), answer.tolist()]
                torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
            assert not torch.allclose(old, reference, atol=1e-2)


# -- going on ------------------------------------------------------------------------------------


@BASES
def test_a_run_that_began_with_an_adapter_can_be_resumed(model, taught, tmp_path, base):
    path, _ = taught
    own = beginning(path) | penalised(base)
    whole = train(tmp_path / "whole", model, BY_TEXT, own, base=base)
    part = train(tmp_path / "part", model, BY_TEXT, own, stop_at="metrics 1", base=base)
    assert part.outcome.updates == 1
    config = load_config(tmp_path / "part" / "run.toml")
    rest = Recorder()
    run(config, rest, resume_from=checkpoint_folder(config))
    for name, value in exported(whole.outcome.output).items():
        assert np.array_equal(value, exported(rest.outcome.output)[name])
    for key in ("policy/kl_per_answer", "reward/mean"):
        assert rest.values[3][key] == whole.values[3][key]


def test_another_file_to_begin_with_is_another_run(model, taught, random_adapter, tmp_path):
    own = beginning(tmp_path / "start.gguf") | {"grpo.updates": 2}
    start = tmp_path / "start.gguf"
    start.write_bytes(taught[0].read_bytes())
    train(tmp_path, model, BY_TEXT, own)
    config = load_config(tmp_path / "run.toml")
    start.write_bytes(random_adapter(model).read_bytes())
    with pytest.raises(ConfigError, match=r"lora\.init_adapter: the file has other contents"):
        run(config, Recorder(), resume_from=checkpoint_folder(config))


def test_a_checkpoint_of_a_run_without_one_is_of_another_run(model, taught, tmp_path):
    train(tmp_path, model, BY_TEXT, {"grpo.updates": 2})
    config = write_run(tmp_path, model, BY_TEXT, {"grpo.updates": 2} | beginning(taught[0]))
    with pytest.raises(ConfigError, match=r"lora\.init_adapter: None at the checkpoint, '.*' now"):
        run(config, Recorder(), resume_from=checkpoint_folder(config))


# -- files ---------------------------------------------------------------------------------------


def refused(config, kind):
    with ExitStack() as stack, pytest.raises(kind) as caught:
        open_session(config, read_inputs(config), Recorder(), stack, "a-run")
    return str(caught.value)


def test_a_file_that_is_not_there_is_named_with_its_line(model, tmp_path):
    config = write_run(tmp_path, model, BY_TEXT, beginning(tmp_path / "gone.gguf"))
    message = refused(config, ConfigError)
    assert f"{tmp_path / 'gone.gguf'}: there is no such file" in message
    assert message.startswith(config.where("lora.init_adapter"))


def test_an_adapter_of_another_model_is_named_with_its_line(
    model, random_llama, random_adapter, tmp_path
):
    other = random_adapter(random_llama(**SMALL | {"width": 64}))
    config = write_run(tmp_path, model, BY_TEXT, beginning(other))
    message = refused(config, ModelError)
    assert message.startswith(f"{config.where('lora.init_adapter')}: {other}: ")
    assert "the adapter was made for another model" in message


def test_the_adapter_to_begin_with_is_never_written_over(model, taught, tmp_path):
    start = tmp_path / "start.gguf"
    start.write_bytes(taught[0].read_bytes())
    config = write_run(tmp_path, model, BY_TEXT, beginning(start, **{"output.path": str(start)}))
    with pytest.raises(ConfigError, match="the run reads or writes this file itself"):
        run(config, Recorder())
    assert start.read_bytes() == taught[0].read_bytes()


def test_a_run_that_trains_nothing_exports_nothing(model, taught, tmp_path):
    same = "def score(batch, index, request):\n    return 1.0\n"
    recorder = train(tmp_path, model, same, beginning(taught[0]))
    assert recorder.outcome.output is None


def test_texts_alone_decide_whether_the_data_is_the_same(model, tmp_path):
    """SFT's own identity: other texts are another run, and more epochs are the same one."""
    first = teach(tmp_path, model, {"training.epochs": 2})
    assert first.outcome.updates == 4
    config = load_config(tmp_path / "run.toml")
    (tmp_path / "texts.jsonl").write_text(
        json.dumps({"messages": [{"role": r, "content": "x"} for r in ("user", "assistant")]})
    )
    with pytest.raises(ConfigError, match=r"sft\.data: the file has other contents"):
        run(config, Recorder(), resume_from=checkpoint_folder(config))
