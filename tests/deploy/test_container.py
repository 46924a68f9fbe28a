"""The Dockerfile passes a linter, and its image serves from a read-only system as a user without rights."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.container import Containers
from tests.faults.proxies import ask, hit, stored
from tests.plain_upstream import run_plain_upstream
from tests.polling import until
from tests.ports import free_port
from tests.processes import answers

TAG = "kvproxy-under-test"
DOCKERFILE = Path(__file__).resolve().parents[2] / "deploy/Dockerfile"


@pytest.fixture(scope="module")
def containers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containers]:
    made = Containers(tmp_path_factory.mktemp("containers"))
    try:
        made.build(TAG)
        yield made
    finally:
        made("kill", "first", "second", "closed", ok=False)
        made("rm", "--force", "first", "second", "closed", ok=False)
        made("volume", "rm", "--force", TAG, ok=False)
        made.close()


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    with run_plain_upstream() as url:
        yield url


QUESTION = "Does the image answer?"


def test_it_answers_and_keeps_what_it_stored(containers: Containers, upstream: str) -> None:
    port = free_port()
    arguments = ("--upstream", upstream, "--open", "--port", str(port))
    containers.run(TAG, "first", *arguments, volume=TAG)
    until(lambda: answers(f"http://127.0.0.1:{port}/ready"))
    assert stored(ask(f"http://127.0.0.1:{port}", QUESTION))
    assert hit(ask(f"http://127.0.0.1:{port}", QUESTION))
    assert containers("exec", "first", "id", "-u") == "8484"
    # A process inside cannot change the image.
    assert "Read-only file system" in containers("exec", "first", "sh", "-c", "echo > /opt/kvproxy/x", ok=False)
    image = containers.inspect(TAG)
    # Podman and docker keep it in different places.
    check = (image.get("Healthcheck") or image["Config"]["Healthcheck"])["Test"]
    assert check[0] == "CMD"
    containers("exec", "first", *(word.replace("8484", str(port)) for word in check[1:]))
    containers("stop", "--time", "30", "first")
    assert containers.inspect("first")["State"]["ExitCode"] == 0

    containers.run(TAG, "second", *arguments, volume=TAG)
    until(lambda: answers(f"http://127.0.0.1:{port}/ready"))
    assert hit(ask(f"http://127.0.0.1:{port}", QUESTION))
    assert QUESTION in containers("exec", "second", "kvproxy", "cache", "ls", "--data", "/data")
    containers("kill", "second")


def test_it_is_closed_to_others_unless_it_is_told(containers: Containers, upstream: str) -> None:
    """Inside of a container it listens on every address."""
    containers.run(TAG, "closed", "--upstream", upstream, "--port", str(free_port()), volume=TAG)
    code = containers("wait", "closed")
    assert code == "2", containers("logs", "closed")
    assert "kvproxy keys add" in containers("logs", "closed")


def test_what_it_promises_is_in_its_description(containers: Containers) -> None:
    config = containers.inspect(TAG)["Config"]
    assert (config["User"], list(config["ExposedPorts"]), list(config["Volumes"])) == ("8484", ["8484/tcp"], ["/data"])
    assert config["Entrypoint"] == ["kvproxy", "serve", "--host", "0.0.0.0"]
    assert config["StopSignal"] in ("SIGTERM", "15")


def test_a_linter_finds_nothing() -> None:
    if shutil.which("hadolint") is None:
        pytest.skip("hadolint is not installed: make test-deploy installs it")
    done = subprocess.run(["hadolint", str(DOCKERFILE)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
