"""kvproxy calibrate --stream."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvproxy.commands import app

LINES = [
    {"text": f"{opening} {subject}?", "answer": subject}
    for opening in ("what is", "please tell me about", "explain", "can you say what is meant by")
    for subject in ("a savings account", "the exchange rate", "a direct debit", "my card's pin", "the cash machine")
]


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    path = tmp_path / "s.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return path


def test_the_stream_report_contains_every_policy(stream: Path, tmp_path: Path) -> None:
    plot = tmp_path / "curve.svg"
    options = ["--max-error", "0.05", "--orders", "1", "--judge-error", "0.01", "--plot", str(plot), "--json"]
    run = CliRunner().invoke(app, ["calibrate", "--stream", str(stream), *options])
    assert run.exit_code == 0, run.output
    told = json.loads(run.stdout)
    assert told["requests"] == len(LINES)
    assert set(told["policies"]) == {"learned", "checked", "threshold"}
    assert {"hit_rate", "wrong_share", "worst", "curve"} <= set(told["policies"]["learned"])
    assert "level" in told["policies"]["threshold"]
    assert told["orders"]["count"] == 1
    assert plot.read_text().startswith("<?xml")


def test_the_stream_report_is_a_table(stream: Path) -> None:
    run = CliRunner().invoke(app, ["calibrate", "--stream", str(stream), "--judge", "similarity", "--verifier", "none"])
    assert run.exit_code == 0, run.output
    assert "20 requests" in run.output
    assert "learned" in run.output
    assert "checked" not in run.output.split("learned was")[0]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "a file of pairs, or a stream"),
        (["--stream", "nowhere.jsonl"], "no file"),
        (["--stream", "STREAM", "--judge", "coin"], "equality or similarity"),
        (["--stream", "STREAM", "PAIRS"], "a file of pairs, or a stream"),
    ],
)
def test_invalid_stream_options_are_reported(stream: Path, options: list[str], told: str) -> None:
    run = CliRunner().invoke(app, ["calibrate", *(str(stream) if word == "STREAM" else word for word in options)])
    assert run.exit_code != 0
    assert told in str(run.output) + str(run.exception)


def test_an_invalid_line_of_a_stream_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"text": "a", "answer": "b"}\n{"text": "a"}\n')
    run = CliRunner().invoke(app, ["calibrate", "--stream", str(path)])
    assert run.exit_code != 0
    assert "line 2" in str(run.output) + str(run.exception)
