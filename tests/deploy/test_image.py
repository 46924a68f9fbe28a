"""The Dockerfile, by a linter and by what it promises; test_container.py builds and runs it."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "deploy/Dockerfile"


def test_a_linter_finds_nothing() -> None:
    if shutil.which("hadolint") is None:
        pytest.skip("hadolint is not installed: make test-deploy installs it")
    done = subprocess.run(["hadolint", str(DOCKERFILE)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_runs_as_nobody_in_particular_and_tells_its_health() -> None:
    last = DOCKERFILE.read_text().rpartition("\nFROM ")[2]
    assert re.search(r"^USER 8484$", last, re.MULTILINE)
    assert "HEALTHCHECK" in last
    assert last.index("USER 8484") < last.index("ENTRYPOINT")
