"""`cache export FILE`: through links, into pipes and devices, and never in their place; a stalled client blocks no other."""

import contextlib
import os
import socket
import stat
import threading
from pathlib import Path

import httpx
import pytest

from kvproxy.index.store import open_store
from tests.commands.run import kvproxy
from tests.faults.proxies import ask, stored
from tests.index.entries import make_entry
from tests.plain_upstream import run_plain_upstream
from tests.servers import run_front


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "r.db"
    opened = open_store(path)
    opened.put(make_entry("one"))
    opened.put(make_entry("two"))
    opened.close()
    return path


def export(store: Path, file: object) -> int:
    return kvproxy("cache", "export", file, "--force", "--store", store).returncode


def test_a_link_is_followed_and_stays(store: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    target, link, link_to_link = tmp_path / "kept/backup", tmp_path / "link", tmp_path / "link to link"
    link.symlink_to(target)
    link_to_link.symlink_to("link")
    for _ in range(2):
        assert export(store, link_to_link) == 0
        assert link.is_symlink()
        assert link_to_link.is_symlink()
        assert len(target.read_bytes().splitlines()) == 2
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["backup"]


def test_a_file_keeps_its_mode_and_a_new_one_is_for_its_owner_alone(store: Path, tmp_path: Path) -> None:
    shared, new, victim = tmp_path / "shared", tmp_path / "new", tmp_path / "victim"
    shared.touch()
    shared.chmod(0o640)
    # Nobody can lay a link where the parts are written.
    victim.write_text("precious")
    (tmp_path / "new.partial").symlink_to(victim)
    assert export(store, shared) == export(store, new) == 0
    assert [stat.S_IMODE(file.stat().st_mode) for file in (shared, new)] == [0o640, 0o600]
    assert victim.read_text() == "precious"


def test_a_pipe_gets_the_lines_and_stays_a_pipe(store: Path, tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", list[bytes]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    assert export(store, pipe) == 0
    reader.join()
    assert len(read[0].splitlines()) == 2
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_reader_that_leaves_is_told_in_a_line(store: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    opened = open_store(store)
    for number in range(40):
        opened.put(make_entry(f"long {number}", response=b'"' + b"x" * 20_000 + b'"'))
    opened.close()

    def read_a_little() -> None:
        with pipe.open("rb") as lines:
            lines.read(10)

    reader = threading.Thread(target=read_a_little)
    reader.start()
    done = kvproxy("cache", "export", pipe, "--store", store)
    reader.join()
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "Broken pipe" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make a device")
def test_a_device_is_written_to_and_never_replaced(store: Path, tmp_path: Path) -> None:
    """As root, `cache export /dev/null` put a file in its place."""
    device, link = tmp_path / "null", tmp_path / "link"
    os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    link.symlink_to(device)
    for file in (device, link):
        assert export(store, file) == 0
        assert stat.S_ISCHR(file.stat().st_mode)
    assert link.is_symlink()


def test_what_cannot_be_written_is_told(store: Path, tmp_path: Path) -> None:
    folder, loop, missing = tmp_path / "folder", tmp_path / "loop", tmp_path / "missing" / "file"
    folder.mkdir()
    loop.symlink_to(loop)
    before = set(tmp_path.iterdir())
    for file in (folder, loop, missing):
        done = kvproxy("cache", "export", file, "--store", store)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert f"cannot write {file}" in done.stderr
    assert set(tmp_path.iterdir()) == before


def test_who_reads_slowly_holds_a_megabyte_of_entries_and_not_all(tmp_path: Path) -> None:
    """A batch is limited by bytes, and not only by its number of entries."""
    opened = open_store(tmp_path / "large.db")
    for number in range(10):
        opened.put(make_entry(f"long {number}", created=float(number), response=b'"' + b"x" * 400_000 + b'"'))
    reading = opened.entries()
    assert next(reading).prompt == "long 0"
    opened.delete(opened.ids())
    assert [entry.prompt for entry in reading] == ["long 1"]
    opened.close()


def test_clients_that_stall_while_they_export_hold_nobody(tmp_path: Path) -> None:
    with (
        run_plain_upstream() as upstream,
        run_front(tmp_path, upstream) as (url, services),
        contextlib.ExitStack() as clients,
    ):
        for number in range(10):
            services.cache.store.put(make_entry(f"long {number}", response=b'"' + b"x" * 1_000_000 + b'"'))
        for _ in range(20):
            client = clients.enter_context(socket.create_connection(("127.0.0.1", httpx.URL(url).port or 0)))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.sendall(b"GET /admin/cache/export HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert client.recv(16).startswith(b"HTTP/1.1 200")
        assert stored(ask(url, "still served?"))
        assert httpx.get(f"{url}/health").status_code == 200
        assert httpx.get(f"{url}/admin/cache?limit=1").headers["x-total-count"] == "11"
        # They do not block a deletion, or the checkpoint of the WAL.
        assert httpx.delete(f"{url}/admin/cache?all=true").json() == {"removed": 11}
