from pathlib import Path

import pytest

DEFAULT_TARGETS = ["q", "k", "v", "o", "ffn_up", "ffn_down", "ffn_gate"]


def test_sections_left_out_have_their_documented_defaults(load):
    config = load({"lora.rank": None, "lora.alpha": None})
    assert config.run.name == "run"
    assert config.run.verbose is False
    assert config.model.device == "auto"
    assert config.output.kind == "adapter"
    lora = config.lora
    assert (lora.rank, lora.alpha, lora.seed, lora.dtype) == (8, 16.0, 42, "f16")
    assert lora.targets == DEFAULT_TARGETS
    assert lora.init_adapter is None
    assert config.metrics.tensorboard_dir is None
    assert (config.reference, config.evaluation, config.checkpoint, config.observe) == (None,) * 4
    audit = config.audit
    assert (audit.enabled, audit.every, audit.max_words) == (True, 1, 200)
    assert audit.verbosity_limit == 0.3
    assert audit.sycophancy_limit == 0.2
    assert audit.repetition_limit == 0.15
    assert audit.openers


def test_optional_sections_have_their_documented_defaults(load):
    config = load({"evaluation.data": '"held.jsonl"', "checkpoint.": "", "observe.": ""})
    evaluation, checkpoint, observe = config.evaluation, config.checkpoint, config.observe
    assert (evaluation.every_iterations, evaluation.max_examples) == (1, None)
    assert (evaluation.patience, evaluation.min_delta) == (None, 0.0)
    assert (checkpoint.mode, checkpoint.every_steps, checkpoint.keep) == ("steps", 50, 3)
    assert (checkpoint.directory, checkpoint.resume_from) == (None, None)
    assert (observe.directory, observe.every, observe.max_text_chars) == (None, 1, 0)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("run.name", '"addition, third try"'),
        ("run.verbose", "true"),
        ("model.device", '"gpu"'),
        ("model.template_variables", "{}"),
        ("model.template_variables", '{ a = "x", b = 1, c = 2.5, d = true, e = [{ f = [] }] }'),
        ("model.merge_system", "true"),
        ("output.kind", '"model"'),
        ("lora.rank", "1"),
        ("lora.alpha", "1"),
        ("lora.seed", "0"),
        ("lora.seed", str(2**63 - 1)),
        ("lora.targets", '"auto"'),
        ("lora.targets", '["blk.*.attn_q.weight", "v"]'),
        ("lora.dtype", '"f32"'),
        ("reference.model", '"other.gguf"'),
        ("checkpoint.every_steps", "1"),
        ("checkpoint.keep", "1"),
        ("observe.every", "1"),
        ("observe.max_text_chars", "0"),
        ("metrics.tensorboard_dir", '"boards"'),
        ("audit.verbosity_limit", "0"),
        ("audit.verbosity_limit", "1"),
        ("audit.sycophancy_limit", "1.0"),
        ("audit.repetition_limit", "0.0"),
        ("audit.openers", "[]"),
        ("audit.max_words", "1"),
    ],
)
def test_values_inside_the_range_are_accepted(load, key, value):
    section, _, name = key.partition(".")
    assert name in getattr(load({key: value}), section).model_fields_set


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("run.algorithm", '"dpo"', '"grpo", "ppo" or "sft"; did you mean "ppo"?'),
        ("run.name", '" "', "text in quotes, not empty"),
        ("run.name", r'"two\nlines"', "one line of at most 255 printable characters"),
        ("run.name", f'"{"x" * 256}"', "one line of at most 255 printable characters"),
        ("run.verbose", "1", "true or false"),
        ("run.verbose", '"true"', "true or false, without quotes"),
        ("model.path", '""', "must not be empty"),
        ("model.path", "3", "a path, written as text in quotes"),
        ("model.path", r'"a\u0000b"', "no NUL character"),
        ("model.device", '"cuda"', '"auto", "cpu" or "gpu"'),
        ("output.kind", '"gguf"', '"adapter" or "model"'),
        ("lora.rank", "0", "an integer from 1 to 65536"),
        ("lora.rank", "8.0", "an integer from 1 to 65536"),
        ("lora.rank", "true", "an integer from 1 to 65536"),
        ("lora.alpha", "0", "a number from 1e-30 to 1e+30"),
        ("lora.alpha", "nan", "a number from 1e-30 to 1e+30"),
        ("lora.alpha", "inf", "a number from 1e-30 to 1e+30"),
        ("lora.alpha", "true", "a number from 1e-30 to 1e+30"),
        ("lora.alpha", '"16"', "a number from 1e-30 to 1e+30, without quotes"),
        ("lora.seed", "-1", "an integer from 0 to 9223372036854775807"),
        ("lora.seed", str(2**63), "an integer from 0 to 9223372036854775807"),
        ("lora.targets", "[]", "at least one target"),
        ("lora.targets", '"q"', "a list of texts"),
        ("lora.targets", '["q", 3]', "item 2 is not text"),
        ("lora.targets", '["auto"]', '"auto" alone'),
        ("lora.targets", '["q", "v", "q"]', "repeated: q"),
        ("lora.dtype", '"bf16"', '"f16" or "f32"'),
        ("checkpoint.mode", '"best"', '"steps", "best_eval" or "steps_and_best_eval"'),
        ("checkpoint.every_steps", "0", "an integer of at least 1"),
        ("checkpoint.keep", "0", "an integer of at least 1"),
        ("observe.every", "0", "an integer of at least 1"),
        ("observe.max_text_chars", "-1", "an integer of at least 0"),
        ("audit.enabled", '"yes"', "true or false"),
        ("audit.every", "0", "an integer of at least 1"),
        ("audit.max_words", "0", "an integer of at least 1"),
        ("audit.verbosity_limit", "1.01", "a number from 0 to 1"),
        ("audit.sycophancy_limit", "-0.1", "a number from 0 to 1"),
        ("audit.repetition_limit", "2", "a number from 0 to 1"),
        ("audit.openers", '"sure"', "a list of texts"),
    ],
)
def test_values_outside_the_range_are_refused(refusal, key, value, allowed):
    message = refusal({key: value})
    assert f"{key} = {value[:60]}" in message
    assert allowed in message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("every_iterations", "0"),
        ("max_examples", "0"),
        ("patience", "0"),
        ("min_delta", "-0.1"),
    ],
)
def test_evaluation_keys_below_their_range_are_refused(refusal, key, value):
    message = refusal({"evaluation.data": '"held.jsonl"', f"evaluation.{key}": value})
    assert f"evaluation.{key} = {value} must be" in message


def test_evaluation_needs_data(refusal):
    assert "evaluation.data is required" in refusal({"evaluation.every_iterations": "2"})


@pytest.mark.parametrize("key", ["rank", "alpha", "seed", "targets", "dtype"])
def test_init_adapter_excludes_the_other_lora_keys(load, refusal, key):
    alone = {"lora.rank": None, "lora.alpha": None, "lora.init_adapter": '"start.gguf"'}
    assert load(alone).lora.init_adapter.name == "start.gguf"
    value = {"rank": "8", "alpha": "16", "seed": "42", "targets": '"auto"', "dtype": '"f16"'}[key]
    message = refusal(alone | {f"lora.{key}": value})
    assert f"lora.{key} = {value} cannot stand beside lora.init_adapter" in message


def test_init_adapter_excludes_resuming(refusal):
    message = refusal(
        {
            "lora.rank": None,
            "lora.alpha": None,
            "lora.init_adapter": '"start.gguf"',
            "checkpoint.resume_from": '"saved"',
        }
    )
    assert 'checkpoint.resume_from = "saved" cannot stand beside lora.init_adapter' in message


@pytest.mark.parametrize("mode", ["best_eval", "steps_and_best_eval"])
def test_keeping_the_best_needs_evaluation(load, refusal, mode):
    changes = {"checkpoint.mode": f'"{mode}"'}
    assert "needs [evaluation]" in refusal(changes)
    assert load(changes | {"evaluation.data": '"held.jsonl"'}).checkpoint.mode == mode


def test_output_may_not_be_the_base_model(refusal):
    message = refusal({"output.path": '"./base.gguf"'})
    assert 'output.path = "./base.gguf" is the base model itself' in message


def test_paths_start_from_the_files_folder_and_home(load, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    config = load(
        {
            "model.path": '"../up/base.gguf"',
            "output.path": '"~/out.gguf"',
            "observe.directory": '"/var/observed"',
        }
    )
    root = Path(tmp_path).resolve()
    assert config.model.path == root.parent / "up" / "base.gguf"
    assert config.output.path == root / "home" / "out.gguf"
    assert config.observe.directory == Path("/var/observed").resolve()


def test_a_link_keeps_its_own_name(load, tmp_path):
    (tmp_path / "blob").write_bytes(b"")
    (tmp_path / "base.gguf").symlink_to(tmp_path / "blob")
    assert load().model.path.name == "base.gguf"


def test_a_configuration_cannot_be_changed(load):
    config = load()
    with pytest.raises(ValueError, match="frozen"):
        config.lora.rank = 4


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ('"enable_thinking"', "must be a table of variables, for example enable_thinking = false"),
        (
            '{ "enable-thinking" = true }',
            "names the variable 'enable-thinking': a name has letters",
        ),
        ("{ since = 2024-07-26 }", "gives since the value 2024-07-26: a variable is text"),
        ("{ far = [1.0, { x = inf }] }", "gives far the value inf: a variable is text, a number"),
    ],
)
def test_what_no_template_could_be_given_is_refused(refusal, value, words):
    assert words in refusal({"model.template_variables": value})


def test_variables_of_a_template_may_have_a_section_of_their_own(load):
    config = load({"model.template_variables.enable_thinking": "false"})
    assert config.model.template_variables == {"enable_thinking": False}
