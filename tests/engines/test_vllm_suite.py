"""vLLM's own unit tests pass with kvproxy's block cache and scheduler under vLLM's names."""

import os
import subprocess
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.commands.run import ROOT
from tests.engines.conftest import Table


@dataclass(frozen=True)
class Suite:
    """`different` has the tests that fail, by what they find; see docs/block-cache.md and docs/engine.md."""

    plugins: tuple[str, ...]
    files: tuple[str, ...]
    passed: int
    different: Mapping[str, str]


SUITES = {
    "block cache": Suite(
        ("kvproxy_names",),
        ("test_prefix_caching.py", "test_single_type_kv_cache_manager.py", "test_kv_cache_utils.py"),
        96,
        {
            "test_null_parent_block_hash": "The event names the kind of its group, which vLLM adds later.",
            "test_hash_block_tokens[sha256_cbor]": "The parent's hash has 3 bytes; a digest has 16 or 32.",
        },
    ),
    "scheduler": Suite(
        ("kvproxy_names", "scheduler_names"),
        ("test_scheduler.py",),
        18,
        dict.fromkeys(
            (
                "test_schedule_concurrent_batches[False-None]",
                "test_schedule_concurrent_batches[True-5]",
                "test_preempt_during_execution",
            ),
            "kvproxy plans a step after the outputs of the previous step.",
        ),
    ),
}


def run_suite(suite: Suite, engines: Path, report: Path) -> None:
    source, adapter = engines / "vllm-tests", Path(__file__).parent / "vllm_suite"
    environment = os.environ | {
        # The adapter must not import this repository's `tests` as vLLM's.
        "PYTHONPATH": os.pathsep.join(str(folder) for folder in (source, adapter, ROOT)),
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    command = [
        str(engines / "vllm/bin/python"), "-m", "pytest", *(f"-p{name}" for name in suite.plugins), "-p", "no:cacheprovider",
        "--noconftest",
        "-c", str(adapter / "pytest.ini"), "--rootdir", str(source), "-q", "-k", "not hisparse", f"--junitxml={report}",
        *(f"{source}/tests/v1/core/{name}" for name in suite.files),
    ]  # fmt: skip
    done = subprocess.run(command, env=environment, cwd=source, capture_output=True, text=True, check=False)
    assert report.exists(), done.stdout[-4000:] + done.stderr[-4000:]


@pytest.mark.parametrize("name", SUITES)
def test_vllms_own_tests_pass(name: str, engines: Path, tmp_path: Path, table: Table) -> None:
    if not (engines / "vllm-tests/tests/v1/core").exists():
        pytest.skip("vLLM's tests are missing: run make test-engines ENGINES='vllm vllm-tests'")
    suite = SUITES[name]
    run_suite(suite, engines, tmp_path / "report.xml")
    passed, failed, causes = 0, dict[str, str](), Counter[str]()
    for case in ElementTree.parse(tmp_path / "report.xml").iter("testcase"):
        skipped, failure = case.find("skipped"), case.find("failure")
        if skipped is not None:
            causes[skipped.get("message", "").removeprefix("Skipped: ").removeprefix("not covered: ")] += 1
        elif failure is not None or case.find("error") is not None:
            failed[case.get("name", "")] = "" if failure is None else (failure.text or "")
        else:
            passed += 1
    table(f"vLLM's tests, {name}", f"{passed} passed, {len(failed)} differ, {sum(causes.values())} not covered")
    for cause, count in causes.most_common():
        table("  not covered", f"{count}: {cause}")
    assert set(failed) == set(suite.different), "\n".join(failed.values())
    assert passed >= suite.passed
