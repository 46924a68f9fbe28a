"""Pins from the command line, against a running demo proxy with a small pool."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from kvproxy.backends.reports import PrefixCacheStats
from kvproxy.blocks.residency import ClientEvictions, ResidencyStats
from kvproxy.blocks.row_types import KVCacheGroupStats
from kvproxy.commands.blocks.engine_lines import eviction_lines, layer_group_lines
from kvproxy.settings import load_settings
from tests.commands.run import ask, kvproxy, result
from tests.polling import until
from tests.servers import run_proxy

SYSTEM = "You answer questions about blocks, and nothing else, in one sentence. " * 4


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    # Blocks for the longest request, and thirty more that pins may hold.
    engine = {"num_blocks": 1 + 32 + 30, "max_model_len": 512}
    data = tmp_path_factory.mktemp("pins")
    with run_proxy(load_settings(data=data, engine=engine, access={"priorities": "all"})) as (address, _):
        yield address


def states(url: str) -> list[str]:
    return [block["state"] for block in result("blocks", "ls", url=url)]


def test_a_pinned_chain_outlives_pressure(url: str, tmp_path: Path) -> None:
    ask(url, "What is a block?", SYSTEM)
    request = tmp_path / "request.json"
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "?"}]
    request.write_text(json.dumps({"messages": messages}))
    done = result("blocks", "pin", "rules", "--file", request, url=url)
    assert done["tokens"] > 0
    assert done["tokens"] % 16 == 0
    assert states(url).count("pinned") == done["tokens"] // 16
    listed = result("blocks", "pins", url=url)
    assert [(pin["name"], pin["seconds_left"]) for pin in listed] == [("rules", None)]
    for name, computed in (("ls", set()), ("chains", set()), ("pins", {"num_blocks"})):
        columns = kvproxy("blocks", name, url=url).stdout.splitlines()[0].split("\t")
        assert set(columns) - set(result("blocks", name, url=url)[0]) == computed, name
    for number in range(10):  # Three times the pool.
        assert ask(url, f"{number} is nothing. " * 60, max_tokens=1).is_success
    assert result("blocks", "stats", url=url)["evictions"] > 62
    explained = result("explain", "?", "--system", SYSTEM, url=url)
    assert explained["prefix"]["matched_tokens"] >= done["tokens"]
    refused = kvproxy("blocks", "reset", url=url)
    assert (refused.returncode, "pinned" in refused.stderr) == (1, True)
    assert "▓ pinned" in kvproxy("blocks", url=url).stdout
    assert "unpinned rules" in kvproxy("blocks", "unpin", "rules", url=url).stdout
    assert "pinned" not in states(url)
    assert result("blocks", "reset", url=url)["reset"]


def test_a_pin_ends_by_itself(url: str) -> None:
    body = ask(url, "What is a chain of blocks?", SYSTEM).request.content
    given = ("blocks", "pin", "short", "What is a chain of blocks?", "--system", SYSTEM, "--ttl", 3600)
    assert result(*given, url=url)["tokens"] > 0
    assert "pinned" in states(url)
    assert result("blocks", "pins", url=url)[0]["seconds_left"] <= 3600
    assert "60m" in kvproxy("blocks", "pins", url=url, columns=80).stdout
    # Said again with a shorter time, over HTTP: a command takes longer than that on a busy machine.
    assert httpx.post(f"{url}/admin/blocks/pins?name=short&ttl=0.05", content=body).is_success
    until(lambda: "pinned" not in states(url))
    assert kvproxy("blocks", "pins", url=url).stderr == "no pins\n"


def test_warm_counts_shared_pinned_blocks_once(url: str) -> None:
    prompts = f"{SYSTEM}one\n{SYSTEM}two".encode()
    warmed = kvproxy("warm", "-", "--format", "prompts", "--prefix-only", "--keep", "--json", url=url, stdin=prompts)
    pins = result("blocks", "pins", url=url)
    assert json.loads(warmed.stdout)["tokens_pinned"] == 16 * len({id for pin in pins for id in pin["blocks"]})
    assert sum(len(pin["blocks"]) for pin in pins) > 1.5 * states(url).count("pinned") > 0
    for pin in pins:
        assert kvproxy("blocks", "unpin", pin["name"], url=url).returncode == 0


def test_pin_errors_are_one_line(url: str) -> None:
    def failed(*arguments: object) -> tuple[int, str]:
        done = kvproxy("blocks", *arguments, url=url)
        assert done.stderr.count("\n") == 1, done.stderr
        return done.returncode, done.stderr

    code, message = failed("pin", "x", "never seen before" * 5)
    assert (code, "no full block of this prompt is cached" in message) == (3, True)
    code, message = failed("pin", "x", "short")
    assert (code, "fewer than a block (16), so it cannot be pinned" in message) == (2, True)
    warmed = kvproxy("warm", "-", "--format", "prompts", "--prefix-only", "--keep", url=url, stdin=b"short\nbrief")
    assert (warmed.returncode, warmed.stderr.count("\n")) == (1, 1)
    assert re.search(r"Total\s+2\b", warmed.stdout)
    assert re.search(r"Failed\s+0\b", warmed.stdout)
    assert re.match(r"lines 1, 2: not pinned: the prompt has \d+ tokens, fewer than a block", warmed.stderr)
    assert failed("unpin", "nothing")[0] == 3
    assert "--limit 0" in kvproxy("blocks", "ls", "--limit", 1, url=url).stderr
    # warm --keep names pins after paths.
    assert "no pin 'folder/questions.txt:1'" in failed("unpin", "folder/questions.txt:1")[1]
    assert "is not a duration" in failed("pin", "x", "prompt", "--ttl", "-1")[1]


def test_pins_leave_room_for_the_longest_request(url: str) -> None:
    for number in range(4):
        words = " ".join(f"w{number}x{count}" for count in range(60))
        ask(url, "And?", words)
        done = kvproxy("blocks", "pin", f"large {number}", "And?", "--system", words, url=url)
        if done.returncode:
            break
    assert done.returncode == 2
    held, needed = map(
        int, re.findall(r"hold (\d+) blocks; the limit is 30, .* --num-blocks (\d+) or more", done.stderr)[0]
    )
    assert needed == 1 + 32 + held
    for pin in result("blocks", "pins", url=url):
        kvproxy("blocks", "unpin", pin["name"], url=url)


def test_priorities_are_checked(url: str) -> None:
    response = ask(url, "priority", headers={"x-kvproxy-priority": "10"})
    assert (response.status_code, "0 to 9" in response.text) == (400, True)
    assert ask(url, "priority", headers={"x-kvproxy-priority": "3"}).is_success
    assert any(block["priority"] == 3 for block in result("blocks", "ls", url=url))


def test_evictions_name_both_tenants_if_several_share_the_pool() -> None:
    def lines(*pairs: ClientEvictions) -> list[str]:
        return eviction_lines(PrefixCacheStats(residency=ResidencyStats(9, 1.0, 1.0, 1.0, 1.0, pairs)))

    assert lines() == lines(ClientEvictions("client:a", "client:a", 3)) == []
    found = lines(ClientEvictions("client:a", "client:b", 3), ClientEvictions(None, "client:a", 1))
    assert found == ["b evicted 3 blocks of a", "a evicted 1 block of public"]
    assert lines(*[ClientEvictions("a", f"b{number}", 1) for number in range(12)])[-1].startswith("2 further pairs")


def test_groups_of_layers_are_named_by_their_window() -> None:
    groups = [KVCacheGroupStats(0, "full_attention", 0, 3, 4), KVCacheGroupStats(1, "sliding_window", 4_096, 1, 2)]
    assert layer_group_lines(groups) == [
        "group 0, full attention: 3 blocks used, 4 cached",
        "group 1, sliding window of 4,096 tokens: 1 block used, 2 cached",
    ]
