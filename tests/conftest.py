"""What several rooms' tests need: a proxy with the demo model, and an isolated environment."""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import hypothesis
import pytest

from kvproxy.http.services import Services
from kvproxy.settings import load_settings
from tests.redis_server import RedisServer, run_redis
from tests.servers import run_proxy


def pytest_configure() -> None:
    """Read once when the hub's library is imported, so it must be set before any test is."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    # A shell without job control has what it starts in the background ignore Ctrl-C, and all that this starts in turn.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Triton decides how a kernel runs when it is imported, which any test may bring about.
    os.environ["TRITON_INTERPRET"] = "1"
    # Tiny models are computed ten times faster on one thread, in the processes that tests start too.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # How long an example takes is the machine's affair, and how busy it is.
    hypothesis.settings.register_profile(
        "kvproxy", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
    # Who runs the tests may have chosen another: CI, or what looks for changes that no test notices.
    if hypothesis.settings.get_current_profile_name() == "default":
        hypothesis.settings.load_profile("kvproxy")
    # The same holds for the answers that tests wait for: five seconds are little where others compute too.
    waits = httpx._config.DEFAULT_TIMEOUT_CONFIG
    waits.connect = waits.read = waits.write = waits.pool = 60.0


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Leave out what is imported where garbage is looked for: that would take a tenth of the time of all tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _shared(factory: pytest.TempPathFactory) -> Path:
    """The folder of this run, shared by the processes that it is spread over."""
    own = factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session", autouse=True)
def isolated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads the settings, the state or the models of whoever runs it."""
    with pytest.MonkeyPatch.context() as patch:
        # Whatever the machine is busy with: what is not a test of the budget finds its time.
        patch.setenv("KVPROXY_CACHE__LOOKUP_TIMEOUT", "30")
        # What is fastest differs between machines, and answers in bfloat16 may differ in near ties.
        patch.setenv("KVPROXY_ENGINE__DTYPE", "float32")
        # Nobody here is asked over TLS but with certificates of the test's own, and reading those of the world takes each of
        # thousands of clients 30 milliseconds.
        patch.setenv("SSL_CERT_DIR", str(tmp_path_factory.mktemp("no_certificates")))
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("xdg")))
        patch.setenv("XDG_CACHE_HOME", str(_shared(tmp_path_factory) / "cache"))
        for name in (
            "KVPROXY_URL",
            "KVPROXY_CONFIG",
            "KVPROXY_DATA",
            "KVPROXY_ADMIN_TOKEN",
            "OPENAI_API_KEY",
            "PYTHONHASHSEED",
            "SSL_CERT_FILE",
        ):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Services]]:
    """A running proxy with the demo model and the real embedder: its URL and its parts."""
    data: Path = tmp_path_factory.mktemp("demo")
    with run_proxy(load_settings(data=data, engine={"num_blocks": 512})) as running:
        yield running


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    """A redis-server of the test's own."""
    with run_redis() as server:
        yield server
