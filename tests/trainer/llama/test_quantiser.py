"""llama.cpp's quantiser in its own process."""

from __future__ import annotations

import signal

import llama_cpp
import pytest

from trainer.errors import ModelError
from trainer.gguf.file import GgufFile
from trainer.llama import quantiser
from trainer.llama.quantiser import FILE_TYPES, Fallback, QuantiserJob, quantise

ROWS_OF_256 = {"width": 256, "ff_width": 256, "heads": 4, "kv_heads": 2, "head_size": 64}


def test_the_types_are_llama_cpps():
    assert FILE_TYPES["f32"] == llama_cpp.LLAMA_FTYPE_ALL_F32
    assert FILE_TYPES["q4_k_m"] == llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_M
    assert {"f16", "bf16", "q8_0", "iq4_xs", "q2_k"} <= FILE_TYPES.keys()
    assert "guessed" not in FILE_TYPES


def test_a_model_is_written_in_another_type_and_told_step_by_step(random_llama, tmp_path):
    steps = []
    job = QuantiserJob(random_llama(), tmp_path / "m.gguf", FILE_TYPES["q8_0"], 1)
    done = quantise(job, lambda *step: steps.append(step))
    made = GgufFile(job.target)
    assert steps == [(n, 21) for n in range(1, 22)]
    assert made.type_counts() == {"Q8_0": 16, "F32": 5}
    size = sum(t.size for t in made.tensors.values())
    assert done.tensor_bytes == pytest.approx(size, abs=2**20 / 100)
    assert (done.fallbacks, done.needs_importance) == ((), False)


def test_without_a_target_nothing_is_written_and_all_is_said(random_llama, tmp_path):
    base = random_llama()
    before = base.read_bytes()
    done = quantise(QuantiserJob(base, None, FILE_TYPES["q4_k_m"], 1))
    assert base.read_bytes() == before
    assert Fallback("blk.0.attn_q.weight", 64, "q4_K", "q5_0") in done.fallbacks
    assert done.tensor_bytes < base.stat().st_size / 3


def test_the_lowest_types_want_to_know_which_inputs_matter(random_model):
    base = random_model("llama", **ROWS_OF_256)
    assert quantise(QuantiserJob(base, None, FILE_TYPES["iq2_xxs"], 1)).needs_importance


def test_single_tensors_get_types_of_their_own_by_their_whole_name(random_llama, tmp_path):
    """A name is no pattern: neither a dot nor the end of a longer name fits by chance."""
    kinds = {
        "blk.0.attn_q.weight": llama_cpp.GGML_TYPE_F32,
        "blk.1.attn_q.weight": llama_cpp.GGML_TYPE_F16,
        "k.0.attn_k.weight": llama_cpp.GGML_TYPE_F16,
        "output.weight": llama_cpp.GGML_TYPE_Q5_1,
    }
    job = QuantiserJob(random_llama(), tmp_path / "m.gguf", FILE_TYPES["q8_0"], 1, kinds, 15)
    quantise(job)
    made = GgufFile(job.target)
    assert made.tensors["blk.0.attn_q.weight"].type_name == "F32"
    assert made.tensors["blk.1.attn_q.weight"].type_name == "F16"
    assert made.tensors["blk.0.attn_k.weight"].type_name == "Q8_0"
    assert made.tensors["output.weight"].type_name == "Q5_1"
    assert made.get("general.file_type", int) == 15


@pytest.mark.parametrize(
    "name", ["ü \N{SNOWMAN}.gguf", "with 'quotes' and \\.gguf", "b\udcff.gguf"]
)
def test_any_name_of_a_file_will_do(random_llama, tmp_path, name):
    quantise(QuantiserJob(random_llama(), tmp_path / name, FILE_TYPES["f16"], 1))
    assert GgufFile(tmp_path / name).tensors


def test_what_llama_cpp_refuses_is_quoted(random_llama, tmp_path):
    with pytest.raises(ModelError, match=r"llama\.cpp says: .*invalid output file type 39"):
        quantise(QuantiserJob(random_llama(), tmp_path / "m", FILE_TYPES["nvfp4"], 1))
    with pytest.raises(ModelError, match=r"absent\.gguf"):
        quantise(QuantiserJob(tmp_path / "absent.gguf", tmp_path / "m", FILE_TYPES["f16"], 1))
    assert not (tmp_path / "m").exists()


@pytest.fixture
def processes(monkeypatch):
    """Those that the test has started."""
    seen = []
    started = quantiser.subprocess.Popen

    def start(*arguments, **options):
        seen.append(started(*arguments, **options))
        return seen[-1]

    monkeypatch.setattr(quantiser.subprocess, "Popen", start)
    return seen


def test_a_process_that_dies_is_an_error_and_not_the_end_of_this_one(
    random_llama, tmp_path, processes
):
    """As an assertion of llama.cpp's would end it."""
    seen = []

    def kill(done, total):
        seen.append(done)
        processes[0].send_signal(signal.SIGABRT)

    base = random_llama(layers=30)
    with pytest.raises(ModelError, match="its process ended with status -6"):
        quantise(QuantiserJob(base, tmp_path / "m.gguf", FILE_TYPES["q2_k"], 1), kill)
    assert len(seen) < 20 + 30 * 9


def test_an_interrupt_ends_the_process(random_llama, tmp_path, processes):
    def interrupt(done, total):
        raise KeyboardInterrupt

    job = QuantiserJob(random_llama(layers=30), tmp_path / "m.gguf", FILE_TYPES["q8_0"], 1)
    with pytest.raises(KeyboardInterrupt):
        quantise(job, interrupt)
    assert processes[0].poll() is not None
