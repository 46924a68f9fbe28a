"""The log of the process: its format and level."""

import json
import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path

from tests.ports import free_port


def test_each_line_is_a_json_object(tmp_path: Path) -> None:
    dead = f"http://127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "kvproxy", "serve", "--port", "0", "--no-semantic", "--upstream", dead]
    command += ["--data", str(tmp_path), "--log-format", "json", "--log-level", "info"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ)
    assert process.stderr is not None
    assert process.stdout is not None
    lines = [json.loads(process.stderr.readline())]
    process.send_signal(1)  # SIGHUP reloads the rules, and logs their number.
    while lines[-1]["level"] != "info":
        lines.append(json.loads(process.stderr.readline()))
    process.terminate()
    lines += [json.loads(line) for line in process.stderr]
    process.wait()
    process.stderr.close()
    ready = [json.loads(line) for line in process.stdout]
    process.stdout.close()
    assert [each["upstreams"] for each in ready] == [[dead]]
    assert {line["level"] for line in lines} == {"info", "warning"}
    for line in lines:
        assert set(line) == {"time", "level", "logger", "message"}
        assert datetime.fromisoformat(line["time"]).tzinfo is not None
    assert dead in lines[0]["message"]
    assert [line["message"] for line in lines].count("stopping; requests in flight: 0") == 1
