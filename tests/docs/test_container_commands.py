"""The container commands of docs/deployment.md start a proxy, tested without a container engine."""

import os
import re
import shlex
import sys
from pathlib import Path

from tests.commands.run import kvproxy
from tests.plain_upstream import run_plain_upstream
from tests.ports import free_port
from tests.processes import serve

ROOT = Path(__file__).resolve().parents[2]
KVPROXY = [sys.executable, "-m", "kvproxy"]


def entrypoint() -> list[str]:
    """The arguments for kvproxy that the image puts before those of `podman run`."""
    match = re.search(r'^ENTRYPOINT \["kvproxy", (.*)\]$', (ROOT / "deploy/Dockerfile").read_text(), re.M)
    assert match
    return [word.strip('"') for word in match[1].split(", ")]


def kvproxy_arguments(line: str) -> list[str]:
    words = shlex.split(line)
    image = len(words) - 1 - words[::-1].index("kvproxy")
    return words[image + 1 :] if "--entrypoint" in words else [*entrypoint(), *words[image + 1 :]]


def test_the_printed_container_commands_start_a_proxy(tmp_path: Path) -> None:
    section = (ROOT / "docs/deployment.md").read_text().partition("## A container")[2].partition("\n## ")[0]
    *before, last = [kvproxy_arguments(line) for line in section.splitlines() if line.startswith("podman run")]
    data, port = str(tmp_path / "data"), free_port()
    env = os.environ | {"KVPROXY_DATA": data}
    for arguments in before:
        assert kvproxy(*(word.replace("/data", data) for word in arguments), KVPROXY_DATA=data).returncode == 0
    with run_plain_upstream() as upstream:
        arguments = [word.replace("http://SERVER:8000", upstream) for word in last]
        with serve([*KVPROXY, *arguments, "--port", str(port)], port, tmp_path / "log", env=env):
            pass


def test_every_copied_file_exists_and_is_sent_to_the_builder() -> None:
    included = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    lines = re.findall(r"^COPY (?!--from)(.+)$", (ROOT / "deploy/Dockerfile").read_text(), re.MULTILINE)
    copied = {name for line in lines for name in line.split()[:-1]}
    assert copied == included
    assert [name for name in copied if not (ROOT / name).exists()] == []
