"""The wheel contains only the package, which imports no module of a user."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

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
    "kvproxy/index/policies/guards/noun_kinds.txt",
    "kvproxy/index/policies/guards/opposites.txt",
    "kvproxy/index/models/minilm/ranges.safetensors",
    "kvproxy/index/models/verifier/adapter.safetensors",
}
# As `python -m build` calls it, but in one process.
BUILD = "from setuptools.build_meta import *; build_sdist('..'); build_wheel('..')"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an sdist and a wheel."""
    folder = tmp_path_factory.mktemp("built")
    tree = folder / "tree"
    tree.mkdir()
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        options = {"symlinks": True, "ignore": shutil.ignore_patterns("__pycache__")} if copy is shutil.copytree else {}
        copy(ROOT / name, tree / name, **options)  # type: ignore[operator]
    done = subprocess.run([sys.executable, "-c", BUILD], capture_output=True, text=True, cwd=tree)
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


def test_the_package_imports_no_module_of_a_user(wheel: Path, tmp_path: Path) -> None:
    """The modules of the user are named like our top-level folders, and come first."""
    for name in ("index", "commands", "tests"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('the module of a user')")
    unpacked = tmp_path / "unpacked"
    zipfile.ZipFile(wheel).extractall(unpacked)
    (entry_points,) = unpacked.glob("*.dist-info/entry_points.txt")
    assert "kvproxy = kvproxy.__main__:main" in entry_points.read_text()
    code = "import kvproxy.commands.serve, kvproxy.http.serve as module; print(module.__file__)"
    env = {"PYTHONPATH": f"{tmp_path}:{unpacked}"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=env)
    assert done.stdout.startswith(str(unpacked)), done.stderr
