"""The plugins of `examples/` are installed, and do their work in a proxy, in commands, and in the library."""

import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvproxy import CacheSettings, open_cache
from kvproxy.analyse.log_formats.registry import format_names
from kvproxy.analyse.simulate.pool_simulation import ChainRequest, simulate
from kvproxy.blocks.manager import KVCacheManager
from kvproxy.doors import COMMANDS, DOORS, EVICTION
from kvproxy.errors import SettingsError
from kvproxy.index import doors
from kvproxy.index.errors import PluginError
from kvproxy.index.policies.guards import Guard
from kvproxy.index.policies.threshold import ThresholdPolicy
from kvproxy.installation.checks.plugins import check_plugins
from kvproxy.journal.reasons import meaning_of_reason
from kvproxy.settings import TierSettings, load_settings
from kvproxy.tiers.tier_chain import build_chain
from tests.blocks.driver import serve
from tests.commands.run import variables
from tests.flow.proxies import explain
from tests.index.doubles import HashEmbedder
from tests.plain_upstream import run_recording_upstream
from tests.servers import run_proxy

EXAMPLES = Path(__file__).parents[2] / "examples"
FOLDERS = sorted(file.parent for file in EXAMPLES.glob("*/pyproject.toml"))


def project_of(folder: Path) -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return project


def write_distribution(target: Path, name: str, groups: dict[str, dict[str, str]], version: str = "1.0") -> None:
    information = target / f"{name.replace('-', '_')}-{version}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = [
        line
        for group, points in groups.items()
        for line in (f"[{group}]", *(f"{point} = {place}" for point, place in points.items()))
    ]
    (information / "entry_points.txt").write_text("\n".join(lines) + "\n")


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed distributions that this process imports."""
    folder = tmp_path / "plugins"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    doors.installed.cache_clear()
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
            del sys.modules[name]
    doors.installed.cache_clear()


@pytest.fixture
def plugins(target: Path) -> Path:
    """All examples, installed as pip does it, which takes seconds for each."""
    for folder in FOLDERS:
        project = project_of(folder)
        write_distribution(target, project["name"], project["entry-points"], project["version"])
        for module in folder.glob("*.py"):
            shutil.copy(module, target)
    doors.installed.cache_clear()
    return target


def run(target: Path, *arguments: object) -> "subprocess.CompletedProcess[str]":
    """Run a command in a process that has the plugins."""
    command = [sys.executable, "-m", "kvproxy", *map(str, arguments)]
    environment = variables("http://127.0.0.1:9", {"PYTHONPATH": f"{target}:{EXAMPLES.parent}"})
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


def test_each_door_has_an_example_of_at_most_40_lines() -> None:
    groups = [group for folder in FOLDERS for group in project_of(folder)["entry-points"]]
    assert sorted(groups) == sorted(door.group for door in DOORS)
    for module in EXAMPLES.glob("*/*.py"):
        assert len(module.read_text().splitlines()) <= 40, module


def test_pip_installs_an_example(tmp_path: Path) -> None:
    source = shutil.copytree(EXAMPLES / "guard", tmp_path / "guard")
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check", "--target"]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, str(tmp_path / "target"), str(source)], check=True
    )
    assert (tmp_path / "target" / "kvproxy_currencies.py").is_file()
    (information,) = (tmp_path / "target").glob("*.dist-info")
    assert "[kvproxy.guards]" in (information / "entry_points.txt").read_text()


def test_all_built_in_parts_exist() -> None:
    for door in DOORS:
        for name in door.built_in:
            assert door.load(name) is not None


def test_a_proxy_works_with_plugins(tmp_path: Path, plugins: Path) -> None:
    with run_recording_upstream() as (upstream, bodies):
        settings = load_settings(
            data=tmp_path,
            upstreams=[{"url": upstream, "kind": "ollama"}],
            embedder="bag-of-words",
            cache={"policy": "checked", "verifier": "word-overlap", "guards": False, "extra_guards": ["currencies"]},
            path={"layers": ["faq"], "prepare": ["spaces"]},
        )
        with run_proxy(settings) as (url, services):

            def ask(question: str, **fields: Any) -> httpx.Response:
                body = {"model": "m", "messages": [{"role": "user", "content": question}], **fields}
                return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=300).raise_for_status()

            hours = "What are your opening hours?"
            faq = ask(hours)
            assert faq.json()["choices"][0]["message"]["content"] == "We are open from 9 to 5."
            assert "cache-status" not in faq.headers
            assert 'data: {"id":' in ask(hours, stream=True).text
            assert bodies == []
            assert explain(url, hours)["layer"] == "plugin"
            record = services.journal.latest(1)[0]
            assert (record.layer, record.reason, record.status) == ("plugin", "plugin-faq", 200)
            # No backend was paid, so the usage of no request is missing.
            assert httpx.get(f"{url}/admin/log").json()[0]["cost"] == 0
            (saving,) = httpx.get(f"{url}/admin/savings").json()["rows"]
            assert (saving["name"], saving["requests"], saving["unreported_requests"]) == ("plugin", 2, 0)

            question = "Tell me how the eviction of cached blocks works"
            assert "fwd=uri-miss" in ask(question).headers["cache-status"]
            assert bodies[-1]["keep_alive"] == "1h"
            assert 'detail="exact"' in ask(question.replace(" ", "  ")).headers["cache-status"]
            similar = ask(question.replace("Tell me how", "Tell me please how")).headers["cache-status"]
            assert "hit" in similar
            assert "semantic" in similar

            ask("How many $ does the whole trip cost today")
            assert "fwd=uri-miss" in ask("How many € does the whole trip cost today").headers["cache-status"]
            assert services.journal.latest(1)[0].reason == "veto-currencies"
            shown = "The guard `currencies` of a plugin vetoed the nearest question: other currencies."
            assert meaning_of_reason("veto-currencies") == shown
            assert meaning_of_reason("veto-gone") == "The guard `gone` of a plugin vetoed the nearest question."
            (neighbour, *_) = explain(url, "How many £ does the whole trip cost today")["semantic"]["neighbours"]
            assert (neighbour["guard"], neighbour["why"]) == ("currencies", "other currencies")
            assert httpx.get(f"{url}/admin/upstreams").json()[0]["advice"]


def test_a_command_of_a_plugin_runs(tmp_path: Path, plugins: Path) -> None:
    with open_cache(tmp_path / "responses.db", CacheSettings(semantic=False)) as cache:
        cache.set("short", "a")
        cache.set("long", "b" * 100)
    shown = run(plugins, "largest", "--data", tmp_path, "-n", "1")
    assert shown.stdout.split() == ["102", "long"], shown
    assert '"bytes": 102' in run(plugins, "largest", "--data", tmp_path, "--json").stdout
    assert "List the largest stored responses" in run(plugins, "--help").stdout


def test_an_eviction_policy_of_a_plugin_orders_the_pool_and_its_simulation(plugins: Path) -> None:
    paths = [[1, 2], [3, 4], [5, 6], [1, 2], [3, 4], [5, 6]] * 3
    manager = KVCacheManager(6, 2, policy="mru")
    ids: dict[tuple[int, ...], int] = {}
    requests = []
    for number, path in enumerate(paths):
        serve(manager, str(number), [*(token for token in path for _ in range(2)), 9])
        blocks = tuple(ids.setdefault(tuple(path[: end + 1]), len(ids)) for end in range(len(path)))
        requests.append(ChainRequest(blocks, len(blocks), True))
    hits = simulate(requests, 5, "mru").hits
    assert manager.num_hit_tokens // 2 == hits
    assert hits > simulate(requests, 5, "lru").hits


def test_a_chunk_store_of_a_plugin_stores_chunks(plugins: Path) -> None:
    chain = build_chain(TierSettings(stores=("compressed",)), 16)
    assert chain is not None
    assert chain.save("key", bytes(10_000))
    assert chain.flush(300)
    assert chain.load("key", bytes) == bytes(10_000)
    (stats,) = chain.stats()
    assert (stats.name, stats.chunks, stats.hits) == ("compressed", 1, 1)
    assert stats.bytes < 100
    chain.close()


def test_a_log_format_of_a_plugin_is_recognized(tmp_path: Path, plugins: Path) -> None:
    assert "questions" in format_names()
    rows = ['{"question": "What is a block?", "answer": "A number of tokens.", "model": "m"}'] * 3
    (tmp_path / "log.jsonl").write_text("\n".join(rows))
    shown = run(plugins, "estimate", tmp_path / "log.jsonl", "--data", tmp_path)
    assert "Question log" in shown.stdout + shown.stderr, shown


def test_doctor_lists_plugins(plugins: Path) -> None:
    listed = check_plugins()
    assert "eviction policy mru (kvproxy-mru)" in listed
    assert listed.count("(") == len(DOORS)


def test_a_broken_plugin_gives_an_error_of_one_line(tmp_path: Path, target: Path) -> None:
    place = "missing_module:thing"
    write_distribution(
        target, "broken-plugin", {"kvproxy.eviction": {"mfu": place}, "kvproxy.commands": {"say": place}}
    )
    write_distribution(target, "second-plugin", {"kvproxy.eviction": {"lru": "collections:OrderedDict"}})
    doors.installed.cache_clear()
    fix = "pip install --upgrade broken-plugin, or pip uninstall broken-plugin"
    with pytest.raises(PluginError) as error:
        EVICTION.load("mfu")
    assert str(error.value).startswith("the eviction policy 'mfu' of broken-plugin 1.0 failed (ModuleNotFoundError: ")
    assert str(error.value).endswith(fix)
    assert "\n" not in str(error.value)
    with pytest.raises(
        PluginError, match=r"'lru' is in kvproxy and in second-plugin 1\.0: pip uninstall second-plugin"
    ):
        EVICTION.load("lru")
    with pytest.raises(SettingsError, match=r"broken-plugin 1\.0 failed"):
        check_plugins()
    shown = run(target, "--help")
    assert shown.returncode == 0
    assert shown.stderr.count("\n") == 1
    assert fix in shown.stderr


def test_an_unknown_plugin_is_named_with_its_setting(tmp_path: Path) -> None:
    with pytest.raises(
        SettingsError, match=r"engine\.eviction_policy: unknown eviction policy 'mru': use lru, s3fifo, "
    ):
        load_settings(data=tmp_path, engine={"eviction_policy": "mru"})
    with pytest.raises(
        SettingsError, match=r"path\.layers\.0: unknown layer 'faq': use or install|unknown layer 'faq'"
    ):
        load_settings(data=tmp_path, path={"layers": ["faq"]})
    with pytest.raises(PluginError, match="unknown command 'x': use serve, "):
        COMMANDS.load("x")


def test_a_part_of_another_kind_is_refused(target: Path) -> None:
    write_distribution(target, "other-kind", {"kvproxy.guards": {"text": "string:digits"}})
    doors.installed.cache_clear()
    with pytest.raises(PluginError, match=r"of other-kind 1\.0 is no guard"):
        doors.GUARDS.load("text")
    write_distribution(target, "other-format", {"kvproxy.log_formats": {"digits": "string:digits"}})
    doors.installed.cache_clear()
    with pytest.raises(SettingsError, match=r"of other-format 1\.0 is no log format"):
        format_names()


def test_the_library_takes_an_embedder_guards_and_a_policy(tmp_path: Path) -> None:
    question, other = "please tell me what the free queue is", "please do tell me what the free queue is"
    embedder, settings = HashEmbedder(), CacheSettings(policy="threshold", min_similarity=0.5)
    vetoing = Guard("never", "another question", lambda first, second: True)
    for name, more, served in (
        ("plain", {}, True),
        ("guarded", {"guards": [vetoing]}, False),
        ("policy", {"policy": ThresholdPolicy(1.0)}, False),
    ):
        with open_cache(tmp_path / f"{name}.db", settings, embedder=embedder, **more) as cache:  # type: ignore[arg-type]
            cache.set(question, "answer")
            assert (cache.get(other) is not None) is served, name
