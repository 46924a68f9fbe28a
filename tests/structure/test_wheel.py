"""The wheel contains only the package, and an installed wheel serves requests."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import httpx
import pytest

from tests.ports import free_port
from tests.processes import serve

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "commands", "index", "kvproxy")
NEEDED = {
    "kvproxy/py.typed",
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


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the bin folder of a venv with the wheel and the dependencies of the test environment."""
    venv = tmp_path_factory.mktemp("installed") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    python = venv / "bin" / "python"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--no-compile",
    ]
    subprocess.run([*pip, str(wheel)], check=True)
    (site,) = venv.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text("\n".join(path for path in sys.path if "site-packages" in path))
    return venv / "bin"


@pytest.fixture
def elsewhere(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a user with modules named like our top-level folders."""
    for name in ("index", "commands", "tests"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('the module of a user')")
    kept = ("PATH", "HOME", "XDG_CACHE_HOME", "HF_HUB_OFFLINE", "OMP_NUM_THREADS")
    return {name: os.environ[name] for name in kept if name in os.environ} | {"PYTHONPATH": str(tmp_path)}


def test_the_wheel_contains_only_the_package(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"kvproxy"}
    assert len(tops) == 2
    assert names >= NEEDED
    assert {name for name in names if "training" in name or "/test" in name or name.endswith(".pyc")} == set()


def test_every_module_is_in_the_wheel(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {
        f"{prefix}{path.relative_to(ROOT)}"
        for folder, prefix in (("kvproxy", ""), ("commands", "kvproxy/"), ("index", "kvproxy/"))
        for path in (ROOT / folder).rglob("*.py")
    }
    assert {name for name in names if name.endswith(".py")} == modules


def test_the_sdist_contains_the_sources_of_the_wheel(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.split("/", 1)[-1] for name in opened.getnames()}
    assert names >= NEEDED | {"LICENSE", "README.md", "pyproject.toml"}


def test_the_wheel_requires_the_dependencies_of_the_project(wheel: Path) -> None:
    (metadata,) = (name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".dist-info/METADATA"))
    asked = set(re.findall(r"^Requires-Dist: ([\w.-]+)", zipfile.ZipFile(wheel).read(metadata).decode(), re.M))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = [line for lines in project["optional-dependencies"].values() for line in lines]
    wanted = {re.match(r"[\w.-]+", line)[0] for line in [*project["dependencies"], *optional]}  # type: ignore[index]
    assert asked == wanted


def test_an_installed_wheel_serves(installed: Path, elsewhere: dict[str, str], tmp_path: Path) -> None:
    def printed(*command: str) -> str:
        return subprocess.run(command, capture_output=True, text=True, check=True, env=elsewhere, cwd=tmp_path).stdout

    program = str(installed / "kvproxy")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert printed(program, "--version") == f"kvproxy {project['version']}\n"
    where = printed(str(installed / "python"), "-c", "import kvproxy; print(kvproxy.__file__)")
    assert where.startswith(str(installed.parent))
    port = free_port()
    command = [program, "serve", "--port", str(port), "--data", str(tmp_path / "data"), "--num-blocks", "256"]
    body = {"model": "demo", "temperature": 0, "messages": [{"role": "user", "content": "What is a block?"}]}
    with serve(command, port, tmp_path / "log", env=elsewhere, cwd=tmp_path) as server:
        first, second = (httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60) for _ in range(2))
    assert first.status_code == 200, first.text
    assert "block" in first.json()["choices"][0]["message"]["content"]
    assert "hit" in second.headers["cache-status"]
