"""Measures the cached tokens that a new Claude Code session reads: `python -m tests.clients.new_session FOLDER`.

Each session has its own project, home, and question, so that only the tools and the beginning of the system prompt are equal.
The exit status is 1 if a session behind kvproxy does not read at least the tools. The scripted upstream bills by Anthropic's
rules, at four bytes per token.
"""

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvproxy.settings import load_settings
from tests.clients.anthropic_api import blocks_of
from tests.clients.installed import CLIENTS, install
from tests.clients.matrix import ENVIRONMENT
from tests.clients.prompt_cache import PromptUsage
from tests.clients.scripted_upstream import ScriptedUpstream
from tests.servers import run_proxy

_MODES = (None, "5m", "1h", "auto")
_TIMEOUT = 240


@dataclass(frozen=True, slots=True)
class FirstRequest:
    """Numbers of tokens in the first request of a session: all, read from the cache, written to it, and of the tools."""

    total: int
    read: int
    written: int
    tools: int


def main(folder: str) -> int:
    clients = Path(folder).resolve()
    clients.mkdir(parents=True, exist_ok=True)
    install(next(client for client in CLIENTS if client.name == "Claude Code"), clients)
    is_read = True
    print("| breakpoints | session | tokens | of which tools | read | written |\n|---|---|---|---|---|---|")
    for mode in _MODES:
        first, second = two_sessions(clients / "node/node_modules/.bin/claude", mode)
        for name, found in (("first", first), ("second", second)):
            print(
                f"| {mode or 'client only'} | {name} | {found.total:,} | {found.tools:,} | {found.read:,} | {found.written:,} |"
            )
        is_read &= mode is None or second.read >= second.tools
    return 0 if is_read else 1


def two_sessions(claude: Path, breakpoints: str | None) -> list[FirstRequest]:
    """Run two sessions through a new proxy; return the first request with tools of each."""
    upstream, found = ScriptedUpstream(), list[FirstRequest]()
    rules = () if breakpoints is None else ({"name": "claude", "path": "/v1/messages", "breakpoints": breakpoints},)
    with tempfile.TemporaryDirectory() as folder, upstream.run() as target:
        settings = load_settings(data=Path(folder) / "data", upstream=target, rules=rules, cache={"enabled": False})
        with run_proxy(settings) as (url, _):
            for name in ("one", "two"):
                before = len(upstream.anthropic.bodies)
                _ask(claude, url, Path(folder) / name, f"What is the word in note.txt of project {name}?")
                requests = zip(upstream.anthropic.bodies[before:], upstream.anthropic.usages[before:], strict=True)
                found.append(next(_first_request(body, usage) for body, usage in requests if body.get("tools")))
    return found


def _first_request(body: dict[str, Any], usage: PromptUsage) -> FirstRequest:
    tools = sum(block.tokens for block in list(blocks_of(body))[: len(body["tools"])])
    return FirstRequest(usage.total, usage.read, sum(usage.written.values()), tools)


def _ask(claude: Path, url: str, home: Path, question: str) -> None:
    project = home / "project"
    project.mkdir(parents=True)
    (project / "note.txt").write_text("The word is marzipan.\n")
    settings = {"HOME": str(home), "ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "sk-ant-1"}
    done = subprocess.run(
        [str(claude), "-p", question, "--allowedTools", "Read"],
        cwd=project,
        env={**os.environ, **ENVIRONMENT, **settings},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT,
    )
    if "marzipan" not in done.stdout:
        raise RuntimeError(f"Claude Code failed: {(done.stderr or done.stdout)[-300:]}")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
