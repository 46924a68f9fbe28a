"""kvproxy simulate."""

import json
from pathlib import Path

from tests.commands.run import kvproxy, result

DATA = Path(__file__).resolve().parents[1] / "simulate/data"


def test_a_sweep_with_its_picture(tmp_path: Path) -> None:
    model = tmp_path / "config.json"
    model.write_text(json.dumps({"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}))
    picture = tmp_path / "curves.png"
    arguments = ("simulate", DATA / "mooncake-300.jsonl", "--blocks", "500,2000", "--policies", "lru,belady")
    found = result(*arguments, "--plot", picture, "--model", tmp_path)
    assert found["sizes"] == [500, 2000]
    assert found["bytes_per_token"] == 2 * 2 * 2 * 4 * 16
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "hit rate of an unlimited pool" in kvproxy(*arguments).stdout


def test_rates_are_shares_of_the_tokens(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(f"{json.dumps({'tokens': list(range(18))})}\n" * 3)
    options = ("simulate", trace, "--block-size", 4)
    shown = kvproxy(*options).stdout
    assert "3 requests, 54 tokens (15 blocks); hit rate of an unlimited pool 59.3%\n" in shown
    assert "of the prompt tokens" in shown
    found = result(*options)
    assert found["rates"]["lru"][-1] == found["unlimited"] == 32 / 54


def test_wrong_usage(tmp_path: Path) -> None:
    trace = DATA / "mooncake-300.jsonl"
    assert kvproxy("simulate", trace, "--policies", "mru").returncode == 2
    assert kvproxy("simulate", trace, "--blocks", "many").returncode == 2
    bad = tmp_path / "bad.jsonl"
    bad.write_text("nonsense\n")
    done = kvproxy("simulate", bad)
    assert (done.returncode, "line 1: not JSON" in done.stderr) == (2, True)
