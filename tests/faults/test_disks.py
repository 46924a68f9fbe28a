"""Disks that are full, that refuse to be written, and that can only be read: under the stores, and under a whole proxy."""

import contextlib
import logging
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvproxy.clients.client_keys import add_client
from kvproxy.errors import KvproxyError, SettingsError
from kvproxy.index.errors import CacheStoreError
from kvproxy.index.store import open_store
from kvproxy.installation.checks.all_checks import check_files
from kvproxy.installation.checks.servers import check_proxy
from kvproxy.settings import load_settings
from tests.faults import disks
from tests.faults.harness import passed
from tests.faults.proxies import ask, health, hit, stored
from tests.faults.victims import VICTIMS
from tests.index.entries import make_entry
from tests.plain_upstream import run_plain_upstream
from tests.polling import until
from tests.servers import run_proxy


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    with run_plain_upstream() as url:
        yield url


def test_a_full_disk_loses_nothing_that_was_acknowledged() -> None:
    findings = disks.run(6, 5, lambda: None, VICTIMS[:3])
    assert passed(findings)
    assert all(finding.counts["refused"] == finding.rounds > 0 for finding in findings)


def test_a_proxy_on_a_full_disk_answers_and_tells_no_lies(
    upstream: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = load_settings(data=tmp_path, upstream=upstream, cache={"semantic": False})
    with on_small_disk(tmp_path, 1_000_000), run_proxy(settings) as (url, _):
        kept = 0
        while stored(ask(url, str(kept), user="x" * 20_000)):
            kept += 1
            assert kept < 100
        assert kept > 3
        assert [hit(ask(url, str(number), user="x" * 20_000)) for number in range(kept)] == [True] * kept
        assert not hit(ask(url, str(kept), user="x" * 20_000))
        state = health(url)
        assert state["status"] == "degraded"
        assert "failed" in state["store"]
        with pytest.raises(KvproxyError, match=r"answers at .*; the store .* failed"):
            check_proxy(url, None, tmp_path)
        with contextlib.suppress(OSError), (tmp_path / "rest").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4_096))
        with pytest.raises(SettingsError, match=r"cannot write to the data folder .*No space left"):
            check_files(settings)
        with pytest.raises(SettingsError, match=r"cannot write .*clients\.json \(No space left"):
            add_client(settings, "one")
        assert not list(tmp_path.glob(".clients-*"))
        disks.grow(tmp_path)
        assert stored(ask(url, "with room"))
        # The journal is written a moment later.
        until(lambda: health(url)["status"] == "ok")
        told = [record for record in caplog.records if record.levelno >= logging.WARNING]
        lines = [record.levelname for record in told if record.getMessage().startswith("the store")]
        assert lines == ["ERROR", "WARNING"], caplog.text
        store = open_store(tmp_path / "responses.db")
        assert {entry.prompt for entry in store.list_entries()} == {"with room", *map(str, range(kept))}
        assert store.database.count_intact_responses() == kept + 1
        store.close()


def test_a_disk_that_can_only_be_read_is_told_at_the_start(tmp_path: Path) -> None:
    with on_small_disk(tmp_path, 1_000_000):
        store = open_store(tmp_path / "responses.db")
        store.put(make_entry())
        store.close()
        subprocess.run(["mount", "-o", "remount,ro", str(tmp_path)], check=True)
        with pytest.raises(CacheStoreError, match="can be written to"):
            open_store(tmp_path / "responses.db")


def test_a_disk_that_can_only_be_read_from_now_on_is_told_and_loses_nothing(
    upstream: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    settings = load_settings(data=data, upstream=upstream, cache={"semantic": False})
    with disks.failing_disk(data, tmp_path / "image") as disk:
        if disk is None:
            pytest.skip("only root may mount a disk")
        with run_proxy(settings) as (url, services):
            assert stored(ask(url, "before"))
            services.journal.latest(1)
            disk.fail()
            for number in range(3):
                answer = ask(url, f"after {number}")
                assert answer.status_code == 200
                assert not stored(answer)
                services.journal.latest(1)
            assert ask(url, "before").status_code == 200
            state = health(url)
            assert state["status"] == "degraded"
            assert "failed" in state["store"]
        told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        assert sum(line.startswith("the store") and "no response is stored" in line for line in told) == 1, caplog.text
        assert sum(line.startswith("the journal") for line in told) == 1, caplog.text
        assert not any(record.exc_info for record in caplog.records), caplog.text
        disk.repair()
        with run_proxy(settings) as (url, _):
            assert hit(ask(url, "before"))
            assert not hit(ask(url, "after 0"))
            assert hit(ask(url, "after 0"))


@contextlib.contextmanager
def on_small_disk(folder: Path, size: int) -> Iterator[None]:
    with disks.small_disk(folder, size) as is_mounted:
        if not is_mounted:
            pytest.skip("only root may mount a disk")
        yield
