"""Folders of logs and transcripts."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from kvproxy.analyse.log_files import find_log_files
from kvproxy.commands.analyse.options import read_requests
from tests.analyse.test_log_formats import CHAT, LITELLM
from tests.analyse.test_spending import write_transcripts
from tests.commands.run import Done, kvproxy

USAGE = {"prompt_tokens": 1_000, "completion_tokens": 10}


def export(number: int, **fields: Any) -> str:
    """Return a row of LiteLLM's spend logs."""
    return json.dumps(LITELLM | {"request_id": f"r{number}", "startTime": f"2026-11-0{number}T10:00:00Z"} | fields)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Exports of three days, which overlap, in several formats, and files that are no logs."""
    logs = tmp_path / "logs"
    (logs / "more").mkdir(parents=True)
    (logs / "day2.jsonl").write_text(f"{export(2)}\n{export(3)}\n")
    (logs / "day1.jsonl.gz").write_bytes(gzip.compress(f"{export(1)}\n{export(2)}\ngarbage\n".encode()))
    call = json.dumps(CHAT["messages"]).replace('"', '""')
    (logs / "more" / "trace.csv").write_text(
        "id,traceId,startTime,type,model,input,output,usage\n"
        f'o,t,2026-11-01T11:00:00Z,GENERATION,gpt-4o,"{call}",a,"{{""input"": 1000, ""output"": 10}}"\n'
    )
    (logs / "notes.jsonl").write_text('{"a": 1}\n')
    (logs / "readme.md").write_text("# Logs\n")
    return logs


def run(folder: Path, *options: str) -> Done:
    done = kvproxy("estimate", folder, "--data", folder.parent / "data", *options)
    assert done.returncode == 0, done
    return done


def test_a_folder_of_logs_is_read_as_one(folder: Path) -> None:
    done = run(folder, "--json")
    document = json.loads(done.stdout)
    assert document["requests"] == 4
    assert document["log"]["format"] == "LiteLLM log (2 files); Langfuse export in a table (1 file)"
    assert document["log"]["skipped"] == {
        "not JSON in day1.jsonl.gz": 1,
        "repeated (the same row with the same id)": 1,
    }
    assert "left out readme.md: not the name of a log\n" in done.stderr
    assert "left out notes.jsonl: line 1: unknown format, its fields are a;" in done.stderr
    rows = json.loads(run(folder, "--sessions", "--by", "day", "--json").stdout)["rows"]
    assert [(row["name"], row["requests"]) for row in rows] == [("2026-11-01", 2), ("2026-11-02", 1), ("2026-11-03", 1)]


def test_a_damaged_transcript_of_a_folder_is_left_out(folder: Path) -> None:
    damaged = folder / "damaged.json"
    damaged.write_text('{"info": {"id": "ses_1"}, "messages": [{"info": 3, "parts": []}]}')
    cause = "line 1: not a session of opencode (expected an object, not int)"
    done = run(folder, "--sessions", "--by", "day", "--json")
    assert [row["requests"] for row in json.loads(done.stdout)["rows"]] == [2, 1, 1]
    assert f"left out damaged.json: {cause}\n" in done.stderr
    named = kvproxy("estimate", damaged)
    assert (named.returncode, named.stderr) == (2, f"kvproxy: {damaged}, {cause}\n")


def test_damaged_files_of_a_folder_are_named_in_one_line_without_an_error_of_python(folder: Path) -> None:
    packed = gzip.compress((folder / "day2.jsonl").read_bytes() * 50)
    (folder / "cut.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    (folder / "wrong.jsonl.gz").write_bytes(packed[:20] + bytes(8) + packed[28:])
    (folder / "evil\x1b]0;renamed\x07\n.jsonl.gz").write_bytes(packed[:30])
    done = run(folder, "--by", "day", "--json")
    assert (
        r"left out cut.jsonl.gz, evil\x1b]0;renamed\x07\x0a.jsonl.gz: line 1: the file is damaged (it ends early)"
        in done.stderr
    )
    assert "left out wrong.jsonl.gz: line 1: the file is damaged (its compressed data is invalid)\n" in done.stderr


def test_a_file_that_vanishes_is_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = find_log_files({folder: folder})
    (folder / "day2.jsonl").unlink()
    (folder / "gone").symlink_to(folder / "nothing")
    log = read_requests(files, "m", None)
    assert len(log.requests) == 3
    assert any("day2.jsonl" in text for text in files.describe_left_out())


def test_a_folder_of_logs_and_transcripts_counts_both_with_sessions(folder: Path) -> None:
    write_transcripts(folder)
    done = run(folder, "--by", "client", "--json")
    assert json.loads(done.stdout)["total"]["requests"] == 20
    cause = "no transcript; --sessions counts the usage in logs, too"
    assert f"left out day1.jsonl.gz, day2.jsonl, more/trace.csv, and 1 more: {cause}\n" in done.stderr
    done = run(folder, "--sessions", "--by", "client", "--json")
    assert json.loads(done.stdout)["total"]["requests"] == 24
    assert "left out notes.jsonl" in done.stderr


def test_several_files_are_read_as_one(folder: Path) -> None:
    first, second, other = folder / "day1.jsonl.gz", folder / "day2.jsonl", folder / "more"
    data = ("--data", folder.parent / "data", "--json")
    done = kvproxy("estimate", first, second, second, *data)
    document = json.loads(done.stdout)
    assert (document["requests"], document["log"]["format"]) == (3, "LiteLLM log (2 files)")
    (other / "readme.md").write_text("# More\n")
    done = kvproxy("lint", "-", other, *data, stdin=second.read_bytes())
    assert json.loads(done.stdout)["log"]["requests"] == 3
    assert f"left out {other / 'readme.md'}: not the name of a log\n" in done.stderr
    write_transcripts(folder / "home")
    done = kvproxy("estimate", folder / "home", second, "--sessions", "--by", "client", *data)
    assert json.loads(done.stdout)["total"]["requests"] == 22
    trace = {"id": "t1", "block_size": 64, "requests": [{"t": 0, "model": "m", "in": 64, "out": 1, "hash_ids": [1]}]}
    (folder / "trace.json").write_text(json.dumps(trace))
    done = kvproxy("estimate", folder, folder / "trace.json", "--by", "client", *data)
    assert json.loads(done.stdout)["total"]["requests"] == 21
    missing = kvproxy("estimate", first, folder / "day9.jsonl", *data)
    assert (missing.returncode, f"no file {folder / 'day9.jsonl'}" in missing.stderr) == (3, True)


def test_a_file_that_repeats_another_one_adds_no_request(folder: Path) -> None:
    copy = folder / "copy.jsonl"
    copy.write_text(f"{export(2)}\nbroken\n{{\n")
    done = kvproxy("estimate", folder / "day2.jsonl", copy, "--data", folder.parent / "data", "--json")
    assert (done.returncode, json.loads(done.stdout)["requests"]) == (0, 2), done
    assert "read as LiteLLM log (2 files): 5 rows, 2 requests" in done.stderr
    causes = f"1 not JSON in {copy} (line 2), 1 repeated (the same row with the same id), 1 malformed"
    assert f"skipped 3 rows without a request: {causes}\n" in done.stderr


def test_a_folder_without_logs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "readme.md").write_text("# Nothing\n")
    done = kvproxy("estimate", tmp_path)
    assert (done.returncode, f"{tmp_path} has no transcripts" in done.stderr) == (3, True)
    (tmp_path / "notes.json").write_text("{}")
    done = kvproxy("lint", tmp_path)
    assert (done.returncode, "no file of the folder has requests: left out readme.md" in done.stderr) == (2, True), done


def test_errors_in_stdin_name_stdin(tmp_path: Path) -> None:
    done = kvproxy("estimate", "-", stdin=b'{"a": 1}')
    assert done.stderr.startswith("kvproxy: stdin, line 1: unknown format"), done
