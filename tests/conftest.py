"""Shared fixtures: an isolated environment, a proxy with the demo model, and servers of Redis and PostgreSQL."""

import contextlib
import functools
import gc
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import hypothesis
import pytest

import kvproxy.library.configured_cache as response_cache
from kvproxy.analyse import calibration
from kvproxy.http.services import Services
from kvproxy.index.models.embedder import DEFAULT, MULTILINGUAL, Embedder, load_embedder
from kvproxy.index.models.model_threads import model_threads
from kvproxy.index.models.verifier import BUILT_IN, Verifier, load_verifier
from kvproxy.settings import load_settings
from tests.forked_workers import run_fork_server
from tests.postgres_server import empty, run_postgres
from tests.redis_server import RedisServer, run_redis
from tests.servers import run_proxy
from tests.unclosed_resources import name_openers_of_sockets, warn_of_unclosed_databases

_EXAMPLES = float(os.environ.get("KVPROXY_EXAMPLES", "0.4"))
# Variables that select tests. A command would refuse them as unknown settings.
_SWITCHES = (
    *("KVPROXY_BILLS", "KVPROXY_CHATS", "KVPROXY_DEPLOY", "KVPROXY_ENGINES", "KVPROXY_EXAMPLES"),
    *("KVPROXY_LOSSES", "KVPROXY_PREDICTIONS", "KVPROXY_SEED", "KVPROXY_STREAMS"),
)
# A file system in memory, on Linux.
_MEMORY = Path("/dev/shm")
_LONGEST = (
    "tests/ui/",
    "tests/faults/test_harnesses",
    "tests/fleet/",
    "tests/commands/test_no_calls_home",
    "tests/engine/backend/test_reasoning",
    "tests/structure/test_wheel",
    "tests/upstreams/llama/",
    "tests/telemetry/",
    "tests/supply/",
    "tests/engine/",
    "tests/index/",
    "tests/commands/",
    "tests/http/",
    "tests/faults/",
    "tests/engine/backend/",
    "tests/gpu/",
)


def _can_hold_test_files(folder: Path) -> bool:
    """Return whether a folder has the room of a whole run, and may hold programs. Containers have 64 MB by default."""
    if not os.access(folder, os.W_OK):
        return False
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize > 2 << 30 and not found.f_flag & os.ST_NOEXEC


def pytest_configure() -> None:
    """Set the temporary folder, variables that libraries read at import, and the limits of hypothesis and httpx."""
    if "TMPDIR" not in os.environ and _can_hold_test_files(_MEMORY):
        # The databases of a proxy take half of the CPU time there, and wait for no disk. This process has read the variable.
        tempfile.tempdir = os.environ["TMPDIR"] = str(_MEMORY)
    os.environ["HF_HUB_OFFLINE"] = "1"
    # A shell without job control starts background jobs with SIGINT ignored, and their children inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Triton reads it at import.
    os.environ["TRITON_INTERPRET"] = "1"
    # Tiny models run ten times faster on one thread.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # A busy machine takes longer for an example.
    hypothesis.settings.register_profile(
        "kvproxy",
        deadline=None,
        # The same examples in each run; with the variable, others.
        derandomize="KVPROXY_EXAMPLES" not in os.environ,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
        max_examples=max(3, round(100 * _EXAMPLES)),
    )
    # CI and the mutation tests select other profiles.
    if hypothesis.settings.get_current_profile_name() == "default":
        hypothesis.settings.load_profile("kvproxy")
    # The default of five seconds is too short on a busy machine.
    waits = httpx._config.DEFAULT_TIMEOUT_CONFIG
    waits.connect = waits.read = waits.write = waits.pool = 300.0


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each worker whole files, and two folders to one worker each, which starts one browser or parses all sources."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            whole = (folder for folder in ("tests/ui/", "tests/structure/") if nodeid.startswith(folder))
            return next(whole, super()._split_scope(nodeid))

    # The order below is better than the number of tests.
    config.option.loadscopereorder = False
    return Scheduling(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    """Fork the workers from one process that has imported the tests. macOS's libraries do not support a fork."""
    if sys.platform == "linux":
        stack = contextlib.ExitStack()
        config.add_cleanup(stack.close)
        command = stack.enter_context(run_fork_server(config.invocation_params.args))
        for spec in specs:
            spec.python = command


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the files that take longest, so that all workers end at the same time."""
    if config.option.collectonly:
        # A fork collects the same functions again.
        return
    # A property test runs a share of its examples, which KVPROXY_EXAMPLES sets.
    for test in {getattr(item, "obj", None) for item in items}:
        own = getattr(test, "_hypothesis_internal_use_settings", None)
        if own is not None and own.max_examples != hypothesis.settings.default.max_examples:
            count = max(3, round(own.max_examples * _EXAMPLES))
            test._hypothesis_internal_use_settings = hypothesis.settings(own, max_examples=count)
    items.sort(key=lambda item: next((at for at, name in enumerate(_LONGEST) if item.nodeid.startswith(name)), 99))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Exclude imported objects from garbage collection, which would take a tenth of the time of all tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        # Python's default is 700 allocations, where a test makes millions.
        gc.set_threshold(20_000, 10, 50)
        gc.enable()


def _shared(factory: pytest.TempPathFactory) -> Path:
    """Return the folder that all processes of this run share."""
    own = factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session", autouse=True)
def isolated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Isolate the tests from the user's settings, data, and models."""
    with pytest.MonkeyPatch.context() as patch:
        warn_of_unclosed_databases(patch)
        name_openers_of_sockets(patch)
        # Only tests of the timeout set a short one; a busy machine may exceed the default.
        patch.setenv("KVPROXY_CACHE__LOOKUP_TIMEOUT", "30")
        # `auto` depends on the machine, and bfloat16 changes close decisions.
        patch.setenv("KVPROXY_ENGINE__DTYPE", "float32")
        # Each of thousands of clients would load the system's certificates in 30 ms; tests of TLS bring their own.
        patch.setenv("SSL_CERT_DIR", str(tmp_path_factory.mktemp("no_certificates")))
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("xdg")))
        patch.setenv("XDG_CACHE_HOME", str(_shared(tmp_path_factory) / "cache"))
        for name in (
            "KVPROXY_URL",
            "KVPROXY_CONFIG",
            "KVPROXY_DATA",
            "KVPROXY_ADMIN_TOKEN",
            *_SWITCHES,
            "OPENAI_API_KEY",
            "PYTHONHASHSEED",
            "SSL_CERT_FILE",
        ):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def loaded_models() -> Iterator[None]:
    """Load each built-in model once in a process. A start of a proxy takes 0.4 seconds for them."""
    embedder = functools.cache(lambda name: load_embedder(name, None, model_threads()))
    verifier = functools.cache(load_verifier)

    def embedder_of(name: str, *options: Any) -> Embedder:
        return embedder(name) if name in (DEFAULT, MULTILINGUAL) else load_embedder(name, *options)

    def verifier_of(name: str, *options: Any, data_folder: Path | None = None) -> Verifier:
        return verifier(name, *options) if name == BUILT_IN else load_verifier(name, *options, data_folder=data_folder)

    with pytest.MonkeyPatch.context() as patch:
        for module in (response_cache, calibration):
            patch.setattr(module, "load_embedder", embedder_of)
            patch.setattr(module, "load_verifier", verifier_of)
        yield


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Services]]:
    """Run a proxy with the demo model and the real embedder."""
    data: Path = tmp_path_factory.mktemp("demo")
    with run_proxy(load_settings(data=data, engine={"num_blocks": 512})) as running:
        yield running


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    with run_redis() as server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """URL of a server."""
    with run_postgres() as server:
        yield server.url


@pytest.fixture
def empty_postgres(postgres: str) -> str:
    """URL of a server without a store."""
    empty(postgres)
    return postgres
