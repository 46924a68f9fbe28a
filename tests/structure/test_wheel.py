"""The wheel contains only the package, and a proxy from it loads no model library."""

import os
import shutil
import signal
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import httpx
import pytest

from tests.plain_upstream import ANSWER, run_plain_upstream
from tests.ports import free_port
from tests.processes import serve
from tests.statuses import makes_entry

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "commands", "index", "kvproxy")
NEEDED = {
    "kvproxy/py.typed",
    "kvproxy/__main__.py",
    "kvproxy/commands/__init__.py",
    "kvproxy/demo/model/model.safetensors",
    "kvproxy/demo/model/tokenizer.json",
    "kvproxy/http/ui/static/app.js",
    "kvproxy/http/ui/static/index.html",
    "kvproxy/index/policies/guards/antonyms.txt",
    "kvproxy/index/policies/guards/opposites.txt",
    "kvproxy/index/models/minilm/ranges.safetensors",
    "kvproxy/index/models/verifier/adapter.safetensors",
}
HEAVY = {"torch", "transformers", "sentence_transformers", "pandas", "sklearn", "scipy", "matplotlib"}
PROGRAM = """
import sys
from kvproxy import commands
try:
    commands.main()
finally:
    print("loaded:", commands.__file__, *sorted(name for name in sys.modules if "." not in name), flush=True)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an sdist and the wheel built from it."""
    folder = tmp_path_factory.mktemp("built")
    tree = folder / "tree"
    tree.mkdir()
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        options = {"symlinks": True, "ignore": shutil.ignore_patterns("__pycache__")} if copy is shutil.copytree else {}
        copy(ROOT / name, tree / name, **options)  # type: ignore[operator]
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(tree)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


def test_wheel_and_sdist_contain_the_package_and_nothing_else(built: Path, wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"kvproxy"}
    assert len(tops) == 2
    assert names >= NEEDED
    modules = {
        f"{prefix}{path.relative_to(ROOT)}"
        for folder, prefix in (("kvproxy", ""), ("commands", "kvproxy/"), ("index", "kvproxy/"))
        for path in (ROOT / folder).rglob("*.py")
    }
    assert {name for name in names if name.endswith((".py", ".pyc"))} == modules
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        packed = {name.split("/", 1)[-1] for name in opened.getnames()}
    assert packed >= NEEDED | {"LICENSE", "README.md", "pyproject.toml"}


def test_a_proxy_from_the_wheel_loads_no_model_library(wheel: Path, tmp_path: Path) -> None:
    """Its folder comes after modules that are named like our top-level folders."""
    for name in ("index", "commands", "tests"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('the module of a user')")
    unpacked, port = tmp_path / "unpacked", free_port()
    zipfile.ZipFile(wheel).extractall(unpacked)
    (entry_points,) = unpacked.glob("*.dist-info/entry_points.txt")
    assert "kvproxy = kvproxy.__main__:main" in entry_points.read_text()
    kept = ("PATH", "HOME", "XDG_CACHE_HOME", "HF_HUB_OFFLINE", "OMP_NUM_THREADS", "KVPROXY_CACHE__LOOKUP_TIMEOUT")
    env = {name: os.environ[name] for name in kept if name in os.environ} | {"PYTHONPATH": f"{tmp_path}:{unpacked}"}
    with run_plain_upstream() as upstream:
        options = ["serve", "--port", str(port), "--data", str(tmp_path / "data"), "--upstream", upstream]
        with serve([sys.executable, "-c", PROGRAM, *options], port, tmp_path / "log", env=env, cwd=tmp_path) as server:
            statuses = []
            for question in ("How do I reset my password?", "How can I reset my password?"):
                body = {"model": "plain", "temperature": 0, "messages": [{"role": "user", "content": question}]}
                answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
                assert answer.json()["choices"][0]["message"]["content"] == ANSWER
                statuses.append(answer.headers["cache-status"])
            server.process.send_signal(signal.SIGINT)
            server.process.wait(timeout=30)
            (line,) = (line for line in server.log.read_text().splitlines() if line.startswith("loaded:"))
    assert makes_entry(statuses[0])
    assert "semantic" in statuses[1]
    _, place, *loaded = line.split()
    assert place.startswith(str(unpacked))
    assert {"onnxruntime", "tokenizers", "kvproxy"} <= set(loaded)
    assert set(loaded) & HEAVY == set()
