"""A proxy in front of an upstream loads no model library, even for a semantic hit."""

import os
import signal
import sys
from pathlib import Path

import httpx

from tests.plain_upstream import ANSWER, run_plain_upstream
from tests.ports import free_port
from tests.processes import serve
from tests.statuses import makes_entry

HEAVY = {"torch", "transformers", "sentence_transformers", "pandas", "sklearn", "scipy", "matplotlib"}

PROGRAM = """
import sys
from kvproxy.commands import main
try:
    main()
finally:
    print("loaded:", *sorted(name for name in sys.modules if "." not in name), flush=True)
"""


def test_a_proxy_in_front_of_an_upstream_stays_light(tmp_path: Path) -> None:
    port = free_port()
    with run_plain_upstream() as upstream:
        command = [sys.executable, "-c", PROGRAM, "serve", "--upstream", upstream, "--port", str(port)]
        command += ["--data", str(tmp_path / "data")]
        with serve(command, port, tmp_path / "log", env=dict(os.environ)) as server:
            statuses = []
            for question in ("How do I reset my password?", "How can I reset my password?"):
                body = {"model": "plain", "temperature": 0, "messages": [{"role": "user", "content": question}]}
                answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=30)
                assert answer.json()["choices"][0]["message"]["content"] == ANSWER
                statuses.append(answer.headers["cache-status"])
            server.process.send_signal(signal.SIGINT)
            server.process.wait(timeout=30)
            log = server.log.read_text()
    assert makes_entry(statuses[0])
    assert "semantic" in statuses[1]
    (line,) = (line for line in log.splitlines() if line.startswith("loaded:"))
    loaded = set(line.split()[1:])
    assert {"onnxruntime", "kvproxy"} <= loaded
    assert loaded & HEAVY == set()
