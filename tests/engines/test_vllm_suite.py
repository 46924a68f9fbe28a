"""vLLM's own unit tests of the block cache pass with kvproxy's block cache under vLLM's names."""

import os
import subprocess
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.commands.run import ROOT
from tests.engines.conftest import Table

FILES = (
    "test_prefix_caching.py",
    "test_single_type_kv_cache_manager.py",
    "test_kv_cache_utils.py",
)
DIFFERENT = {
    "test_null_parent_block_hash": "The event names the kind of its group, which vLLM adds later.",
    "test_hash_block_tokens[sha256_cbor]": "The parent's hash has 3 bytes; a digest has 16 or 32.",
}
"""Tests that fail, by what they find; see docs/block-cache.md."""
MIN_PASSED = 96


def run_suite(engines: Path, report: Path) -> None:
    source, adapter = engines / "vllm-tests", Path(__file__).parent / "vllm_suite"
    environment = os.environ | {
        # The adapter must not import this repository's `tests` as vLLM's.
        "PYTHONPATH": os.pathsep.join(str(folder) for folder in (source, adapter, ROOT)),
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    command = [
        str(engines / "vllm/bin/python"), "-m", "pytest", "-p", "kvproxy_names", "-p", "no:cacheprovider", "--noconftest",
        "-c", str(adapter / "pytest.ini"), "--rootdir", str(source), "-q", "-k", "not hisparse", f"--junitxml={report}",
        *(f"{source}/tests/v1/core/{name}" for name in FILES),
    ]  # fmt: skip
    done = subprocess.run(command, env=environment, cwd=source, capture_output=True, text=True, check=False)
    assert report.exists(), done.stdout[-4000:] + done.stderr[-4000:]


def test_vllms_tests_of_the_block_cache_pass(engines: Path, tmp_path: Path, table: Table) -> None:
    if not (engines / "vllm-tests/tests/v1/core").exists():
        pytest.skip("vLLM's tests are missing: run make test-engines ENGINES='vllm vllm-tests'")
    run_suite(engines, tmp_path / "report.xml")
    passed, failed, causes = 0, dict[str, str](), Counter[str]()
    for case in ElementTree.parse(tmp_path / "report.xml").iter("testcase"):
        skipped, failure = case.find("skipped"), case.find("failure")
        if skipped is not None:
            causes[skipped.get("message", "").removeprefix("Skipped: ").removeprefix("not covered: ")] += 1
        elif failure is not None or case.find("error") is not None:
            failed[case.get("name", "")] = "" if failure is None else (failure.text or "")
        else:
            passed += 1
    table(
        "vLLM's tests of the block cache", f"{passed} passed, {len(failed)} differ, {sum(causes.values())} not covered"
    )
    for cause, count in causes.most_common():
        table("  not covered", f"{count}: {cause}")
    assert set(failed) == set(DIFFERENT), "\n".join(failed.values())
    assert passed >= MIN_PASSED
