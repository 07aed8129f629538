from __future__ import annotations

import hashlib

import pytest

from trainer.checkpoint.identity import differences, digest, identity, length_key, lengthened

PARAMS = {
    "run": {"algorithm": "grpo", "name": "sums", "verbose": False},
    "model": {"path": "/a/base.gguf"},
    "output": {"path": "/a/adapter.gguf", "kind": "adapter"},
    "lora": {"rank": 8, "targets": ["q", "v"]},
    "training": {"lr": 0.01},
    "observe": None,
    "checkpoint": None,
    "evaluation": {"data": "/a/held.jsonl", "patience": None},
    "grpo": {"prompts": "/a/prompts.jsonl", "updates": 5, "sampling": {"seed": 1}},
}
FILES = {"grpo.prompts": "aa", "evaluation.data": "bb"}
SAVED = identity(PARAMS, model="m1", files=FILES)


def changed(**sections):
    """The saved identity with these sections updated, or replaced where they are not dicts."""
    params = {
        name: PARAMS[name] | value if isinstance(value, dict) and PARAMS[name] else value
        for name, value in sections.items()
    }
    return identity(PARAMS | params, model="m1", files=FILES)


def test_the_same_run_does_not_differ_from_itself():
    assert differences(SAVED, changed()) == []
    assert lengthened(SAVED, changed()) is None


@pytest.mark.parametrize(
    ("sections", "line"),
    [
        ({"lora": {"rank": 16}}, "lora.rank: 8 at the checkpoint, 16 now"),
        ({"lora": {"targets": ["q"]}}, "lora.targets: ['q', 'v'] at the checkpoint, ['q'] now"),
        ({"training": {"lr": 0.02}}, "training.lr: 0.01 at the checkpoint, 0.02 now"),
        ({"run": {"algorithm": "ppo"}}, "run.algorithm: 'grpo' at the checkpoint, 'ppo' now"),
        (
            {"grpo": {"sampling": {"seed": 2}}},
            "grpo.sampling.seed: 1 at the checkpoint, 2 now",
        ),
        (
            {"model": {"template_variables": {"thinking": True}}},
            "model.template_variables.thinking: None at the checkpoint, True now",
        ),
        (
            {"evaluation": {"patience": 3}},
            "evaluation.patience: None at the checkpoint, 3 now",
        ),
    ],
)
def test_a_key_that_decides_what_is_learnt_is_named_with_both_values(sections, line):
    assert differences(SAVED, changed(**sections)) == [line]


@pytest.mark.parametrize(
    "sections",
    [
        {"run": {"name": "other", "verbose": True}},
        {"output": {"path": "/b/adapter.gguf"}},
        {"observe": {"directory": "/b", "every": 2}},
        {"checkpoint": {"keep": 5, "every_steps": 1}},
    ],
)
def test_where_results_go_and_what_is_told_may_differ(sections):
    assert differences(SAVED, changed(**sections)) == []


@pytest.mark.parametrize("off", [None, False])
def test_a_key_that_the_earlier_program_did_not_know_may_be_there_and_off(off):
    assert differences(SAVED, changed(model={"merge_system": off})) == []
    assert differences(SAVED, changed(model={"merge_system": True})) == [
        "model.merge_system: None at the checkpoint, True now"
    ]


def test_files_that_were_moved_are_the_same_files():
    moved = changed(
        model={"path": "/b/base.gguf"},
        evaluation={"data": "/b/held.jsonl"},
        grpo={"prompts": "/b/prompts.jsonl"},
    )
    assert differences(SAVED, moved) == []


def test_other_contents_are_named_by_the_key_of_their_file():
    now = identity(PARAMS, model="m2", files={"grpo.prompts": "aa", "evaluation.data": "xx"})
    assert differences(SAVED, now) == [
        "model.path: is another model than the checkpoint was made with",
        "evaluation.data: the file has other contents than at the checkpoint",
    ]


def test_evaluation_that_is_taken_away_is_a_difference():
    now = identity(
        PARAMS | {"evaluation": None}, model="m1", files={"grpo.prompts": FILES["grpo.prompts"]}
    )
    assert "evaluation.data: '/a/held.jsonl' at the checkpoint, None now" in differences(SAVED, now)


def test_another_number_of_updates_is_no_difference_but_is_told():
    longer = changed(grpo={"updates": 9})
    assert differences(SAVED, longer) == []
    assert lengthened(SAVED, longer) == (5, 9)


def test_the_digest_of_a_file_is_its_sha256(tmp_path):
    (tmp_path / "file").write_bytes(b"abc")
    assert digest(tmp_path / "file") == hashlib.sha256(b"abc").hexdigest()


SFT = PARAMS | {
    "run": {"algorithm": "sft"},
    "training": {"lr": 0.01, "epochs": 2},
    "lora": {"rank": 8, "init_adapter": "/a/start.gguf"},
    "sft": {"data": "/a/texts.jsonl"},
}
SFT_FILES = {"sft.data": "aa", "lora.init_adapter": "cc"}


def test_a_run_of_sft_is_as_long_as_its_epochs():
    before = identity(SFT, model="m1", files=SFT_FILES)
    longer = identity(SFT | {"training": {"lr": 0.01, "epochs": 5}}, model="m1", files=SFT_FILES)
    assert differences(before, longer) == []
    assert lengthened(before, longer) == (2, 5)
    assert length_key(before) == "training.epochs"


def test_epochs_are_not_the_length_of_other_runs():
    then, now = (changed(training={"epochs": n}) for n in (1, 2))
    assert differences(then, now) == ["training.epochs: 1 at the checkpoint, 2 now"]
    assert lengthened(then, now) is None


def test_a_file_that_only_one_of_the_runs_names_is_a_difference_of_keys():
    files = {"sft.data": "aa"}
    none = identity(SFT | {"lora": {"rank": 8, "init_adapter": None}}, model="m1", files=files)
    begun = identity(SFT, model="m1", files=SFT_FILES)
    assert differences(none, begun) == [
        "lora.init_adapter: None at the checkpoint, '/a/start.gguf' now"
    ]
    assert differences(begun, none) == [
        "lora.init_adapter: '/a/start.gguf' at the checkpoint, None now"
    ]
