import json
import os
import pickle
import re
from pathlib import Path

import pytest

from trainer.config import GrpoConfig, Overrides, load_config, resolved_params
from trainer.errors import ConfigError

ROOT = Path(__file__).parents[3]


def refused(path: Path, overrides: Overrides | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    assert caught.value.exit_status == 2
    return str(caught.value)


def test_the_configuration_knows_its_file(load, tmp_path):
    config = load()
    lines = config.source.read_text().splitlines()
    assert config.source == tmp_path.resolve() / "run.toml"
    assert config.folder == tmp_path.resolve()
    assert config.where("grpo.group_size").endswith(f"run.toml:{lines.index('group_size = 8') + 1}")
    assert config.where("grpo.baseline").endswith(f"run.toml:{lines.index('[grpo]') + 1}")
    assert config.where("observe.every").endswith("run.toml")


def test_a_relative_path_is_shown_as_given(write, text_of, monkeypatch, tmp_path):
    write(text_of["grpo"].replace("rank = 8", "rank = 0"), "mine.toml")
    monkeypatch.chdir(tmp_path)
    assert refused(Path("mine.toml")) == (
        "mine.toml:11: lora.rank = 0 must be an integer from 1 to 65536."
    )


def test_the_name_is_the_files_own_unless_given(write, text_of):
    path = write(text_of["grpo"], "my first.run.toml")
    assert load_config(path).run.name == "my first.run"
    path = write(text_of["grpo"].replace("[run]", '[run]\nname = "chosen"'), "other.toml")
    assert load_config(path).run.name == "chosen"


def test_overrides_replace_the_file_and_start_from_the_working_folder(load, monkeypatch, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    config = load(
        overrides=Overrides(model=Path("m.gguf"), output=Path("../o.gguf"), name="by hand")
    )
    assert config.model.path == elsewhere.resolve() / "m.gguf"
    assert config.output.path == tmp_path.resolve() / "o.gguf"
    assert config.run.name == "by hand"
    assert config.where("model.path") == "--model"


def test_the_model_may_come_from_the_command_line_alone(load, refusal):
    changes = {"model.path": None}
    assert "model.path is required" in refusal(changes)
    config = load(changes, overrides=Overrides(model=Path("m.gguf")))
    assert config.model.path.name == "m.gguf"


def test_a_bad_override_is_reported_with_its_option(write, text_of):
    message = refused(write(text_of["grpo"]), Overrides(name="\n"))
    assert message == "--name: run.name must be text in quotes, not empty."


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("grpo.updates", 10**20, "is out of range: whole numbers go up to 9223372036854775807."),
        ("training.lr", 1e300, "is out of range: numbers go up to 3.4e+38."),
    ],
)
def test_a_number_that_nothing_could_hold_is_refused(refusal, key, value, words):
    message = refusal({key: value})
    assert f"{key} = " in message
    assert message.endswith(words)


def test_all_faults_are_reported_in_the_order_of_the_lines(refusal):
    message = refusal(
        {
            "lora.rank": "true",
            "lora.lora_alpha": "3",
            "training.ctx": "0",
            "grpo.group_size": '"8"',
            "grpo.sampling.top_p": "0.9",
            "observe.every": "0",
        }
    )
    subjects = [text.split(": ")[1].split(" ")[0] for text in message.split("\n\n")]
    assert subjects == [
        "lora.rank",
        "lora.lora_alpha",
        "training.ctx",
        "grpo.group_size",
        "grpo.sampling.top_p",
        "observe.every",
    ]
    lines = [int(text.split("run.toml:")[1].split(":")[0]) for text in message.split("\n\n")]
    assert lines == sorted(lines)


def test_rules_of_different_sections_are_reported_together(refusal):
    message = refusal({"training.shared_prefix_fanout": "9", "grpo.sampling.max_new_tokens": "512"})
    assert len(message.split("\n\n")) == 2


@pytest.mark.parametrize(
    ("changes", "hint"),
    [
        ({"grpo.learning_rte": "1e-5"}, "did you mean training.lr?"),
        ({"grpo.learning_rate": "1e-5"}, "did you mean training.lr?"),
        ({"grpo.lora_r": "8"}, "did you mean lora.rank?"),
        ({"grpo.lr": "1e-5"}, "lr belongs to [training]"),
        ({"evaluation.every": "3"}, "did you mean evaluation.every_iterations?"),
        ({"lora.lr": "1e-5"}, "lr belongs to [training]; [lora] has rank, alpha, seed, targets"),
        ({"training.temperature": "1"}, "temperature belongs to [grpo.sampling] or [grpo.judge]"),
        ({"grpo.gruop_size": "8"}, "did you mean grpo.group_size?"),
        ({"grpo.clip_range": "0.2"}, "did you mean grpo.clip_range_low or grpo.clip_range_high?"),
        ({"grpo.sampling.max_tokens": "9"}, "did you mean grpo.sampling.max_new_tokens?"),
        ({"grpo.num_generations": "9"}, "did you mean grpo.group_size?"),
        ({"lora.max_new_token": "9"}, "did you mean grpo.sampling.max_new_tokens?"),
        ({"lora.zzz": "9"}, "[lora] has rank, alpha, seed, targets, dtype, init_adapter"),
        ({"grpo.samplin.seed": "1"}, "did you mean [grpo.sampling]?"),
        ({"traning.lr": "1"}, "did you mean [training]?"),
        ({"sampling.seed": "1"}, "sampling belongs to [grpo]"),
    ],
)
def test_an_unknown_key_brings_the_nearest_one(refusal, changes, hint):
    assert hint in refusal(changes)


def test_a_misspelt_required_key_is_one_mistake(write, text_of):
    text = text_of["grpo"]
    assert "group_size" in text
    message = refused(write(text.replace("group_size", "gruop_size")))
    assert "did you mean grpo.group_size?" in message
    assert "is required" not in message


def test_keys_above_the_first_section_are_placed(write, text_of):
    message = refused(write("lr = 1\nsource = 2\n" + text_of["grpo"]))
    first, second = message.split("\n\n")
    assert ":1: lr = 1 is not a section or key of the file; lr belongs to [training]" in first
    assert ":2: source = 2 is not a section or key of the file" in second


@pytest.mark.parametrize("section", ["ppo", "sft"])
def test_sections_of_another_algorithm_are_refused(refusal, section):
    message = refusal({f"{section}.updates": "3"})
    assert f'[{section}] does not belong to a run with algorithm = "grpo"' in message


def test_without_a_known_algorithm_the_rest_is_still_judged(refusal):
    message = refusal({"run.algorithm": '"gpro"', "lora.rank": "0"})
    algorithm, rank = message.split("\n\n")
    assert 'must be "grpo", "ppo" or "sft"; did you mean "grpo"?' in algorithm
    assert "lora.rank = 0" in rank
    message = refusal({"run.algorithm": '"dpo"', "ppo.clip_range": "3"}, "ppo")
    assert "ppo.clip_range = 3" in message


def test_an_empty_file_lists_what_every_run_needs(write):
    message = refused(write(""))
    subjects = [text.split(": ")[1].split(" ")[0] for text in message.split("\n\n")]
    assert subjects == ["run.algorithm", "model.path", "output.path"]


def test_a_missing_section_lists_its_keys(write, text_of):
    without = text_of["grpo"].partition("[grpo.sampling]")[0]
    message = refused(write(without))
    assert "[grpo.sampling] with temperature, top_p, max_new_tokens, seed" in message
    message = refused(write(text_of["grpo"].partition("[grpo]")[0]))
    assert "grpo is missing: add the section [grpo] with prompts, " in message


def test_sections_have_to_be_single_tables(write, text_of):
    text = text_of["grpo"].replace("[lora]", "[[lora]]").replace("[grpo.sampling]", "[x]")
    message = refused(write("evaluation = 3\nobserve = [1]\n" + text))
    assert ":1: evaluation = 3 must be one section, written as [evaluation]" in message
    assert ":2: observe = [1] must be one section" in message
    assert ":12: [lora] must be one section" in message


@pytest.mark.parametrize(
    ("broken", "line", "words"),
    [
        ("[run\n", 1, "not valid TOML"),
        ("[run]\nalgorithm = grpo\n", 2, "text is written in quotes"),
        ("[run]\n\n\nname = \n", 4, "text is written in quotes"),
        ("[run]\n[model]\n[run]\n", 3, "cannot declare [run] twice (the section is there twice"),
        ("[grpo.judge]\n[grpo.judge]\n", 2, "cannot declare [grpo.judge] twice"),
        ("[run]\nname = 'a'\nname = 'b'\n", 3, "the key is there twice"),
        ('[model]\npath = "C:\\models\\a"\n', 2, "between single quotes"),
        ("[run]\nname = 'a\n", 2, "not valid TOML"),
        ("[run]\nx = [1,\n2\n\n", 3, "unclosed array"),
        ("[run]\nx = [1,\n\n", 2, "a list is not closed"),
        ("[run]\nx = 2020-02-30\n", 2, "nvalid date"),
    ],
)
def test_what_is_not_toml_is_reported_with_its_line(write, broken, line, words):
    path = write(broken)
    message = refused(path)
    assert message.startswith(f"{path}:{line}: ")
    assert words in message
    assert "\n" not in message


def test_a_file_that_cannot_be_read_is_reported(tmp_path):
    assert "does not exist" in refused(tmp_path / "none.toml")
    assert "is a folder" in refused(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert "is not a regular file" in refused(tmp_path / "pipe")
    model = tmp_path / "model.gguf"
    with model.open("wb") as file:
        file.truncate(1 << 21)
    assert "too many for a configuration" in refused(model)


def test_what_is_not_utf8_is_reported_with_its_line(tmp_path):
    path = tmp_path / "latin.toml"
    path.write_bytes("[run]\nname = 'café'\n".encode("latin-1"))
    assert refused(path).startswith(f"{path}:2: byte 0xe9 is not valid UTF-8")


def test_values_that_are_too_much_are_reported(write):
    assert "nests values too deeply" in refused(write("x = " + "[" * 5000 + "]" * 5000))
    assert "cannot be read" in refused(write("x = " + "1" * 5000))


def test_a_byte_order_mark_and_windows_line_ends_are_accepted(tmp_path, text_of):
    path = tmp_path / "windows.toml"
    text = text_of["grpo"].replace("\n", "\r\n")
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert isinstance(load_config(path), GrpoConfig)
    path.write_bytes(text.replace("rank = 8", "rank = 0").encode())
    assert f"{path}:11: lora.rank = 0 must be" in refused(path)


@pytest.mark.parametrize("base", ["grpo", "ppo", "sft"])
def test_resolved_params_are_json_with_explicit_nulls(load, base):
    params = resolved_params(load(base=base))
    assert json.loads(json.dumps(params)) == params
    assert params["training"]["threads"] is None
    assert params["lora"]["init_adapter"] is None
    assert params["evaluation"] is None
    assert Path(params["model"]["path"]).is_absolute()
    assert params[base]


def test_a_configuration_can_be_sent_to_another_process(load):
    config = load()
    copy = pickle.loads(pickle.dumps(config))
    assert copy == config
    assert copy.where("lora.rank") == config.where("lora.rank")


def test_every_configuration_in_the_examples_loads():
    for path in sorted((ROOT / "examples").rglob("*.toml")):
        load_config(path)


def test_a_key_of_very_many_parts_is_refused_at_once(write, text_of):
    long = ".".join("a" * 100_000)
    for line in (f"{long} = 1", f"[{long}]", f"b = {{ {long} = 1 }}"):
        path = write(text_of["grpo"] + f"\n{line}\n", "long.toml")
        assert "a key has more than 50 parts" in refused(path)


@pytest.mark.parametrize("setting", ["alpha = 1e-40", "alpha = 1e31", "rank = 65537"])
def test_an_adapter_that_f32_cannot_hold_is_refused(write, text_of, setting):
    key = setting.split()[0]
    path = write(re.sub(rf"(?m)^{key} = .*$", setting, text_of["grpo"]), "adapter.toml")
    assert f"lora.{key} = " in refused(path)
