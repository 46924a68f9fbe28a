"""Each store of data that clients or upstreams send has a bound, which docs/limits.md states."""

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = re.findall(r"^\| (.+?) \| (.+?) \| .+? \| `([\w.]+):(\w+)` \|$", (ROOT / "docs/limits.md").read_text(), re.M)
_PACKAGES = ("kvproxy/flow", "kvproxy/journal", "kvproxy/upstreams", "kvproxy/http", "index/store")
_CONTAINERS = {"dict", "list", "set", "deque", "OrderedDict", "defaultdict", "Counter", "Queue"}

# Module: the containers in attributes of its objects. Each holds a bounded number of items for a reason that the line names.
BOUNDED = """
# A constant in docs/limits.md.
flow/prepare/keep_warm: _sessions
flow/prepare/history_repair: _originals
flow/compare_responses: _queue _warned
journal/record_writer: _prompts _stored_responses _without_entry
journal/schema: _numbers _shapes
journal/cache_history: _regions
journal/daily_sums: _values _rows
journal/journal: _events
journal/sessions/session_matching: _contents
journal/sessions/turn_writer: _roots reuse_curves _block_sizes
flow/tenants: _digests
upstreams/mirror/apply_events: blocks _children _by_content pools unknown_names
upstreams/mirror/sequencer: _fingerprints _held
upstreams/mirror/replay_backlog: _messages
upstreams/fleet_engine: reuse _rank_loads _loads
upstreams/mirror_monitor: _too_high
upstreams/pending_prefixes: _by_hash _prompts
upstreams/load_times: _loads _prefill
upstreams/generated_tokens: _prefixes
http/metrics: _clients
# One response or request, whose size is limited.
flow/backend_response: _body
flow/single_flight: _chunks _read
upstreams/mirror/prefix_match: tokens _hashes _contents engine_hashes
upstreams/engine_metrics: values vllm_configs
# Requests in flight, which settings limit.
flow/single_flight: _joinable _in_flight
flow/layers/forwarded: _releases
flow/layers/renewal: _in_flight
flow/prepare/keep_warm: _digests_by_request
index/store/group_commit: _waiting
# Words of the code, settings, and clients of the operator.
flow/layers/layer: counts
flow/compare_responses: counts
flow/prepare/keep_warm: _budgets _fixed_models
http/metrics: _values descriptions
upstreams/fleet_engine: _problems
upstreams/client: _refuse_usage
index/store/database: _failures _logs
index/store/writer: removal_listeners
# Tasks, connections, files, and slots of this process.
upstreams/mirror/mirror: _tasks
upstreams/fleet: _tasks
upstreams/llama/server: _tasks
upstreams/llama/slots: slots
upstreams/llama/slot_files: _writing
http/services: _tasks uncached_paths
journal/journal: _idle_readers _batch
journal/databases/postgres: _days _pending
index/store/sqlite/database: _readers
# Entries of the store.
index/store/writer: _hits
"""


@pytest.mark.parametrize(("kept", "bound", "module", "constant"), ROWS, ids=[row[3] for row in ROWS])
def test_the_documented_bound_is_the_one_in_the_code(kept: str, bound: str, module: str, constant: str) -> None:
    value = getattr(importlib.import_module(f"kvproxy.{module}"), constant)
    forms = {f"{int(value):,}", f"{value / 2**20:g} MiB"}
    assert any(re.match(rf"{re.escape(form)}\b", bound) for form in forms), (
        f"{kept}: {bound}, but {constant} is {value:,}"
    )


def test_the_table_is_read() -> None:
    assert len(ROWS) > 30


def test_each_container_of_an_object_is_bounded() -> None:
    known: dict[str, set[str]] = {}
    for line in BOUNDED.strip().splitlines():
        if not line.startswith("#"):
            module, _, names = line.partition(": ")
            known.setdefault(module, set()).update(names.split())
    found: dict[str, set[str]] = {}
    for package in _PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            module = str(path.relative_to(ROOT).with_suffix("")).removeprefix("kvproxy/")
            if names := set(_containers(ast.parse(path.read_text()))):
                found[module] = names
    assert {
        module: names - known.get(module, set()) for module, names in found.items() if names - known.get(module, set())
    } == {}, "bound what a client or an upstream can add, list it in docs/limits.md, and name it here"


def _containers(tree: ast.Module) -> list[str]:
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            for each in ast.walk(node):
                target = each.targets[0] if isinstance(each, ast.Assign) else getattr(each, "target", None)
                value = getattr(each, "value", None)
                if isinstance(target, ast.Attribute) and _is_container(value):
                    names.append(target.attr)
    return names


def _is_container(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Dict | ast.List | ast.Set):
        return True
    call = value.func if isinstance(value, ast.Call) else None
    name = call.attr if isinstance(call, ast.Attribute) else call.id if isinstance(call, ast.Name) else ""
    return name in _CONTAINERS
