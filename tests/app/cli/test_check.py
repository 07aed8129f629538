from __future__ import annotations


def test_a_run_that_can_work_with_another_model_gets_a_list_and_status_0(
    retrograd, project, config_text, random_llama
):
    config = project(config_text.replace("base.gguf", "absent.gguf"), answer="5")
    done = retrograd("check", config, "--model", random_llama(), "--sample", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "prompts" in done.stdout
    assert "reward spread" in done.stdout
    assert "This run can start: 0 errors" in done.stdout
    assert done.stderr == ""


def test_a_run_that_cannot_work_says_why_with_status_2(retrograd, project, config_text, tmp_path):
    done = retrograd("check", project(config_text.replace("base.gguf", "absent.gguf")))
    assert done.returncode == 2
    assert str(tmp_path / "absent.gguf") in done.stdout, "a path is not broken over two lines"
    assert "This run cannot work as it is: 1 error, 1 warning." in done.stdout
