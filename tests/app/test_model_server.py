"""What can be served, and what is said where it cannot."""

from __future__ import annotations

import pytest

from app.model_server import offer_of_files, offer_of_run, opened
from trainer.config import load_config
from trainer.errors import ConfigError, ModelError

RUN = """
[run]
algorithm = "sft"
[model]
path = "{model}"
device = "cpu"
{more}
[output]
path = "out/adapter.gguf"
[training]
threads = 3
[sft]
data = "texts.jsonl"
"""


@pytest.fixture
def run_of(tmp_path):
    """The configuration of a run, with more keys for its model."""

    def load(model, more=""):
        path = tmp_path / "run.toml"
        path.write_text(RUN.format(model=model, more=more))
        return load_config(path)

    return load


def test_a_model_alone_is_called_base(tiny):
    offer = offer_of_files(tiny, None)
    assert (offer.names, offer.base, offer.adapter) == (["base"], tiny, None)
    assert (offer.ctx, offer.variables, offer.remarks) == (256, {}, ())


def test_the_context_is_what_is_asked_for_or_what_a_conversation_commonly_needs(tiny, random_llama):
    assert offer_of_files(tiny, None, 100).ctx == 100
    long = random_llama(layers=1, context=100_000)
    assert offer_of_files(long, None).ctx == 4096
    assert offer_of_files(long, None, 50_000).ctx == 50_000
    with pytest.raises(ConfigError, match=r"ctx = 257 is longer than the 256 tokens that tiny"):
        offer_of_files(tiny, None, 257)


def test_an_adapter_has_to_be_there_and_to_fit(tiny, random_llama, random_adapter, tmp_path):
    assert offer_of_files(tiny, random_adapter(tiny)).names == ["base", "adapter"]
    with pytest.raises(ModelError, match=r"gone\.gguf: there is no such file. Name an adapter"):
        offer_of_files(tiny, tmp_path / "gone.gguf")
    with pytest.raises(ModelError, match=r"adapter-0\.gguf"):
        offer_of_files(tiny, random_adapter(random_llama(layers=1)))
    with pytest.raises(ModelError):
        offer_of_files(tiny, tiny)


def test_a_model_has_to_be_there_with_a_template(random_llama, tmp_path):
    with pytest.raises(ModelError, match=r"gone\.gguf"):
        offer_of_files(tmp_path / "gone.gguf", None)
    with pytest.raises(ModelError, match="no chat template"):
        offer_of_files(random_llama(layers=1, template=""), None)


def test_a_run_brings_its_adapter_threads_and_variables(random_llama, random_adapter, run_of):
    model = random_llama(layers=1, template="{{ style }}{{ messages[0].content }}")
    config = run_of(model, 'template_variables = { style = "x" }')
    with pytest.raises(
        ConfigError, match=r"run\.toml:9: .*adapter\.gguf: there is no such file yet"
    ):
        offer_of_run(config, None)
    config.output.path.parent.mkdir()
    config.output.path.write_bytes(random_adapter(model).read_bytes())
    offer = offer_of_run(config, None)
    assert (offer.base, offer.adapter) == (model, config.output.path)
    assert (offer.variables, offer.threads, offer.gpu) == ({"style": "x"}, 3, False)
    other = random_adapter(model, seed=1)
    assert offer_of_run(config, other).adapter == other


def test_a_run_that_writes_a_whole_model_has_it_beside_the_base(random_llama, run_of):
    model = random_llama(layers=1)
    config = run_of(model)
    whole = config.model_copy(update={"output": config.output.model_copy(update={"kind": "model"})})
    whole.output.path.parent.mkdir()
    whole.output.path.write_bytes(model.read_bytes())
    offer = offer_of_run(whole, None)
    assert offer.models == [("base", model, None), ("trained", whole.output.path, None)]


def test_where_prompts_differ_from_those_of_training_it_is_said(
    tiny, random_llama, random_adapter, run_of
):
    config = run_of(tiny, "merge_system = true")
    [remark] = offer_of_run(config, random_adapter(tiny)).remarks
    assert "does not merge system messages" in remark
    adds_bos = random_llama(layers=1, extra=(("tokenizer.ggml.add_bos_token", True),))
    [remark] = offer_of_files(adds_bos, None).remarks
    assert remark.startswith("The chat template writes no BOS, and neither does the server")


def test_other_machines_are_served_with_a_key_only(tiny):
    offer = offer_of_files(tiny, None)
    for host in ("0.0.0.0", "::", "192.168.1.7", "example.org"):
        with (
            pytest.raises(ConfigError, match=f"--host {host} is reached from other machines"),
            opened(offer, host=host, port=0, key=None),
        ):
            pass
