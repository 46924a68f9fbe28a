"""Commands whose standard streams are closed or full, and inputs that do not end."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from kvproxy.exchange import Exchange
from kvproxy.journal.journal import open_stored_journal
from kvproxy.settings.journal import JournalSettings
from tests.commands.run import NOWHERE, command, kvproxy, variables

COMMAND = f"{shlex.quote(sys.executable)} -c 'from kvproxy.commands import main; main()'"


def shell(line: str, data: Path) -> subprocess.CompletedProcess[str]:
    environment = {"KVPROXY_DATA": str(data), "PATH": "/usr/bin:/bin"}
    line = line.replace("kvproxy", COMMAND, 1)
    return subprocess.run(line, shell=True, capture_output=True, text=True, timeout=300, env=environment)


# All commands open missing streams at the same place, so one command suffices for each stream.
@pytest.mark.parametrize(
    ("command", "closed"),
    [("log", ">&-"), ("cache ls", "<&-"), ("config check", ">&- 2>&- <&-"), ("--version", "2>&-")],
)
def test_a_closed_stream_is_like_dev_null(tmp_path: Path, command: str, closed: str) -> None:
    done = shell(f"kvproxy {command} {closed}", tmp_path)
    assert "unexpected" not in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 3)


@pytest.mark.parametrize("command", ["config check", "--version", "--help", "config check --json"])
def test_a_full_disk_is_named(tmp_path: Path, command: str) -> None:
    done = shell(f"kvproxy {command} >/dev/full", tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("kvproxy: cannot write (No space left on device)")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", ["log", "cache ls", "sessions", "log top"])
def test_a_limit_beyond_every_table_is_refused(tmp_path: Path, command: str) -> None:
    done = kvproxy(*command.split(), "--limit", "9" * 20, "--data", tmp_path)
    assert done.returncode == 2
    assert "2147483647" in done.stderr


def test_a_device_is_no_trace() -> None:
    done = kvproxy("simulate", "/dev/zero")
    assert done.returncode != 0
    assert "/dev/zero" in done.stderr
    assert "no file" in done.stderr


def test_a_followed_log_ends_with_the_reader_of_its_pipe(tmp_path: Path) -> None:
    journal = open_stored_journal(tmp_path / "journal.db", JournalSettings())
    journal.add(Exchange("chat", "a" * 32, arrived=1_000.0, status=200))
    journal.close()
    arguments, environment = command("log", "-f", "--data", tmp_path), variables(NOWHERE, {})
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline().startswith(b"time\t")
        follower.stdout.close()
        try:
            code = follower.wait(timeout=60)
        finally:
            follower.kill()
        assert (code, follower.stderr and follower.stderr.read()) == (141, b"")
