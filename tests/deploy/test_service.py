"""The systemd unit: systemd accepts it, and a proxy runs under those of its restrictions that work without systemd."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.commands.run import ROOT
from tests.plain_upstream import run_plain_upstream
from tests.ports import free_port
from tests.processes import serve

UNIT = ROOT / "deploy/kvproxy.service"
CORES = ROOT / "deploy/kvproxy@.service.d"
MOST_EXPOSED = 2.0
# Refuses memory that is both writable and executable, as MemoryDenyWriteExecute= does, and then becomes the proxy.
STRICT = """
import ctypes, os, sys
if ctypes.CDLL(None, use_errno=True).prctl(65, 1, 0, 0, 0):
    sys.exit("no PR_SET_MDWE")
os.umask(0o077)
os.execv(sys.executable, [sys.executable, "-m", "kvproxy", *sys.argv[1:]])
"""


def test_systemd_finds_no_fault_with_the_unit(tmp_path: Path) -> None:
    copy = tmp_path / "kvproxy.service"
    # Where the proxy is installed there is nothing here.
    copy.write_text(UNIT.read_text().replace("/opt/kvproxy/bin/kvproxy", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_systemd_finds_no_fault_with_one_unit_per_core(tmp_path: Path) -> None:
    copy = tmp_path / "kvproxy@8491.service"
    copy.write_text(UNIT.read_text().replace("/opt/kvproxy/bin/kvproxy", sys.executable))
    shutil.copytree(CORES, tmp_path / CORES.name)
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_it_has_few_rights() -> None:
    done = subprocess.run(["systemd-analyze", "security", "--offline=true", str(UNIT)], capture_output=True, text=True)
    found = re.search(r"exposure level for kvproxy.service: ([\d.]+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert float(found[1]) <= MOST_EXPOSED


def test_it_gives_requests_more_time_to_end_than_they_have() -> None:
    from kvproxy.settings.limits import LimitSettings

    found = re.search(r"^TimeoutStopSec=(\d+)$", UNIT.read_text(), re.MULTILINE)
    assert found is not None
    assert int(found[1]) > LimitSettings().drain_seconds


def test_a_proxy_works_without_memory_that_is_writable_and_executable(tmp_path: Path) -> None:
    """Similar questions included: their models run in it too."""
    probe = subprocess.run([sys.executable, "-c", STRICT, "--version"], capture_output=True, text=True, cwd=ROOT)
    if "PR_SET_MDWE" in probe.stderr:
        pytest.skip("this kernel cannot refuse it")
    port = free_port()
    with run_plain_upstream() as upstream:
        flags = ["serve", "--port", str(port), "--upstream", upstream, "--data", str(tmp_path / "data")]
        with serve([sys.executable, "-c", STRICT, *flags], port, tmp_path / "log", cwd=ROOT) as serving:
            for question in ("How do I reset my password?", "How can I reset my password?"):
                body = {"model": "m", "messages": [{"role": "user", "content": question}]}
                answer = httpx.post(f"{serving.url}/v1/chat/completions", json=body, timeout=60)
                assert answer.status_code == 200
            assert httpx.get(f"{serving.url}/admin/cache/stats").json()["semantic"]["lookups"] != {}
