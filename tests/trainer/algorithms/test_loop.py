"""What the loop does beside training: the audit of an update's answers, and the watch over its
metrics. Both methods go through it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from small_runs import DEFAULTS, PPO, Recorder, answer, episode, group, rewards, train

from trainer.algorithms.loop import Loop
from trainer.config.common import AuditSection
from trainer.errors import RewardError, TrainingError
from trainer.health.audit import Audit
from trainer.health.findings import Watch

CIRCLES = "round and round and round it goes " * 4
HONEST = ["Two and two make four.", "It is 7.", "No.", "I do not know."]


class Calls:
    """A keeper that keeps what it was told, and no more: what it saves has tests of its own."""

    def __init__(self):
        self.told = []

    def update_done(self, update, step, state):
        self.told.append(f"done {update}")

    def asked(self, update, step, state):
        self.told.append(f"asked {update}")

    def ended(self, update, step, state):
        self.told.append(f"ended {update}")


class Texts:
    """A method whose answers have the texts given, update by update, and which never trains."""

    kl_coefficient = 0.0

    def __init__(self, form, updates):
        self.form, self.updates, self.concluded = form, updates, []

    def collect(self, update, watch):
        with watch("generate"):
            return self.form(self.updates[update - 1])

    def optimise(self, update, groups, watch):
        return []

    def metrics(self, groups):
        return {}

    def conclude(self, update, values, trained):
        self.concluded.append((update, trained, values))


def one_group(config):
    return lambda texts: [group(config, [1.0] * len(texts), [answer(1, text=t) for t in texts])]


def episodes(_):
    return lambda texts: [episode(1.0, answer(1, text=t), index=i) for i, t in enumerate(texts)]


@pytest.fixture(params=["grpo", "ppo"])
def looped(request, configured, configured_ppo):
    """Run a loop over texts; the recorder and the method."""

    def go(*updates, **audit):
        make = configured if request.param == "grpo" else configured_ppo
        config = make({f"{request.param}.updates": len(updates)})
        recorder = Recorder()
        form = one_group(config) if request.param == "grpo" else episodes(config)
        method = Texts(form, updates)
        adapter = SimpleNamespace(state=dict, load_state=lambda state: None)
        tools = SimpleNamespace(
            config=config, learner=SimpleNamespace(adapter=adapter, steps=0), monitor=recorder
        )
        watch = Watch(request.param, {})
        loop = Loop(method, tools, Audit(AuditSection(**audit)), guide=watch, keeper=Calls())
        loop.train()
        assert (loop.completed, loop.trained) == (len(updates), 0)
        return recorder, method

    return go


def flags(recorder, update):
    return [t.audit for g in recorder.groups[update] for t in g.trajectories]


def test_answers_that_go_round_in_circles_are_flagged_counted_and_told(looped):
    recorder, method = looped([CIRCLES, *HONEST[:3]])
    assert flags(recorder, 1) == [("repetitive",), (), (), ()]
    values = recorder.values[1]
    assert values["audit/repetition"] == 0.25
    assert (values["audit/verbosity"], values["audit/sycophancy"]) == (0.0, 0.0)
    assert values["audit/over_limit"] == 1.0
    [event] = [e for e in recorder.events if e.code == "audit"]
    assert (event.level, event.update, event.data) == ("warning", 1, {"over": ["repetition"]})
    assert "25% of the answers go round in circles" in event.message
    assert "raise kl_coefficient" in event.message
    # the method hears what the monitor hears
    assert method.concluded == [(1, False, values)]


def test_what_goes_on_is_told_once_and_again_when_it_comes_back(looped):
    bad, good = [CIRCLES] * 4, HONEST
    recorder, _ = looped(bad, bad, good, bad, bad)
    assert [e.update for e in recorder.events if e.code == "audit"] == [1, 4]
    assert [v["audit/over_limit"] for v in recorder.values.values()] == [1.0, 1.0, 0.0, 1.0, 1.0]


def test_a_second_measure_is_news(looped):
    pleasing = [f"Great question! {text}" for text in HONEST]
    recorder, _ = looped([CIRCLES] * 4, [CIRCLES, CIRCLES, *pleasing[:2]])
    told = [e.data["over"] for e in recorder.events if e.code == "audit"]
    assert told == [["repetition"], ["sycophancy"]]
    assert flags(recorder, 2)[2:] == [("sycophantic",)] * 2


def test_only_every_nth_update_is_audited(looped):
    recorder, _ = looped(*[[CIRCLES] * 4] * 5, every=2)
    with_audit = [u for u, v in recorder.values.items() if "audit/repetition" in v]
    assert with_audit == [1, 3, 5]
    assert [flags(recorder, u)[0] for u in (1, 2, 3)] == [("repetitive",), (), ("repetitive",)]
    assert [e.update for e in recorder.events if e.code == "audit"] == [1]


def test_an_audit_that_is_off_says_nothing(looped):
    recorder, _ = looped([CIRCLES] * 4, enabled=False)
    assert flags(recorder, 1) == [()] * 4
    assert not any(name.startswith("audit/") for name in recorder.values[1])
    assert not recorder.messages("audit")


def test_answers_are_told_before_the_numbers_and_those_before_what_they_warn_of(looped):
    recorder, _ = looped([CIRCLES] * 4)
    assert recorder.calls == ["trajectories 1", "metrics 1", "event audit"]


# -- what counts as an update, and when it is saved -----------------------------------------------


class Ends(Texts):
    """Its second update is one too many, for one reason or another."""

    def __init__(self, form, updates, error, where):
        super().__init__(form, updates)
        self.error, self.where = error, where

    def fail(self, update, where):
        if (update, where) == (2, self.where):
            raise self.error

    def collect(self, update, watch):
        self.fail(update, "collect")
        return super().collect(update, watch)

    def optimise(self, update, groups, watch):
        self.fail(update, "optimise")
        return []

    def conclude(self, update, values, trained):
        self.fail(update, "conclude")


@pytest.mark.parametrize(
    ("where", "error", "completed", "told", "restored"),
    [
        ("collect", RewardError("died"), 1, ["done 1", "ended 1"], 0),
        ("optimise", TrainingError("not finite"), 1, ["done 1"], 1),
        ("optimise", KeyboardInterrupt(), 1, ["done 1"], 1),
        ("conclude", TrainingError("stalled"), 2, ["done 1", "ended 2"], 0),
        ("conclude", KeyboardInterrupt(), 1, ["done 1"], 1),
    ],
)
def test_only_whole_updates_count_and_are_saved(
    configured, where, error, completed, told, restored
):
    """Among its passes an update has changed moments and critic, which cannot be taken back: the
    adapter goes back by itself, and no checkpoint is made. Before them nothing has changed yet; and
    when a method ends the run because of an update, the update itself is whole."""
    config, states = configured({"grpo.updates": 3}), []
    method = Ends(one_group(config), [HONEST] * 3, error, where)
    adapter = SimpleNamespace(state=dict, load_state=states.append)
    learner = SimpleNamespace(adapter=adapter, steps=0)
    tools = SimpleNamespace(config=config, learner=learner, monitor=Recorder())
    keeper = Calls()
    guide = Watch("grpo", {})
    loop = Loop(method, tools, Audit(AuditSection()), guide=guide, keeper=keeper)
    with pytest.raises(type(error)):
        loop.train()
    assert (loop.completed, keeper.told, len(states)) == (completed, told, restored)


def test_an_update_is_evaluated_before_it_is_saved(model, tmp_path):
    """So that a checkpoint knows what its policy is worth."""
    (tmp_path / "held.jsonl").write_text('{"messages": [{"role": "user", "content": "seven"}]}')
    changes = {"grpo.updates": 2, "evaluation.data": "held.jsonl", "checkpoint.every_steps": 1}
    recorder = train(tmp_path, model, rewards([0.0, 1.0, 0.0, 2.0]), changes)
    told = ("metrics", "evaluation", "event checkpoint")
    assert [call for call in recorder.calls if call.startswith(told)] == [
        "evaluation 0",
        *("metrics 1", "evaluation 1", "event checkpoint"),
        *("metrics 2", "evaluation 2", "event checkpoint"),
    ]


# -- whole runs ----------------------------------------------------------------------------------

BASES = pytest.mark.parametrize("base", [DEFAULTS, PPO], ids=["grpo", "ppo"])


@BASES
def test_a_runs_own_answers_are_audited(model, tmp_path, base):
    """Two words are too many: some answers of random bytes have them."""
    name = base["run.algorithm"]
    changes = {f"{name}.updates": 2, "audit.max_words": 1, "audit.verbosity_limit": 0.0}
    changes |= {f"{name}.sampling.max_new_tokens": 24}
    recorder = train(tmp_path, model, rewards([0.0, 1.0]), changes, base=base)
    for update, values in recorder.values.items():
        verbose = ["verbose" in f for f in flags(recorder, update)]
        assert any(verbose)
        assert values["audit/verbosity"] == sum(verbose) / 4
    assert [e.update for e in recorder.events if e.code == "audit"] == [1]


@BASES
def test_a_bad_metric_is_told_once_and_stands_in_the_outcome(model, tmp_path, base):
    """Rewards that are always equal."""
    name = base["run.algorithm"]
    changes = {f"{name}.updates": 30}
    if name == "grpo":
        changes["grpo.max_stalled_updates"] = 0
    recorder = train(tmp_path, model, rewards([0.5] * 4), changes, base=base)
    bad = {"grpo": "batch/zero_std_group_fraction", "ppo": "reward/std"}[name]
    told = [e for e in recorder.events if e.code == "health" and e.data["metric"] == bad]
    assert len(told) == 1
    assert told[0].level == "warning"
    assert 10 <= told[0].update < 30
    assert told[0].data["since"] == 1
    [finding] = [f for f in recorder.outcome.findings if f.metric == bad]
    assert finding.since == 1
    assert finding.what in told[0].message
    assert finding.change in told[0].message


@BASES
def test_a_run_without_fault_has_no_findings(model, tmp_path, base):
    """Apart from the cut answers of a model that has never learnt to end one."""
    name = base["run.algorithm"]
    recorder = train(
        tmp_path, model, rewards([0.0, 1.0, 0.0, 2.0]), {f"{name}.updates": 3}, base=base
    )
    cut = "completions/truncation_fraction"
    assert [f.metric for f in recorder.outcome.findings] in ([], [cut])
    told = [e.data["metric"] for e in recorder.events if e.code == "health"]
    assert set(told) <= {cut}
