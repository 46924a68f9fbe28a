"""A process prints its threads and tasks with their stacks."""

import os
import subprocess
import sys
from pathlib import Path

from tests.faults.task_stacks import TASK_STACKS, task_stacks
from tests.polling import until

WAITING = """
import asyncio

async def wait():
    print("begun", flush=True)
    await asyncio.to_thread(input)

asyncio.run(wait())
"""


def test_a_process_shows_what_its_tasks_and_threads_wait_for(tmp_path: Path) -> None:
    log, script = tmp_path / "log", tmp_path / "waiting.py"
    script.write_text(WAITING)
    command, environment = [sys.executable, str(script)], os.environ | {"PYTHONPATH": str(TASK_STACKS)}
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output, env=environment) as process,
    ):
        until(lambda: "begun" in log.read_text())
        stacks = task_stacks(process.pid, log)
        process.communicate(b"\n")
    assert process.returncode == 0
    assert f"{script}:6\n" in stacks
    assert "in run\n" in stacks
    assert stacks.startswith("begun\n")
