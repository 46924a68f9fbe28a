"""kvproxy calibrate, with pairs and with --stream."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from kvproxy.commands.analyse.calibrate import _bound_sentence, _doubts
from kvproxy.index.evaluation.labelled_pairs import read_pairs
from kvproxy.index.evaluation.stream_evaluation import StreamReport
from kvproxy.index.evaluation.stream_replay import ReplayOutcome
from kvproxy.index.policies.policy import LearningStatus
from tests.commands.run import ROOT, kvproxy, result

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
    told = result("calibrate", "--stream", stream, "--max-error", 0.05, "--orders", 1, "--plot", plot)
    assert told["requests"] == len(LINES)
    assert set(told["policies"]) == {"learned", "learned, equal texts", "checked", "threshold"}
    assert {"hit_rate", "wrong_share", "worst", "curve"} <= set(told["policies"]["learned"])
    assert "level" in told["policies"]["threshold"]
    assert told["orders"]["count"] == 1
    assert plot.read_text().startswith("<?xml")


def test_the_stream_report_is_a_table(stream: Path) -> None:
    done = kvproxy("calibrate", "--stream", stream, "--judge", "similarity", "--verifier", "none")
    assert done.returncode == 0, done.stderr
    assert "20 requests" in done.stdout
    assert "\nchecked" not in done.stdout
    # The best choice is the first row.
    rows = [line.split("\t") for line in done.stdout.splitlines() if "\t" in line]
    best = [row for row in rows[1:] if row[-1] == "best"]
    assert best in ([], [rows[1]])


def test_a_bound_without_comparisons_is_unknown() -> None:
    learning = LearningStatus(0, False, 0.1, 18, None, 18, 0.02, 0.5, 0, by_checked=18)
    assert _bound_sentence(learning).startswith("How many of the 18 hits of learned are wrong is unknown to it")


def test_the_best_policy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s.jsonl"
    subjects = ("a board", "an invoice", "a budget", "a contact", "a calendar", "a map")
    lines = [
        {"text": f"{form} {subject}?", "answer": subject}
        for form in (
            "How do I export",
            "How can I export",
            "Can you tell me how I could export",
            "Please, how do I export",
        )
        for subject in subjects
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = result("calibrate", "--stream", path)
    learned = found["policies"]["learned"]
    (curve,) = learned["curve"]
    assert curve["served"] == learned["by_checked"] > 0
    monkeypatch.setenv("KVPROXY_CACHE__POLICY", "threshold")
    shown = " ".join(kvproxy("calibrate", "--stream", path).stdout.split())
    assert f'The settings have the policy threshold. For best, set cache.policy = "{found["best"]}".' in shown


@pytest.mark.parametrize(
    ("best", "served", "few", "near"),
    [("threshold", 80, True, True), ("threshold", 400, False, True), ("checked", 80, True, False)],
)
def test_a_recommendation_states_what_the_stream_does_not_prove(best: str, served: int, few: bool, near: bool) -> None:
    hits = ReplayOutcome(np.ones(served, bool), np.zeros(served, bool))
    learning = LearningStatus(60, True, 0.1, 0, 0.0, 0, 0.02, 0.5, 0)
    said = " ".join(_doubts(StreamReport(served, 0.02, {best: hits}, 0.89, learning)))
    assert ("The stream is too short: with 0 of 80 hits wrong, up to 4.6%" in said) == few
    assert ("near-misses" in said) == near


@pytest.mark.parametrize(
    ("by_checked", "bounded"), [(0, "its bound is 2.0%."), (1_300, "checked accepted 1,300 of these hits")]
)
def test_the_bound_holds_for_hits_of_the_score(by_checked: int, bounded: str) -> None:
    learning = LearningStatus(60, by_checked == 0, 0.1, 1_303, 0.5, 33, 0.02, 0.5, 0, by_checked=by_checked)
    sentence = _bound_sentence(learning)
    assert "at most 33 wrong ones among its 1,303 hits" in sentence
    assert bounded in sentence
    assert ("is for the others only" in sentence) == bool(by_checked)


def test_the_recipe_makes_labelled_pairs(tmp_path: Path) -> None:
    lines = (ROOT / "docs/recipes/calibrate.md").read_text().splitlines()
    for line in lines:
        if line.startswith("sed "):
            subprocess.run(line.replace(" pairs.jsonl", f" {tmp_path}/pairs.jsonl"), shell=True, check=True, cwd=ROOT)
    found = [pair.same for pair in read_pairs(tmp_path / "pairs.jsonl")]
    assert (found.count(True), found.count(False)) == (250, 803)


def test_pairs_with_both_labels_are_left_out_and_counted(tmp_path: Path) -> None:
    pairs, texts = tmp_path / "pairs.jsonl", ("What is a PIN?", "What is a loan?", "What is a debit card?")
    labelled = [(0, 1, 1), (0, 1, 0), (1, 0, 0), (2, 2, 1)]
    pairs.write_text(
        "".join(json.dumps({"a": texts[a], "b": texts[b], "same": same}) + "\n" for a, b, same in labelled)
    )
    told = result("calibrate", pairs, "--verifier", "none")
    assert (told["pairs"], told["same"], told["contradictory"]) == (1, 1, 1)
    shown = kvproxy("calibrate", pairs, "--verifier", "none").stdout
    assert "1 pair of texts with both labels left out" in shown
    pairs.write_text("".join(pairs.read_text().splitlines(keepends=True)[:3]))
    assert "contradicts all its pairs" in kvproxy("calibrate", pairs, "--verifier", "none").stderr


def test_pairs_are_measured_with_each_policy(tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.jsonl"
    questions = [("What is a debit card?", "What is a debit card?", True), ("What is a PIN?", "What is a loan?", False)]
    lines = [json.dumps(dict(zip(("a", "b", "same"), each, strict=True))) + "\n" for each in questions]
    pairs.write_text("".join([*lines, lines[0]]))
    told = result("calibrate", pairs, "--verifier", "none")
    assert (told["pairs"], told["same"]) == (2, 1)
    assert {"threshold", "guards"} <= set(told)
    shown = kvproxy("calibrate", pairs, "--verifier", "none").stdout
    assert "2 distinct pairs, 1 of them equivalent" in shown
    assert "Hit rate is the served share of the 1 equivalent pair" in shown.splitlines()[-1]
    assert "This limit takes 73 served pairs without a wrong hit, and more with one;" in " ".join(shown.split())
    assert shown.count("no level has at most 5.0% wrong hits") == 1
    heading = next(line for line in shown.splitlines() if line.startswith("policy\t"))
    assert heading.split("\t")[3:] == ["served", "hit_rate", "hit_interval", "wrong", "wrong_interval"]
    assert not any("%" in line for line in shown.splitlines() if "\tsetting\t" in line)
    assert "P-CHR" not in shown
    # The level of the settings does not say which policy is in use.
    assert ("in use" in shown, shown.count("\tsetting\t")) == (False, 2)
    with pairs.open() as file:
        stdin = os.dup(0)
        os.dup2(file.fileno(), 0)
        piped = kvproxy("calibrate", "-", "--verifier", "none").stdout
        os.dup2(stdin, 0)
        os.close(stdin)
    assert "2 distinct pairs" in piped
    pairs.write_text("\n")
    done = kvproxy("calibrate", pairs, "--verifier", "none")
    assert (done.returncode, done.stderr) == (2, f"kvproxy: {pairs} contains no pairs\n")


def test_wrong_pairs_are_listed(tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.jsonl"
    rows = [
        {"a": f"What is a PIN {'of' * count}?", "b": f"What is a PIN {'of' * count}?", "same": 0} for count in range(12)
    ]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    wrong = result("calibrate", pairs, "--verifier", "none")["guards"]["wrong"]
    assert [(pair["a"], pair["score"] > 0.99) for pair in wrong].count((rows[0]["a"], True)) == 1
    assert len(wrong) == 12
    done = kvproxy("calibrate", pairs, "--verifier", "none")
    assert "12 wrong pairs of guards at the setting" in done.stdout
    assert done.stdout.count("What is a PIN") == 20
    assert "and 2 more wrong pairs" in done.stderr


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "a file of pairs, or a stream"),
        (["--stream", "nowhere.jsonl"], "no file"),
        (["--stream", "STREAM", "--judge", "coin"], "equality or similarity"),
        (["--stream", "STREAM", "PAIRS"], "a file of pairs, or a stream"),
        (["--stream", "BAD"], "line 2"),
    ],
)
def test_invalid_streams_and_options_are_reported(stream: Path, tmp_path: Path, options: list[str], told: str) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "a", "answer": "b"}\n{"text": "a"}\n')
    done = kvproxy("calibrate", *({"STREAM": stream, "BAD": bad}.get(word, word) for word in options))
    assert done.returncode in (2, 3)
    assert told in " ".join(done.stderr.split())
