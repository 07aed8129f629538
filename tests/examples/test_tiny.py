import hashlib
import random
import re
import subprocess
import sys

import gguf
import llama_cpp
import numpy as np
import pytest
import torch

QUESTION = "What is 3 + 4?"


@pytest.fixture(scope="module")
def llama(tiny):
    """The file in llama.cpp, as its Python package opens any model."""
    model = llama_cpp.Llama(
        str(tiny), n_ctx=128, n_threads=1, logits_all=True, verbose=False, seed=1
    )
    yield model
    model.close()


@pytest.fixture(scope="module")
def decoder(make, tiny):
    """The file's weights in the decoder that was trained."""
    model = make.Decoder(make.Shape(), len(make.Vocabulary().tokens))
    tensors = gguf.GGUFReader(tiny).tensors
    model.load_state_dict({t.name: torch.tensor(np.array(t.data)).float() for t in tensors})
    return model


def sample(llama, question, **options):
    answer = llama.create_chat_completion(
        [{"role": "user", "content": question}],
        max_tokens=16,
        repeat_penalty=1.0,
        **options,
    )["choices"][0]
    return answer["message"]["content"], answer["finish_reason"]


def test_file_is_the_one_its_readme_describes(examples, tiny):
    readme = (examples / "tiny" / "README.md").read_text(encoding="utf-8")

    assert re.findall("sha256.*`([0-9a-f]{64})`", readme) == [
        hashlib.sha256(tiny.read_bytes()).hexdigest()
    ]
    assert tiny.stat().st_size <= 2 * 2**20


def test_accuracy_is_what_the_readme_says(examples, make, decoder):
    readme = (examples / "tiny" / "README.md").read_text(encoding="utf-8")

    [stated] = re.findall(r"with probability (0\.[0-9]+)", readme)
    assert make.accuracy(decoder, make.Vocabulary()) == pytest.approx(float(stated), abs=0.001)
    assert 0.3 <= float(stated) <= 0.5


def test_llama_cpp_computes_the_logits_of_the_trained_decoder(make, llama, decoder):
    vocabulary = make.Vocabulary()
    tokens = [*vocabulary.prompt(QUESTION), *vocabulary.encode("It is 7.")]

    llama.reset()
    llama.eval(tokens)
    native = llama.scores[: len(tokens)]
    with torch.no_grad():
        trained = decoder(torch.tensor([tokens]))[0].numpy()

    # llama.cpp rounds activations to F16 before it multiplies F16 matrices.
    np.testing.assert_allclose(native, trained, atol=0.01)
    np.testing.assert_array_equal(native.argmax(-1), trained.argmax(-1))


def test_llama_cpp_reads_text_into_the_ids_that_were_trained(make, llama):
    vocabulary = make.Vocabulary()
    chat = f"{make.TURN_START}user\n{QUESTION}{make.TURN_END}\n{make.TURN_START}assistant\n"

    prompt = llama.tokenize(chat.encode(), add_bos=True, special=True)

    assert prompt == vocabulary.prompt(QUESTION)
    assert llama.tokenize(b"user users", add_bos=False) == vocabulary.encode("user users")


@pytest.mark.parametrize("text", [QUESTION, "système 用户 🙂", "a\tb  c\n\n", "<|im_end|>", "it's"])
def test_text_survives_the_way_to_ids_and_back(llama, text):
    tokens = llama.tokenize(text.encode(), add_bos=False, special=False)

    assert llama.detokenize(tokens).decode() == text
    assert not any(llama_cpp.llama_vocab_is_eog(llama._model.vocab, token) for token in tokens)


def test_only_the_end_tokens_end_an_answer(make, llama):
    vocabulary = make.Vocabulary()

    ends = {
        vocabulary.tokens[token]
        for token in range(llama.n_vocab())
        if llama_cpp.llama_vocab_is_eog(llama._model.vocab, token)
    }

    assert ends == {make.TURN_END, make.DOCUMENT_END}
    assert llama.token_eos() == vocabulary.ids[make.TURN_END]


def test_greedy_answer_is_right_and_ends_by_itself(llama):
    assert sample(llama, QUESTION, temperature=0.0) == ("7", "stop")


def test_samples_end_by_themselves_and_differ(llama):
    answers = [
        sample(llama, QUESTION, temperature=1.0, top_p=1.0, top_k=0, min_p=0.0) for _ in range(60)
    ]

    finished = [text for text, reason in answers if reason == "stop"]
    assert len(finished) >= 58
    # Binomial, n = 60, p = 0.44: 10 to 43 is more than four standard deviations either way.
    assert 10 <= finished.count("7") <= 43
    assert len(set(finished)) >= 5


def test_training_answers_are_right_in_three_of_five_draws_and_reach_every_result(make):
    rng = random.Random(0)

    drawn = [make.draw_result(right, rng) for right in range(19) for _ in range(1000)]

    right = np.mean([drawn[at] == at // 1000 for at in range(len(drawn))])
    assert right == pytest.approx(0.6, abs=0.02)
    assert set(drawn) == set(range(19))


@pytest.mark.full
def test_recipe_makes_the_same_loadable_file_twice(examples, tmp_path):
    hashes = []
    for folder in (tmp_path / "first", tmp_path / "second"):
        folder.mkdir()
        command = [sys.executable, "make.py", "--steps", "60", "--out", str(folder)]
        done = subprocess.run(command, cwd=examples / "tiny", capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        hashes.append(re.findall("sha256 ([0-9a-f]{64})", done.stdout))

    assert hashes[0] == hashes[1]
    model = llama_cpp.Llama(str(tmp_path / "first" / "tiny.gguf"), n_ctx=64, verbose=False)
    assert model.metadata["general.license"] == "mit"
    model.close()


def test_prompts_are_those_of_the_recipe(examples, make, tmp_path):
    make.write_prompts(tmp_path / "prompts.jsonl", 64, random.Random(1))

    written = (tmp_path / "prompts.jsonl").read_bytes()
    assert written == (examples / "tiny" / "prompts.jsonl").read_bytes()
