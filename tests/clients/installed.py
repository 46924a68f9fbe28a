"""The clients of `make test-clients`: their packages, and how to run a task with each."""

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).parents[2]
_UV = "uv==0.13.9"


@dataclass(frozen=True, slots=True)
class Client:
    """A client and its task.

    Attributes:
        name: as in docs/agent-clients.md.
        folder: `node`, or the name of the client's virtual environment.
        task: `section` for the commands in the section of the docs, `script` for a script of `tests/clients/scripts`.
        script: name of the script.
        packages: requirements of the virtual environment.
        forwarded: requests of a second, equal run that are forwarded, as method and route without `/v1/`.
    """

    name: str
    folder: str = "node"
    task: Literal["section", "script"] = "section"
    script: str = ""
    packages: Sequence[str] = ()
    forwarded: Sequence[str] = ()


def _python(name: str, script: str, *packages: str, forwarded: Sequence[str] = ()) -> Client:
    return Client(name, script.replace("_", "-"), "script", f"{script}_sdk", packages, forwarded)


# Ids that live at the provider are never replayed: message threads, stored responses.
_THREAD = ["POST messages"] * 2
_PREVIOUS = ["POST responses"] * 2

CLIENTS: Sequence[Client] = (
    Client("Claude Code"),
    # The second request contains the result of a tool with a random `Chunk ID`.
    Client("Codex", forwarded=["POST responses"]),
    Client("opencode"),
    Client("opencode with a compatible server"),
    Client("aider", "aider", packages=["aider-chat==0.86.2"]),
    Client("llm", "llm", packages=["llm==0.36"]),
    Client("AI SDK"),
    Client("`ai` (chat, Responses, Messages)", task="script", script="ai_sdk.mjs"),
    Client("`openai` for Node.js", task="script", script="openai_node.mjs", forwarded=[*_PREVIOUS, "DELETE responses"]),
    Client("`@anthropic-ai/sdk`", task="script", script="anthropic_node.mjs", forwarded=_THREAD),
    _python(
        "`openai`",
        "openai",
        "openai==3.57.0",
        forwarded=["GET models", *_PREVIOUS, "GET responses", *["DELETE responses"] * 2],
    ),
    _python("`anthropic`", "anthropic", "anthropic==2.14.0", forwarded=["POST messages/count_tokens", *_THREAD]),
    _python("`langchain-openai`", "langchain", "langchain-openai==1.7.4"),
    _python("`pydantic-ai`", "pydantic_ai", "pydantic-ai-slim[openai,anthropic]==2.68.0"),
    _python("`openai-agents`", "openai_agents", "openai-agents==0.24.0"),
    _python("`litellm`", "litellm", "litellm==1.110.2"),
    _python("`llama-index-llms-openai-like`", "llama_index", "llama-index-llms-openai-like==0.8.1"),
    _python("`dspy`", "dspy", "dspy==3.4.1"),
)


class InstallationError(Exception):
    """A client cannot be installed on this machine."""


def install(client: Client, clients_folder: Path) -> None:
    """Install a client's packages, unless the same ones are installed.

    Raises:
        InstallationError: a program is missing, or the registry refused the packages.
    """
    folder = clients_folder / client.folder
    if client.folder == "node":
        wanted = (ROOT / "tests/clients/node/package.json").read_text()
        commands = [["npm", "install", "--no-audit", "--no-fund"]]
    else:
        wanted = "\n".join(client.packages)
        uv = clients_folder / "uv"
        if not (uv / "bin/uv").exists():
            venv.create(uv, with_pip=True)
            _run([str(uv / "bin/pip"), "install", "--quiet", _UV], clients_folder)
        commands = [
            [str(uv / "bin/uv"), "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(folder)],
            [str(uv / "bin/uv"), "pip", "install", "--python", str(folder / "bin/python"), *client.packages],
        ]
    done = folder / ".installed"
    if done.exists() and done.read_text() == wanted:
        return
    if (program := commands[0][0]) and shutil.which(program) is None:
        raise InstallationError(f"{program} is missing: install Node.js 20 or later")
    folder.mkdir(parents=True, exist_ok=True)
    if client.folder == "node":
        (folder / "package.json").write_text(wanted)
    for command in commands:
        _run(command, folder)
    done.write_text(wanted)


def _run(command: Sequence[str], folder: Path) -> None:
    print("installing:", " ".join(command[-4:]), flush=True)
    # Without a virtual environment of the caller.
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)
    if done.returncode:
        raise InstallationError((done.stderr.strip() or done.stdout.strip()).splitlines()[-1])
