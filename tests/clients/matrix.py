"""Runs a client's task directly, through kvproxy, again from its cache, and with the agents' rules, and checks each run."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvproxy.settings import load_settings
from tests.clients.documented import PAGE, URL, sections
from tests.clients.installed import ROOT, Client
from tests.clients.recorded_proxy import forwarded_pairs, is_hit, run_recorded_proxy, without_requested_usage
from tests.clients.scripted_upstream import Exchange, ScriptedUpstream
from tests.polling import until
from tests.servers import until_stored

CHECKS = ("direct", "1st run", "2nd run", "hits", "bytes", "streams", "no errors", "rules")
_WORD = "marzipan"
_TIMEOUT = 240
# Longer than a busy machine needs to forward an event.
_PAUSE = 0.5
# Clients neither report their use nor update themselves, and write equal commits.
ENVIRONMENT = {
    "AIDER_ANALYTICS": "false",
    "AIDER_CHECK_UPDATE": "false",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "OPENCODE_DISABLE_AUTOUPDATE": "true",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "GIT_AUTHOR_NAME": "Test",
    "GIT_AUTHOR_EMAIL": "test@example.org",
    "GIT_COMMITTER_NAME": "Test",
    "GIT_COMMITTER_EMAIL": "test@example.org",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
}


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of each check: None if it passed, otherwise the cause; a check that was not made is missing."""

    failures: Mapping[str, str | None]
    hits: str = "-"

    @property
    def passed(self) -> bool:
        return len(self.failures) == len(CHECKS) and not any(self.failures.values())


@dataclass(slots=True)
class Task:
    """A client's task in a project folder, which is the same in each run."""

    client: Client
    clients_folder: Path

    def run(self, url: str) -> str:
        """Run the task; return its output, or the error with `FAILED` in front."""
        home = self.clients_folder / "runs" / re.sub(r"\W+", "-", self.client.name).strip("-")
        project = home / "project"
        shutil.rmtree(project, ignore_errors=True)
        project.mkdir(parents=True)
        (project / "note.txt").write_text(f"The word is {_WORD}.\n")
        subprocess.run(["git", "init", "-q"], cwd=project, check=True)
        done = subprocess.run(
            self._command(home, project, url),
            cwd=project,
            env=self._environment(home),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
        )
        if done.returncode:
            return f"FAILED {done.returncode}: {(done.stderr.strip() or done.stdout.strip())[-300:]}"
        return done.stdout

    def is_right(self, output: str, direct: str) -> bool:
        if self.client.task == "section":
            return _WORD in output and not output.startswith("FAILED")
        return output == direct and not output.startswith("FAILED")

    def _command(self, home: Path, project: Path, url: str) -> list[str]:
        note = str(project / "note.txt")
        if self.client.task == "section":
            section = sections(PAGE.read_text())[self.client.name]
            section.write_files(home, project, url)
            if "node " in section.commands:
                (project / "node_modules").symlink_to(self.clients_folder / "node/node_modules")
            return ["bash", "-e", "-c", section.commands.replace(URL, url)]
        if self.client.folder == "node":
            script = self.clients_folder / "node" / self.client.script
            shutil.copy(ROOT / "tests/clients/scripts" / self.client.script, script)
            return ["node", str(script), url, note]
        python = self.clients_folder / self.client.folder / "bin/python"
        return [str(python), "-m", f"tests.clients.scripts.{self.client.script}", url, note]

    def _environment(self, home: Path) -> dict[str, str]:
        programs = [self.clients_folder / "node/node_modules/.bin", self.clients_folder / self.client.folder / "bin"]
        path = os.pathsep.join([*map(str, programs), os.environ["PATH"]])
        return {**ENVIRONMENT, "HOME": str(home), "PATH": path, "PYTHONPATH": str(ROOT)}


def check(client: Client, clients_folder: Path, data: Path) -> Result:
    """Run a client's task five times, and return the outcome of each check."""
    task, upstream = Task(client, clients_folder), ScriptedUpstream(pause=_PAUSE)
    failures: dict[str, str | None] = {}
    with upstream.run() as target:
        # The first run installs parts of some clients.
        direct = task.run(target)
        failures["direct"] = None if task.is_right(direct, direct) else direct[-300:]
        if failures["direct"] is not None:
            return Result(failures)
        upstream.exchanges.clear()
        outputs, clients, count = _run_twice(task, target, data / "plain", rules="")
        pairs = list(forwarded_pairs(clients, upstream.exchanges))
        errors = [*upstream.errors]
        ruled, ruled_clients, _ = _run_twice(task, target, data / "rules", rules=_documented_rules())
        ruled_errors = [*upstream.errors[len(errors) :]]
    for name, output in zip(CHECKS[1:3], outputs, strict=True):
        failures[name] = None if task.is_right(output, direct) else output[-300:]
    second = clients[count:]
    forwarded = [_route(each) for each, _ in pairs if any(each is exchange for exchange in second)]
    hits = sum(is_hit(each) for each in second)
    wrong_hits = forwarded != list(client.forwarded) or hits + len(forwarded) != len(second)
    failures["hits"] = f"forwarded {forwarded}" if wrong_hits else None
    failures["bytes"] = next(_differences(pairs), None)
    failures["streams"] = _first(f"{each.path} arrived whole" for each in clients if _is_unsplit_stream(each))
    wrong_statuses = [f"{_route(each)} {each.status}" for each in clients if _is_failure(each)]
    failures["no errors"] = _first([*errors, *wrong_statuses])
    wrong = [output[-300:] for output in ruled if not task.is_right(output, direct)]
    failed = [f"{_route(each)} {each.status}" for each in ruled_clients if _is_failure(each)]
    changed = _first(_changes_by_rules(ruled_clients, upstream.exchanges))
    failures["rules"] = _first([*wrong, *ruled_errors, *failed, *([changed] if changed else [])])
    return Result(failures, f"{hits} of {len(second)}")


def _run_twice(task: Task, target: str, data: Path, rules: str) -> tuple[list[str], list[Exchange], int]:
    """Run a task twice through a new proxy; return the outputs, the exchanges, and the number of exchanges of the first."""
    data.mkdir(parents=True)
    (data / "kvproxy.toml").write_text(rules)
    settings = load_settings(data=data, upstream=target, cache={"semantic": False})
    with run_recorded_proxy(settings) as (url, services, exchanges):
        first = task.run(url)
        until_stored(services)
        count = len(exchanges)
        second = task.run(url)
        until(lambda: not services.path.requests_in_flight)
        return [first, second], list(exchanges), count


def _documented_rules() -> str:
    return sections(PAGE.read_text())["Rules"].files["kvproxy.toml"]


def _route(exchange: Exchange) -> str:
    """Return the method and the route, without `/v1/`, query, and id of a response."""
    route = exchange.path.partition("?")[0].removeprefix("/v1/")
    return f"{exchange.method} {'responses' if route.startswith('responses/') else route}"


def _is_failure(exchange: Exchange) -> bool:
    # Claude Code probes the address.
    return exchange.status >= 400 and (exchange.method, exchange.path) != ("HEAD", "/")


def _is_unsplit_stream(exchange: Exchange) -> bool:
    is_stream = exchange.response_headers.get("content-type", "").startswith("text/event-stream")
    return is_stream and not is_hit(exchange) and exchange.chunks < 2


def _differences(pairs: Sequence[tuple[Exchange, Exchange]]) -> Iterator[str]:
    for client, upstream in pairs:
        body, content = without_requested_usage(client, upstream)
        if client.body != body:
            yield f"another body of {_route(client)}"
        if client.content != content or client.status != upstream.status:
            yield f"another response of {_route(client)}"
        for name in ("anthropic-beta", "anthropic-version", "user-agent", "authorization", "x-api-key"):
            if client.headers.get(name) != upstream.headers.get(name):
                yield f"another header {name} of {_route(client)}"


def _changes_by_rules(clients: Sequence[Exchange], upstreams: Sequence[Exchange]) -> Iterator[str]:
    """Yield the changes of bodies that marks and repairs do not explain."""
    for client, upstream in forwarded_pairs(clients, upstreams):
        body, _ = without_requested_usage(client, upstream)
        if body and _without_rules(json.loads(client.body)) != _without_rules(json.loads(body)):
            yield f"another body of {_route(client)}"


def _without_rules(value: Any) -> Any:
    """Remove the changes of the agents' rules from JSON.

    These are `cache_control`, the form of arguments and of contents with one text, and the ids and states of repeated items.
    """
    if isinstance(value, list):
        return [_without_rules(each) for each in value]
    if not isinstance(value, dict):
        return value
    ruled = ("cache_control", "id", "status") if value.get("type") == "function_call" else ("cache_control",)
    kept = {name: _without_rules(each) for name, each in value.items() if name not in ruled}
    for name in ("content", "system"):
        if isinstance(kept.get(name), str):
            kept[name] = [{"type": "text", "text": kept[name]}]
    if isinstance(kept.get("arguments"), str):
        kept["arguments"] = json.loads(kept["arguments"])
    return kept


def _first(causes: Any) -> str | None:
    return next(iter(causes), None)
