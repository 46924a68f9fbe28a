"""The checks of `doctor` for keys, encrypted data, and weights; no pickle is ever read."""

import base64
import json
import pickle
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from kvproxy import demo
from kvproxy.engine.models.loader import load_model
from kvproxy.errors import KvproxyError, ModelUnsupported
from kvproxy.index.errors import EmbedderError, VerifierError
from kvproxy.index.models.embedder import load_embedder
from kvproxy.index.models.minilm import embedder, weights
from kvproxy.index.models.verifier import built_in, load_verifier
from kvproxy.index.store import open_store
from kvproxy.installation.checks.all_checks import all_checks, check_encryption, check_weights
from kvproxy.installation.checks.servers import CheckWarning
from kvproxy.library import open_cache
from kvproxy.privacy.encryption import Cipher
from kvproxy.settings import Settings, load_settings
from kvproxy.tiers.local_stores import DiskStore
from tests.commands.run import kvproxy, result
from tests.index.doubles import HashEmbedder
from tests.index.entries import make_entry

KEY, OLD = b"n" * 32, b"o" * 32


def with_keys(folder: Path, *keys: bytes, **more: Any) -> Settings:
    file = folder / "keys"
    file.write_text("\n".join(base64.b64encode(key).decode() for key in keys))
    file.chmod(0o600)
    return load_settings(data=folder, encryption={"key_file": file}, **more)


def test_doctor_tells_what_is_encrypted_and_what_is_not(tmp_path: Path) -> None:
    assert check_encryption(load_settings(data=tmp_path)).startswith("off")
    name = Cipher([KEY]).name
    assert check_encryption(with_keys(tmp_path, KEY)).startswith(f"the key {name} encrypts texts; vectors")
    store = open_store(tmp_path / "responses.db")
    store.put(make_entry())
    store.close()
    with pytest.raises(KvproxyError, match="1 responses are stored unencrypted: kvproxy cache encrypt"):
        check_encryption(with_keys(tmp_path, OLD))
    keys = {"KVPROXY_ENCRYPTION__KEY_FILE": str(tmp_path / "keys")}
    assert result("cache", "encrypt", "--data", tmp_path, **keys) == {"encrypted": 1}
    assert "1 responses use an older key" in check_encryption(with_keys(tmp_path, KEY, OLD))
    with pytest.raises(KvproxyError, match="is not among the keys"):
        check_encryption(with_keys(tmp_path, KEY))
    (tmp_path / "keys").chmod(0o640)
    with pytest.raises(KvproxyError, match=r"other users can read the keys in .*: chmod 600"):
        check_encryption(load_settings(data=tmp_path, encryption={"key_file": tmp_path / "keys"}))


@pytest.mark.parametrize("build", ["faiss-gpu", "faiss-gpu-cuvs", "faiss-gpu-cu12"])
def test_doctor_finds_a_second_build_of_faiss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: str) -> None:
    check = dict(all_checks(load_settings(data=tmp_path), "http://127.0.0.1:1"))["faiss"]
    assert str(check()).startswith("faiss-cpu ")
    version = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "1.15.1" if name == build else version(name))
    with pytest.raises(KvproxyError, match=f"^faiss-cpu and {build} overwrite each other"):
        check()


def test_doctor_finds_chunks_in_clear(tmp_path: Path) -> None:
    settings = with_keys(tmp_path, KEY, tiers={"disk": tmp_path / "chunks"})
    chunks = DiskStore(tmp_path / "chunks", 1 << 20)
    chunks.put("model-aa", Cipher([KEY]).encrypt(b"chunk", b"model-aa"))
    assert check_encryption(settings).startswith("the key")
    chunks.put("model-bb", b"kvchunk\n and tokens")
    with pytest.raises(KvproxyError, match=r"1 chunks in .* are unencrypted: kvproxy blocks clear-tier disk"):
        check_encryption(settings)


def test_the_command_needs_a_key_and_a_store(tmp_path: Path) -> None:
    done = kvproxy("cache", "encrypt", "--data", tmp_path)
    assert (done.returncode, "set encryption.key_file" in done.stderr) == (2, True)
    with_keys(tmp_path, KEY)
    done = kvproxy("cache", "encrypt", "--data", tmp_path, KVPROXY_ENCRYPTION__KEY_FILE=str(tmp_path / "keys"))
    assert (done.returncode, "no store" in done.stderr) == (3, True)


def test_exports_are_in_clear_and_imports_are_encrypted(tmp_path: Path) -> None:
    with_keys(tmp_path, KEY)
    keys = {"KVPROXY_ENCRYPTION__KEY_FILE": str(tmp_path / "keys")}
    for name in ("one.db", "two.db"):
        open_store(tmp_path / name, cipher=Cipher([KEY])).close()
    choice = {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
    response = json.dumps({"object": "chat.completion", "choices": [choice]}).encode()
    line = make_entry("my secret", key="k", response=response).export_line()
    (tmp_path / "in.jsonl").write_bytes(line)
    assert result("cache", "import", tmp_path / "in.jsonl", "--store", tmp_path / "one.db", **keys)["imported"] == 1
    assert b"my secret" not in (tmp_path / "one.db").read_bytes()
    assert [entry["prompt"] for entry in result("cache", "ls", "--store", tmp_path / "one.db", **keys)] == ["my secret"]
    result("cache", "export", tmp_path / "out.jsonl", "--store", tmp_path / "one.db", **keys)
    assert (tmp_path / "out.jsonl").read_bytes() == line
    done = kvproxy("cache", "ls", "--store", tmp_path / "one.db")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "which is not among the keys" in done.stderr


def changed(path: Path, folder: Path) -> Path:
    """A copy with one byte of its weights changed."""
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    (folder / path.name).write_bytes(data)
    return folder / path.name


def test_a_changed_demo_model_is_refused_at_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in demo.model_path().iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    changed(demo.model_path() / "model.safetensors", tmp_path)
    monkeypatch.setattr(demo, "model_path", lambda: tmp_path)
    with pytest.raises(ModelUnsupported, match=r"is not the demo model's .*install kvproxy again"):
        load_model("demo")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelUnsupported, match="install kvproxy again"):
        load_model("demo")


def test_other_changed_weights_are_refused_at_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "released ones" in check_weights("default")
    assert "released ones" in check_weights("multilingual")
    monkeypatch.setattr(built_in, "ADAPTER", changed(built_in.ADAPTER, tmp_path))
    with pytest.raises(VerifierError, match="is not the released file"):
        load_verifier()
    monkeypatch.setattr(embedder, "RANGES", changed(embedder.RANGES, tmp_path))
    with pytest.raises(EmbedderError, match="is not the released file"):
        embedder.MiniLMEmbedder(int8=True)


def test_torch_is_required_by_a_model_of_the_user_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for model, error in (("demo", CheckWarning), ("org/model", ModuleNotFoundError)):
        checks = dict(all_checks(load_settings(data=tmp_path, model=model), "http://127.0.0.1:1"))
        with pytest.raises(error):
            checks["torch"]()


def test_doctor_warns_of_an_open_folder_that_serve_makes_private(tmp_path: Path) -> None:
    check = dict(all_checks(load_settings(data=tmp_path), "http://127.0.0.1:1"))["data"]
    tmp_path.chmod(0o755)
    with pytest.raises(CheckWarning, match="kvproxy serve makes it private, or chmod go= it now"):
        check()
    (tmp_path / "responses.db").touch()
    (tmp_path / "responses.db").chmod(0o644)
    with pytest.raises(KvproxyError, match=r"can read .*responses\.db, which contains prompts: chmod go="):
        check()
    tmp_path.chmod(0o1777)
    (tmp_path / "responses.db").unlink()
    with pytest.raises(KvproxyError, match="other users can read"):
        check()
    tmp_path.chmod(0o700)
    assert check() == f"{tmp_path}, private"


def test_doctor_finds_a_changed_embedder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check = dict(all_checks(load_settings(data=tmp_path), "http://127.0.0.1:1"))["embedder"]
    monkeypatch.setattr("kvproxy.index.models.embedder.load_embedder", lambda *arguments: HashEmbedder(32))
    assert check() == "default, 32 dimensions"
    with open_cache(tmp_path / "responses.db", embedder=HashEmbedder(32)) as cache:
        cache.set("What is a block?", "A list.")
    assert check() == "default, 32 dimensions"
    monkeypatch.setattr("kvproxy.index.models.embedder.load_embedder", lambda *arguments: HashEmbedder(64))
    with pytest.raises(KvproxyError, match="'hash' has 64 dimensions, but its stored vectors have 32"):
        check()


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({}, "en: verifier and guards; others: exact hits only"),
        (
            {"embedder": "multilingual"},
            "en: verifier and guards; de, es, fr, it, ja, nl, pt, zh: equal words, apart from small ones; others: equal words",
        ),
        (
            {"embedder": "my-model", "cache": {"languages": ["de", "fr"]}},
            "de, fr: embedder my-model; others: exact hits only",
        ),
    ],
)
def test_doctor_shows_how_languages_are_matched(settings: dict[str, Any], shown: str) -> None:
    checks = dict(all_checks(load_settings(upstreams=["http://127.0.0.1:9"], **settings), "http://127.0.0.1:9"))
    assert checks["languages"]() == shown


class Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._path,)


def test_a_pickle_is_refused_and_never_read(tmp_path: Path) -> None:
    for name in ("model.pt", "2_Dense/pytorch_model.bin"):
        folder = tmp_path / f"model of {name.replace('/', ' ')}"
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_bytes(pickle.dumps(Trap(tmp_path / "ran")))
        (folder / "config.json").write_text(
            json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1})
        )
        for load in (load_embedder, load_verifier):
            with pytest.raises((EmbedderError, VerifierError), match="is a pickle, which runs code when it is read"):
                load(str(folder))
        with pytest.raises(ModelUnsupported, match="cannot load model"):
            load_model(str(folder))
    assert not (tmp_path / "ran").exists()


def test_safetensors_beside_a_pickle_are_fine(tmp_path: Path) -> None:
    for name in ("pytorch_model.bin", "model.safetensors", "training_args.bin"):
        (tmp_path / name).touch()
    weights.check_model_source(str(tmp_path))
    weights.check_model_source("sentence-transformers/no-such-id")


@pytest.mark.parametrize("name", ["", "/nope", "./nope", "a/b/c", "~/model"])
def test_a_missing_folder_is_named_without_an_error_of_the_hugging_face_hub(name: str) -> None:
    for load in (load_embedder, load_verifier):
        with pytest.raises((EmbedderError, VerifierError), match=f"{name}' \\(there is no such folder\\)"):
            load(name)
