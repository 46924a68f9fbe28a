"""Which tests stand behind which module: those of its room, and of them first those that speak of it."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# The longest beginning that fits counts. Tests that kill processes or take minutes are left out.
_ROOMS: dict[str, tuple[str, ...]] = {
    "kvproxy/blocks/": ("tests/blocks",),
    "kvproxy/blocks/rows.py": ("tests/blocks/test_view.py", "tests/commands/test_commands.py"),
    "kvproxy/apis/": ("tests/apis", "tests/flow/test_keys.py"),
    "kvproxy/apis/assemblers/reuse.py": ("tests/backends/test_reported_reuse.py",),
    "kvproxy/apis/control.py": ("tests/http/test_control_headers.py",),
    "kvproxy/apis/embedded/": ("tests/apis", "tests/http/test_bad_input.py", "tests/http/test_clients.py"),
    "kvproxy/flow/": ("tests/flow", "tests/http/test_odd_upstreams.py", "tests/http/test_transparency.py"),
    "kvproxy/mirror/": ("tests/mirror",),
    "kvproxy/engine/": ("tests/engine",),
    "index/guards/": ("tests/index/test_guards.py", "tests/index/test_policies.py"),
    "index/policies/": ("tests/index/test_policies.py", "tests/index/learned", "tests/flow/test_decisions.py"),
    "index/learned/": ("tests/index/learned",),
    "index/store/": (
        "tests/index/test_store.py",
        "tests/index/test_store_sqlite.py",
        "tests/index/test_encrypted_store.py",
    ),
    "index/": ("tests/index/test_semantic.py", "tests/index/test_response_cache.py", "tests/index/test_learning.py"),
    "kvproxy/encryption.py": ("tests/settings/test_encryption.py",),
    "kvproxy/redaction.py": ("tests/flow/test_redaction.py",),
    "kvproxy/tiers/": ("tests/tiers/test_chain.py", "tests/tiers/test_stores.py", "tests/tiers/test_codec.py"),
}


def chosen_tests(file: str) -> list[str]:
    """The files of tests for a module, the most telling first."""
    room = max((prefix for prefix in _ROOMS if file.startswith(prefix)), key=len, default=None)
    if room is None:
        raise SystemExit(f"no tests are named for {file}: add its room to tests/mutants/rooms.py")
    found: list[Path] = []
    for name in _ROOMS[room]:
        path = ROOT / name
        found += sorted(path.rglob("test_*.py")) if path.is_dir() else [path] if path.is_file() else []
    module = re.escape(file.removesuffix(".py").removeprefix("kvproxy/").replace("/", "."))
    return [str(path.relative_to(ROOT)) for path in sorted(found, key=lambda path: _distance(path, module))]


def _distance(path: Path, module: str) -> tuple[bool, bool]:
    """How far a file of tests is from a module: first those that are named after it, then those that import it."""
    name = module.rsplit(".", 1)[-1]
    text = path.read_text()
    return name.rstrip("s") not in path.stem, re.search(rf"kvproxy\.{module}\b", text) is None
