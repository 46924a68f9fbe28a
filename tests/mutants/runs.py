"""Tests run against a copy of the tree, each time in a process of its own that has loaded others' code before."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).resolve().parents[2]
PAST = 1_500_000_000
"""When no file was changed, so that a compiled file is never taken for a changed one."""
Fate = Literal["killed", "survived", "time"]
_SLOWER = 3
"""How much more processor time than without the change is still no sign of one; the machine may be busy too."""
_PATIENCE = 20.0
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Run:
    """What came of a run, its seconds, and the test that failed first."""

    fate: Fate
    seconds: float
    by: str = ""


@contextlib.contextmanager
def copied() -> Iterator[Path]:
    """The tree as git would see it, elsewhere."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        for name in filter(None, names):
            target = Path(folder) / name
            if not (ROOT / name).exists():
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target, follow_symlinks=False)
            if not target.is_symlink():
                os.utime(target, (PAST, PAST))
        yield Path(folder).resolve()


def warm_up() -> None:
    """Load what tests load of others' code, once for all runs."""
    # Triton decides how a kernel runs when it is imported.
    os.environ["TRITON_INTERPRET"] = "1"
    os.environ["HF_HUB_OFFLINE"] = "1"
    names = "hypothesis numpy orjson pydantic_settings starlette httpx aiohttp uvicorn typer rich faiss onnxruntime"
    for name in [*names.split(), "torch", "transformers", "sentence_transformers", "tokenizers", "llguidance"]:
        with contextlib.suppress(ImportError):
            __import__(name)


class _First:
    """A plugin of pytest that writes down the first test that fails."""

    def __init__(self, told: Path) -> None:
        self._told = told

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self._told.exists():
            self._told.write_text(report.nodeid)


def run(folder: Path, tests: list[str], seconds: float, *, recorder: object | None = None) -> Run:
    """Put the tree in a folder to tests, up to the first that fails.

    Args:
        seconds: that the tests take without a change.
        recorder: a plugin of pytest for a run without a change: what it compiles stays, and no failure ends it.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-run-") as scratch:
        told = Path(scratch) / "failed"
        child = os.fork()
        if child == 0:
            plugin = _First(told) if recorder is None else recorder
            try:
                _run_tests(folder, tests, plugin, Path(scratch), changed=recorder is None)
            finally:
                # Whatever ends the tests must not go on as the parent, which would clear the copy away.
                os._exit(1)
        fate = _watched(child, seconds)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        return Run(fate, time.monotonic() - began, told.read_text() if told.exists() else "")


def _run_tests(folder: Path, tests: list[str], plugin: object, scratch: Path, *, changed: bool) -> None:
    os.setsid()
    os.chdir(folder)
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    for name in [name for name in sys.modules if name.split(".")[0] in ("kvproxy", "tests")]:
        del sys.modules[name]
    sys.path[:] = [str(folder), *(path for path in sys.path if path not in ("", str(ROOT)))]
    sys.dont_write_bytecode = changed
    import pytest

    _do_not_shrink()
    # What is warmed up has no assertions of ours.
    options = ["-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    code: int = pytest.main([*options, f"--basetemp={scratch / 'files'}", *["-x"] * changed, *tests], plugins=[plugin])
    os._exit(code)


def _do_not_shrink() -> None:
    """Have hypothesis stop at the first example that fails: the smallest one takes minutes, and nobody reads it."""
    from hypothesis import HealthCheck, Phase, settings

    settings.register_profile(
        "mutants",
        phases=(Phase.explicit, Phase.generate),
        database=None,
        derandomize=True,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("mutants")


def _watched(child: int, seconds: float) -> Fate:
    """What becomes of a child that should take so long. It is ended when it computes or waits far longer."""
    end = time.monotonic() + 10 * seconds + 3 * _PATIENCE
    while time.monotonic() < end and _computed(child) < _SLOWER * seconds + _PATIENCE:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return "survived" if status == 0 else "killed"
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "time"


def _computed(child: int) -> float:
    """Seconds that a process has computed."""
    fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
