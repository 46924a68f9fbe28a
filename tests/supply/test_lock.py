"""The lock files have all packages of an installation and match the dependencies; the check needs no network."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.supply.lock import ENGINE, ENGINE_EXTRAS, EXTRAS, LOCK, ROOT, made_from, paragraphs

LOCKED = {each.name: each for path in (LOCK, ENGINE) for each in paragraphs(path.read_text())}


@pytest.mark.parametrize("path", [LOCK, ENGINE], ids=lambda path: path.name)
def test_the_lock_is_of_todays_dependencies(path: Path) -> None:
    assert path.read_text().splitlines()[0].endswith(made_from(LOCKED)), "run make lock"


def test_every_package_has_one_version_and_hashes() -> None:
    assert len(LOCKED) > 80
    assert [each.name for each in LOCKED.values() if not each.hashes] == []
    text = LOCK.read_text() + ENGINE.read_text()
    lines = [line for line in text.splitlines() if line and line[0] not in "# "]
    assert len(lines) == len(LOCKED)
    assert [line for line in lines if not re.match(r"[a-z0-9-]+==[0-9][\w.+!]*( ; .+)? \\$", line)] == []


def test_everything_that_an_installation_here_needs_is_locked_in_the_version_that_is_tested() -> None:
    """By the metadata of the installed packages, no dependency of a dependency is missing."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    lines = project["dependencies"] + [line for extra in (*EXTRAS, *ENGINE_EXTRAS) for line in optional[extra]]
    closure = _closure(lines)
    assert len(closure) > 60
    assert closure - LOCKED.keys() == set()
    locked = {name: LOCKED[name].version.partition("+")[0] for name in closure - {"pip"}}
    assert locked == {name: metadata.version(name).partition("+")[0] for name in locked}


def test_the_versions_are_those_of_a_fresh_clone() -> None:
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines())
    pinned = {canonicalize_name(name): version for name, version in pins.items()}
    both = pinned.keys() & LOCKED.keys()
    assert len(both) > 70
    assert {name: LOCKED[name].version for name in both} == {name: pinned[name] for name in both}


HEAVY = {"torch", "transformers", "sentence-transformers", "scipy", "scikit-learn", "onnx", "matplotlib", "llguidance"}


def test_a_proxy_installs_few_packages_and_no_torch() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    installed = _closure(project["dependencies"])
    assert not {name for name in installed if name in HEAVY or name.startswith(("nvidia-", "cuda-", "triton"))}
    assert len(installed) <= 66
    assert not HEAVY & {each.name for each in paragraphs(LOCK.read_text())}


def _closure(lines: list[str]) -> set[str]:
    """Names of all packages that requirements install on this machine."""
    waiting, seen = [(Requirement(line), "") for line in lines], set[tuple[str, str]]()
    while waiting:
        wanted, extra = waiting.pop()
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(wanted.name)
        for own in ("", *wanted.extras):
            if (name, own) not in seen:
                seen.add((name, own))
                waiting += [(Requirement(line), own) for line in metadata.requires(name) or ()]
    return {name for name, _ in seen}
