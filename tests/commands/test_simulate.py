"""kvproxy simulate."""

import json
from pathlib import Path

import pytest

from kvproxy.analyse.simulate import routing_simulation
from kvproxy.commands.analyse.options import format_pool_size
from tests.commands.run import kvproxy, result

DATA = Path(__file__).resolve().parents[1] / "analyse/simulate/data"


def test_a_sweep_with_its_picture(tmp_path: Path) -> None:
    model = tmp_path / "config.json"
    model.write_text(json.dumps({"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}))
    picture, report = tmp_path / "curves.png", tmp_path / "report.html"
    arguments = ("simulate", DATA / "mooncake-300.jsonl", "--blocks", "500,2000", "--policies", "lru,belady")
    found = result(*arguments, "--plot", picture, "--model", tmp_path, "--report", report)
    assert found["sizes"] == [500, 2000]
    assert found["bytes_per_token"] == 2 * 2 * 2 * 4 * 16
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert all(text in report.read_text() for text in ("<svg", found["recommendation"], *found["assumptions"]))
    assert "hit rate of an unlimited pool" in kvproxy(*arguments).stdout


def test_a_pool_of_one_block_has_the_singular() -> None:
    assert str(format_pool_size(1, 16)) == "16 tokens (1 block)"
    assert str(format_pool_size(0, 16)) == "0 tokens (0 blocks)"


def test_rates_are_shares_of_the_tokens(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(f"{json.dumps({'tokens': list(range(18))})}\n" * 3)
    options = ("simulate", trace, "--block-size", 4)
    shown = kvproxy(*options).stdout
    assert "3 requests, 54 tokens (15 blocks)\nhit rate of an unlimited pool: 59.3% of the prompt tokens" in shown
    assert "of the prompt tokens" in shown
    found = result(*options)
    assert found["rates"]["lru"][-1] == found["unlimited"] == 32 / 54
    note = "the trace has no times, so the policy sessions is the same as lru"
    assert note in kvproxy(*options, "--policies", "lru,sessions").stderr
    assert note not in kvproxy(*options).stderr


def test_memory_sets_the_pools_of_a_fleet() -> None:
    trace = DATA / "mooncake-300.jsonl"
    options = ("simulate", trace, "--engines", 2, "--bytes-per-token", 1024, "--memory")
    # A block has 512 tokens of 1 KiB.
    assert result(*options, "1GiB")["shape"]["blocks"] == 2048
    assert result(*options[:4], "--blocks", 2048)["results"] == result(*options, "1GiB")["results"]
    done = kvproxy(*options, "1GiB,2GiB")
    assert (done.returncode, "--blocks and --memory take one size" in done.stderr) == (2, True)


@pytest.mark.parametrize("fleet", [("--engines", 2), ("--ttft", 60)])
def test_options_without_effect_on_a_fleet_are_an_error(
    fleet: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = "--policies lru --exact --plot a.svg --report a.html --hour-price 2 --model m --bytes-per-token 9"
    done = kvproxy("simulate", DATA / "mooncake-300.jsonl", *fleet, *options.split())
    assert done.returncode == 2
    assert [name for name in options.split() if name.startswith("--") and name not in done.stderr] == []
    assert "cannot be used with --engines or --ttft" in done.stderr


def test_wrong_usage() -> None:
    trace = DATA / "mooncake-300.jsonl"
    for options, message in (
        (("--policies", "mru"), "unknown policy 'mru': use lru"),
        (("--blocks", "many"), "--blocks takes integers of at least 1"),
        (("--engines", 2, "--ttft", 60), "--engines cannot be used with --ttft"),
        (("--users", 5), "--users requires a folder"),
        (("--event-loss", 0.5), "--event-loss cannot be used without --engines or --ttft"),
        (("--blocks", 1000, "--memory", "1GiB"), "--blocks and --memory exclude each other"),
        (("--engines", 2, "--memory", "1GiB"), "--memory requires --model or --bytes-per-token"),
        (("--prefill-rate", 9), "--prefill-rate requires --model or --bytes-per-token"),
        (("--hour-price", 2), "--hour-price requires --model or --bytes-per-token"),
    ):
        done = kvproxy("simulate", trace, *options)
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr


def test_a_target_that_no_fleet_reaches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing_simulation, "MAX_ENGINES", 8)
    # A prompt of 1,000 tokens is computed in 0.1 s by any number of engines.
    trace = tmp_path / "trace.jsonl"
    prompt = {"timestamp": 0, "input_length": 1000, "output_length": 1, "hash_ids": [1, 2]}
    trace.write_text(f"{json.dumps(prompt)}\n")
    shown = kvproxy("simulate", trace, "--ttft", 0.05).stdout
    assert "not reached with up to 8 engines: a p99 of 0.05 s (round-robin, " in shown
    assert [line.split("\t")[1] for line in shown.splitlines()[1:6]] == [""] * 5
    found = result("simulate", trace, "--ttft", 0.05)
    assert (found["ttft"], found["max_engines"]) == (0.05, 8)
    assert {each["engines"] for each in found["results"]} == {each["wait_p99"] for each in found["results"]} == {None}
    reached = result("simulate", trace, "--ttft", 0.2)["results"]
    assert {each["engines"] for each in reached} == {1}


def test_the_recommendation_names_policies_that_were_not_simulated() -> None:
    options = ("simulate", DATA / "mooncake-300.jsonl", "--blocks", 500, "--policies")
    assert "Not simulated: s3fifo, sessions" in result(*options, "lru")["recommendation"]
    assert "Not simulated" not in result(*options, "lru,s3fifo,sessions")["recommendation"]


def test_a_pipe_receives_raw_numbers() -> None:
    trace = DATA / "mooncake-300.jsonl"
    options = ("simulate", trace, "--blocks", "500,2000", "--policies", "lru,belady", "--exact")
    options = (*options, "--bytes-per-token", "1024", "--tier", "host=1", "--hour-price", "2")
    found = result(*options)
    head, *rows = (line.split("\t") for line in kvproxy(*options).stdout.splitlines()[:3])
    assert head == ["pool_tokens", "lru", "belady", "ttft", "host", "price", "belady_error"]
    for at, row in enumerate(rows):
        cost = found["costs"][at]
        expected = [
            found["sizes"][at] * found["block_tokens"],
            *(found["rates"][policy][at] for policy in ("lru", "belady")),
            *(cost["ttft"], cost["hits"]["host"], cost["price"], 0),
        ]
        assert [float(cell) for cell in row] == pytest.approx(expected)
