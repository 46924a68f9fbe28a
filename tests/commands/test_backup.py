"""Backups of a running proxy, and their restoration."""

import hashlib
import io
import itertools
import json
import os
import tarfile
import threading
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from kvproxy.clients.client_keys import add_client, all_clients
from kvproxy.errors import InvalidRequest, NotFound, SettingsError
from kvproxy.installation import backup
from kvproxy.installation.backup import restore_backup, write_backup
from kvproxy.installation.data_folder import locked_folder
from kvproxy.settings import Settings, load_settings
from tests.commands.run import kvproxy
from tests.plain_upstream import ANSWER, run_plain_upstream
from tests.servers import run_proxy, until_stored


def settings(data: Path, url: str = "http://127.0.0.1:9") -> Settings:
    return load_settings(data=data, upstream=url, cache={"semantic": False})


def ask(url: str, number: int) -> httpx.Response:
    body = {"model": "plain", "messages": [{"role": "user", "content": f"question {number}"}]}
    return httpx.post(f"{url}/v1/chat/completions", json=body)


def test_a_backup_of_a_busy_proxy_has_all_earlier_responses(tmp_path: Path) -> None:
    archive, stop = tmp_path / "b.tar.gz", threading.Event()
    with run_plain_upstream() as upstream:
        with run_proxy(settings(tmp_path / "a", upstream)) as (url, services):
            for number in range(20):
                ask(url, number)
            until_stored(services)

            def load() -> None:
                numbers = itertools.count(20)
                while not stop.is_set():
                    ask(url, next(numbers))

            thread = threading.Thread(target=load)
            thread.start()
            done = kvproxy("backup", archive, "--data", tmp_path / "a")
            stop.set()
            thread.join()
            assert (done.returncode, "responses.db" in done.stdout) == (0, True)
            assert archive.stat().st_mode & 0o077 == 0
        (tmp_path / "b").mkdir()
        (tmp_path / "b" / "serve.lock").touch(mode=0o644)
        # Files of the database that is replaced would damage the restored one.
        (tmp_path / "b" / "responses.db-wal").write_bytes(b"old")
        done = kvproxy("restore", archive, "--data", tmp_path / "b")
        assert (done.returncode, "journal.db" in done.stdout) == (0, True), done.stderr
        with run_proxy(settings(tmp_path / "b", upstream)) as (url, services):
            assert all("; hit" in ask(url, number).headers["cache-status"] for number in range(20))
            assert ask(url, 3).json()["choices"][0]["message"]["content"] == ANSWER
    assert all(file.stat().st_mode & 0o077 == 0 for file in (tmp_path / "b").iterdir())
    assert "question 3" in kvproxy("cache", "ls", "--data", tmp_path / "b", "--limit", 0).stdout
    assert not list(tmp_path.glob(".kvproxy-backup-*"))
    assert not list((tmp_path / "b").glob(".restore-*"))


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    add_client(settings(tmp_path / "a"), "alice")
    (tmp_path / "a" / "kvproxy.toml").write_text("port = 8500\n")
    write_backup(settings(tmp_path / "a"), tmp_path / "a.tar")
    return tmp_path / "a.tar"


def test_clients_and_settings_are_restored_and_replaced_on_demand(tmp_path: Path, archive: Path) -> None:
    restored = restore_backup(settings(tmp_path / "b"), archive)
    assert set(restored.files) == {"clients.json", "changes.jsonl", "kvproxy.toml"}
    assert "add client alice" in (tmp_path / "b" / "changes.jsonl").read_text()
    assert [client.name for client in all_clients(settings(tmp_path / "b"))] == ["alice"]
    assert load_settings(data=tmp_path / "b").port == 8500
    target = settings(tmp_path / "c")
    add_client(target, "bob")
    with pytest.raises(InvalidRequest, match=r"clients\.json.* would be overwritten: give --force"):
        restore_backup(target, archive)
    assert [client.name for client in all_clients(target)] == ["bob"]
    restore_backup(target, archive, replace=True)
    assert [client.name for client in all_clients(target)] == ["alice"]


def test_a_failed_restore_leaves_no_new_folder(tmp_path: Path, archive: Path) -> None:
    short = tmp_path / "short.tgz"
    short.write_bytes(archive.read_bytes()[: archive.stat().st_size // 2])
    (tmp_path / "old").mkdir()
    for folder in ("new", "old"):
        with pytest.raises(InvalidRequest):
            restore_backup(settings(tmp_path / folder), short)
    assert not (tmp_path / "new").exists()
    assert (tmp_path / "old").is_dir()


def test_a_folder_in_use_is_not_restored(tmp_path: Path, archive: Path) -> None:
    (tmp_path / "b").mkdir()
    with locked_folder(tmp_path / "b", "http://127.0.0.1:1"):
        done = kvproxy("restore", archive, "--data", tmp_path / "b")
        missing = kvproxy("restore", tmp_path / "none.tar.gz", "--data", tmp_path / "b")
    assert (done.returncode, "stop it, or choose another folder" in done.stderr) == (2, True)
    assert (missing.returncode, missing.stderr) == (3, f"kvproxy: no file {tmp_path / 'none.tar.gz'}: check the path\n")


def test_a_restored_folder_names_no_command_as_its_proxy(tmp_path: Path, archive: Path) -> None:
    restore_backup(settings(tmp_path / "b"), archive)
    gone = kvproxy("blocks", "stats", "--data", tmp_path / "b", url="")
    assert "no proxy answers at http://127.0.0.1:8500: start one" in gone.stderr
    with locked_folder(tmp_path / "b", "kvproxy restore"):
        busy = kvproxy("restore", archive, "--data", tmp_path / "b")
    assert f"kvproxy: kvproxy restore of process {os.getpid()} uses the data folder" in busy.stderr


def rewritten(archive: Path, name: str, content: bytes | None) -> Path:
    """Replace a file of an archive, or remove it."""
    with tarfile.open(archive) as tar:
        found = {member.name: tar.extractfile(member).read() for member in tar.getmembers()}  # type: ignore[union-attr]
    found.pop(name, None)
    found |= {} if content is None else {name: content}
    with tarfile.open(archive, "w") as tar:
        for each, data in found.items():
            info = tarfile.TarInfo(each)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return archive


def test_a_backup_is_restored_by_the_tarfile_of_python_3_11_2(
    tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extract = tarfile.TarFile.extract

    def without_filters(tar: tarfile.TarFile, member: str, path: str | Path = "", set_attrs: bool = True) -> None:
        extract(tar, member, path, set_attrs)

    monkeypatch.setattr(tarfile.TarFile, "extract", without_filters)
    restore_backup(settings(tmp_path / "b"), archive)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("clients.json", b"[]", "is damaged"),
        ("clients.json", None, "is missing in the archive"),
        ("manifest.json", None, "is not a file of kvproxy backup"),
        ("manifest.json", b"[]", "is not a file of kvproxy backup"),
        (
            "manifest.json",
            json.dumps({"version": "1", "created": 1, "sha256": {"../x": "0" * 64}}).encode(),
            "unknown file '../x'",
        ),
    ],
)
def test_a_damaged_archive_changes_nothing(
    tmp_path: Path, archive: Path, name: str, content: bytes | None, message: str
) -> None:
    target = settings(tmp_path / "b")
    with pytest.raises(InvalidRequest, match=message):
        restore_backup(target, rewritten(archive, name, content))
    assert not target.data.exists()


def test_other_files_are_refused(tmp_path: Path) -> None:
    with_client = settings(tmp_path / "d")
    add_client(with_client, "alice")
    (tmp_path / "x.tar").write_bytes(b"no archive")
    with pytest.raises(InvalidRequest, match=r"cannot restore .*: give a file of kvproxy backup"):
        restore_backup(settings(tmp_path / "b"), tmp_path / "x.tar")
    folder = kvproxy("restore", tmp_path, "--data", tmp_path / "e")
    assert folder.stderr == f"kvproxy: cannot restore {tmp_path} (Is a directory): give a file of kvproxy backup\n"
    archive = kvproxy("restore", tmp_path / "x.tar", "--data", tmp_path / "e")
    assert "x.tar (it is no archive, or is damaged): give a file of kvproxy backup\n" in archive.stderr
    with pytest.raises(NotFound, match=r"no file .*: check the path"):
        restore_backup(settings(tmp_path / "b"), tmp_path / "y.tar")
    with pytest.raises(NotFound, match="nothing to save"):
        write_backup(settings(tmp_path / "c"), tmp_path / "c.tar")
    shared = load_settings(data=tmp_path / "c", upstream="http://127.0.0.1:9", store="postgresql://user:SECRET@h/db")
    with pytest.raises(NotFound, match="are in PostgreSQL: pg_dump -n kvproxy -n kvproxy_journal") as refused:
        write_backup(shared, tmp_path / "c.tar")
    assert "SECRET" not in refused.value.message
    with pytest.raises(InvalidRequest, match=r"its name must end in \.tar, \.tar\.gz or \.tgz"):
        write_backup(with_client, tmp_path / "c.zip")
    with pytest.raises(SettingsError, match="name a file in a writable folder"):
        write_backup(with_client, tmp_path / "missing" / "c.tar")


def test_a_backup_overwrites_another_one_on_demand_only(tmp_path: Path, archive: Path) -> None:
    add_client(settings(tmp_path / "a"), "bob")
    before = archive.read_bytes()
    done = kvproxy("backup", archive, "--data", tmp_path / "a")
    assert (done.returncode, archive.read_bytes()) == (2, before)
    assert "exists: name another file, or replace it with --force" in done.stderr
    assert kvproxy("backup", archive, "--data", tmp_path / "a", "--force").returncode == 0
    assert archive.read_bytes() != before


def test_a_backup_names_the_keys_that_it_lacks(tmp_path: Path) -> None:
    with run_plain_upstream() as upstream, run_proxy(settings(tmp_path / "a", upstream)) as (url, services):
        ask(url, 1)
        until_stored(services)
    key = {"KVPROXY_ENCRYPTION__KEY_ENV": "MY_KEYS", "MY_KEYS": "A" * 43 + "="}
    for environment, noted in (({}, False), (key, True)):
        done = kvproxy("backup", tmp_path / f"{noted}.tar", "--data", tmp_path / "a", **environment)
        assert done.returncode == 0, done.stderr
        assert ("the keys of encryption are not included" in done.stderr) is noted


def test_an_archive_that_does_not_fit_on_the_disk_is_refused_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = SimpleNamespace(free=100)
    monkeypatch.setattr("kvproxy.installation.backup.shutil.disk_usage", lambda folder: usage)
    archive = tmp_path / "large.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        manifest = json.dumps({"version": "1", "created": 1.0, "sha256": {"journal.db": "0" * 64}}).encode()
        for name, content in (("manifest.json", manifest), ("journal.db", b"0" * 1000)):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    with pytest.raises(InvalidRequest, match=r"journal\.db in the archive has 1,000 bytes, and 100 are free"):
        restore_backup(load_settings(data=tmp_path / "data"), archive)


def packed(folder: Path, manifest: bytes, files: dict[str, bytes]) -> Path:
    archive = folder / "packed.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name, content in {"manifest.json": manifest, **files}.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return archive


KEPT = b"[]"
GOOD = {"version": "1.0", "created": 1.0, "sha256": {"clients.json": hashlib.sha256(KEPT).hexdigest()}}


@pytest.mark.parametrize(
    "changed",
    [
        *({"version": each} for each in ("\x1b[31m", "", 1, None, "x" * 100, "1\n2")),
        *({"created": each} for each in ("x", None, True, -1, 1e300, [], "1e9")),
        *(
            {"sha256": each}
            for each in (["clients.json"], {"clients.json": 1}, {"clients.json": "x"}, "clients.json", None)
        ),
        {"created": float("nan")},
    ],
)
def test_a_manifest_is_checked_before_the_first_file_is_replaced(tmp_path: Path, changed: dict[str, object]) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "clients.json").write_bytes(b"before")
    archive = packed(tmp_path, json.dumps(GOOD | changed).encode(), {"clients.json": KEPT})
    done = kvproxy("restore", archive, "--data", data, "--force")
    assert (done.returncode, done.stdout) == (2, "")
    assert "is not a file of kvproxy backup" in done.stderr
    assert (data / "clients.json").read_bytes() == b"before"
    assert (
        kvproxy(
            "restore", packed(tmp_path, json.dumps(GOOD).encode(), {"clients.json": KEPT}), "--data", data, "--force"
        ).returncode
        == 0
    )
    assert (data / "clients.json").read_bytes() == KEPT


@pytest.mark.parametrize("manifest", [b"[" * 100_000, b"{}", b"null", b"\xff", b'{"version": 1}', b" " * 100_000])
def test_an_odd_manifest_is_refused(tmp_path: Path, manifest: bytes) -> None:
    done = kvproxy("restore", packed(tmp_path, manifest, {}), "--data", tmp_path / "data")
    assert (done.returncode, "is not a file of kvproxy backup" in done.stderr) == (2, True)


def test_an_archive_that_unpacks_to_far_more_is_refused_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup, "_FREE_BYTES", 2**20)
    bomb = b"0" * (64 * 2**20)
    manifest = GOOD | {"sha256": {"journal.db": hashlib.sha256(bomb).hexdigest()}}
    unpacked: list[str] = []
    monkeypatch.setattr(backup, "_digest", lambda path: unpacked.append(path.name))
    done = kvproxy(
        "restore", packed(tmp_path, json.dumps(manifest).encode(), {"journal.db": bomb}), "--data", tmp_path / "d"
    )
    assert done.returncode == 2
    assert "over 100 times its size" in done.stderr
    assert unpacked == []
