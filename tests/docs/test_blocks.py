"""Every block of README and docs is what it looks like: TOML a configuration, or a part of one,
that loads; JSON lines that parse, and load where they are prompts or texts; Python that compiles.

Blocks of commands are the business of `test_commands.py` and `test_newcomer.py`.
"""

import json
import re
import tomllib
from pathlib import Path

import pytest
from doc_pages import ALL

from trainer.chat.dataset import read_conversations, read_prompts
from trainer.config import SftConfig, load_config, refuse_unavailable

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```toml\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks():
    """Each block as page:line and text."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in BLOCK.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            yield f"{page.relative_to(ROOT).as_posix()}:{line}", match.group(1)


BLOCKS = dict(blocks())
WHOLE = {where: text for where, text in BLOCKS.items() if "run" in tomllib.loads(text)}
PARTS = {where: text for where, text in BLOCKS.items() if where not in WHOLE}


def page(where):
    return where.partition(":")[0]


def loaded(folder, text):
    (folder / "base.gguf").touch()
    (folder / "prompts.jsonl").write_text('{"prompt": "2 + 2?"}\n', encoding="utf-8")
    (folder / "reward.py").touch()
    path = folder / "block.toml"
    path.write_text(text, encoding="utf-8")
    config = load_config(path)
    refuse_unavailable(config)
    return config


def flat(table, prefix=""):
    """A table as TOML in which every key is dotted, so that parts may follow a whole."""
    lines = {}
    for key, value in table.items():
        if isinstance(value, dict):
            lines |= flat(value, f"{prefix}{key}.")
        else:
            lines[f"{prefix}{key}"] = json.dumps(value, ensure_ascii=False)
    return lines


def test_the_pages_that_show_a_whole_file_are_these():
    assert sorted(map(page, WHOLE)) == [
        "README.md",
        "docs/configuration.md",
        "docs/grpo.md",
        "docs/ppo.md",
        "docs/quickstart.md",
        "docs/sft.md",
    ]


def test_the_fences_of_all_blocks_are_found():
    fences = sum(p.read_text(encoding="utf-8").count("```toml") for p in PAGES)
    assert len(BLOCKS) == fences


@pytest.mark.parametrize("where", WHOLE)
def test_whole_files_load(tmp_path, where):
    config = loaded(tmp_path, WHOLE[where])
    if isinstance(config, SftConfig):
        assert config.sft.data == tmp_path.resolve() / "texts.jsonl"
    else:
        assert config.rollout.prompts == tmp_path.resolve() / "prompts.jsonl"


def algorithms(where):
    """Those that a part is for. Of what both have, GRPO's spelling is shown."""
    if "ppo" in tomllib.loads(PARTS[where]):
        return ["ppo"]
    return ["grpo"] if page(where) == "docs/judge.md" else ["grpo", "ppo"]


@pytest.mark.parametrize(("where", "algorithm"), [(w, a) for w in PARTS for a in algorithms(w)])
def test_parts_load_in_a_whole_file(tmp_path, where, algorithm):
    part = flat(tomllib.loads(PARTS[where].replace("[grpo", f"[{algorithm}")))
    [base] = [text for at, text in WHOLE.items() if page(at) == f"docs/{algorithm}.md"]
    lines = flat(tomllib.loads(base))
    if "lora.init_adapter" in part:
        # It stands alone in its section.
        lines = {key: value for key, value in lines.items() if not key.startswith("lora.")}
    lines |= part
    config = loaded(tmp_path, "\n".join(f"{key} = {value}" for key, value in lines.items()))
    for key, value in part.items():
        section, _, name = key.rpartition(".")
        held = config
        for step in section.split("."):
            held = getattr(held, step)
            if isinstance(held, dict):
                break
        if isinstance(held, dict):
            assert held[name] == json.loads(value), key
            continue
        assert name in held.model_fields_set, key
        if not name.endswith(("path", "directory", "_dir", "prompts", "data", "adapter")):
            assert getattr(held, name) == json.loads(value), key


LANGUAGES = {"", "csv", "ini", "jinja", "json", "mermaid", "nginx", "python", "sh", "text", "toml"}


def of(language):
    return [pytest.param(b, id=b.where) for b in ALL if b.language == language]


def test_every_fence_is_read_as_a_block_of_a_language_that_is_known():
    fences = sum(
        len(re.findall(r"^```", p.read_text(encoding="utf-8"), re.MULTILINE)) // 2 for p in PAGES
    )
    assert sum(not b.page.startswith("examples") for b in ALL if b.is_fenced) == fences
    assert {b.language for b in ALL} - LANGUAGES == set()


@pytest.mark.parametrize("block", of("python"))
def test_python_compiles(block):
    compile(block.text, block.where, "exec")


@pytest.mark.parametrize("block", of("json"))
def test_json_lines_parse_and_load_where_they_are_prompts_or_texts(block, tmp_path):
    rows = [json.loads(line) for line in block.text.splitlines()]
    for row in rows:
        # Requests and records hold messages too, and are no lines of a prompt file.
        if not isinstance(row, dict) or set(row) & {"completion", "type", "prompt"}:
            continue
        if messages := row.get("messages"):
            path = tmp_path / "lines.jsonl"
            path.write_text(json.dumps(row), encoding="utf-8")
            answered = messages[-1]["role"] == "assistant"
            assert (read_conversations if answered else read_prompts)(path)
