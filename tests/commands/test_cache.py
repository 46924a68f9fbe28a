"""kvproxy cache, with a running proxy and with a store on disk."""

import contextlib
import getpass
import json
import re
import sqlite3
import time
from datetime import datetime
from pathlib import Path

import pytest

from kvproxy.errors import KvproxyError, SettingsError
from kvproxy.index import sqlite_files
from kvproxy.index.entry import Entry, library_digest
from kvproxy.index.store import open_store
from kvproxy.installation.checks.access import access_warnings
from kvproxy.installation.checks.all_checks import check_clients, check_files
from kvproxy.installation.checks.configured_store import open_configured_store
from kvproxy.installation.checks.servers import CheckWarning
from kvproxy.library import open_cache
from kvproxy.settings import load_settings
from kvproxy.settings.cache import CacheSettings
from tests.commands.run import ask, kvproxy, result
from tests.commands.upstream import proxied
from tests.index.entries import SERVABLE, make_entry
from tests.statuses import makes_entry


def stored(path: Path, *entries: Entry) -> Path:
    store = open_store(path)
    for entry in entries:
        store.put(entry)
    store.close()
    return path


def test_cache_of_a_stopped_proxy(tmp_path: Path) -> None:
    entries = [
        make_entry(f"question {number}", model=f"m{number % 2}", created=time.time(), response=SERVABLE)
        for number in range(6)
    ]
    path = stored(tmp_path / "responses.db", *entries)
    assert len(result("cache", "ls", "--store", path)) == 6
    assert len(result("cache", "ls", "--data", tmp_path, "--model", "m1")) == 3
    assert "question 4" in kvproxy("cache", "ls", "--store", path).stdout
    rows = result("cache", "usage", "--by", "model", "--store", path)
    assert {row["name"]: row["entries"] for row in rows} == {"m0": 3, "m1": 3}
    assert kvproxy("cache", "usage", "--by", "tag", "--store", path).stderr == "no stored response has a tag\n"
    usage = kvproxy("cache", "usage", "--store", path).stdout.splitlines()[1].split("\t")
    assert usage[:2] == ["public", "6"]
    refused = kvproxy("lint", path).stderr
    assert "is a database: simulate and log read a journal" in refused
    assert f"savings --ledger --data {tmp_path} names" in refused
    assert f"log export - --format requests --data {tmp_path}\n" in refused
    (text := tmp_path / "text.db").write_text("SQLite format 3\0 and nothing that is not UTF-8")
    assert "is a database: simulate and log read a journal" in kvproxy("estimate", text).stderr
    assert result("cache", "rm", "--model", "m1", "--yes", "--store", path) == {"removed": 3}
    assert kvproxy("cache", "rm", "--all", "--store", path).returncode == 2
    lines = kvproxy("cache", "export", "--store", path).stdout.splitlines()
    assert len(lines) == 3
    other = stored(tmp_path / "other.db")
    copy = tmp_path / "copy.jsonl"
    copy.write_text("\n".join(lines))
    assert result("cache", "import", copy, "--store", other) == {"imported": 3, "skipped": 0}
    copy.write_text(lines[0] + "\n{broken")
    done = kvproxy("cache", "import", copy, "--store", other)
    assert (done.returncode, "line 2" in done.stderr) == (2, True)


ODD = {"metadata": {"id": 123456789012345678901234567890, "note": "a\u2028b\x85c"}}


def test_unusual_requests_survive_export_and_import(tmp_path: Path) -> None:
    backup = tmp_path / "backup.jsonl"
    with proxied(tmp_path) as url:
        for question in ("one\u2028more", "two"):
            assert makes_entry(ask(url, question, **ODD).headers["cache-status"])
        listed = kvproxy("cache", "ls", "--limit", 1, url=url)
        assert (listed.stdout.count("\n"), listed.stderr) == (2, "1 of 2 rows: list all with --limit 0\n")
        assert result("cache", "export", backup, url=url)["exported"] == 2
        assert kvproxy("cache", "show", "f" * 32, url=url).returncode == 3
        printed = kvproxy("cache", "export", url=url).stdout
        assert result("cache", "rm", "--all", "--soft", "--yes", url=url) == {"expired": 2}
        assert result("cache", "rm", "--all", "--yes", url=url) == {"removed": 2}
        line = backup.read_bytes().splitlines(keepends=True)[0]
        assert kvproxy("cache", "import", "-", url=url, stdin=line).stdout == "imported 1 response, skipped 0\n"
        assert result("cache", "import", backup, url=url) == {"imported": 1, "skipped": 1}
        again = ask(url, "one\u2028more", **ODD)
        assert 'detail="exact"' in again.headers["cache-status"]
        entry = result("cache", "ls", "--search", "one", url=url)[0]
        assert result("cache", "show", entry["id"], url=url)["request"]["metadata"] == ODD["metadata"]
    assert printed == backup.read_text()
    assert not list(tmp_path.glob("*.partial"))
    # And through a store without a proxy, from standard input.
    other = stored(tmp_path / "other.db")
    piped = kvproxy("cache", "import", "-", "--store", other, stdin=backup.read_bytes())
    assert (piped.returncode, piped.stdout) == (0, "imported 2 responses, skipped 0\n")
    again = kvproxy("cache", "export", "--store", other).stdout
    assert list(map(json.loads, again.split("\n")[:-1])) == list(map(json.loads, printed.split("\n")[:-1]))


@pytest.mark.parametrize("semantic", [False, True])
def test_a_running_proxy_imports_pins_and_rejections(tmp_path: Path, semantic: bool) -> None:
    entries = [make_entry(id, id=id, created=time.time(), response=SERVABLE) for id in ("ab01", "cd01")]
    old = stored(tmp_path / "old.db", *entries)
    for command, id in (("pin", "ab01"), ("reject", "cd01")):
        assert kvproxy("cache", command, id, "--store", old).returncode == 0
    lines = kvproxy("cache", "export", "--store", old).stdout.encode()
    with proxied(tmp_path / "new", cache={"semantic": semantic}) as url:
        assert kvproxy("cache", "import", "-", url=url, stdin=lines).stdout == "imported 2 responses, skipped 0\n"
        assert {row["id"]: row["pinned"] for row in result("cache", "ls", url=url)} == {"ab01": True, "cd01": False}
        exported = [json.loads(line) for line in kvproxy("cache", "export", url=url).stdout.splitlines()]
    assert {row["id"]: (row.get("pinned"), row.get("rejected")) for row in exported} == {
        "ab01": (True, None),
        "cd01": (None, True),
    }


def test_an_interrupted_export_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = stored(tmp_path / "responses.db", make_entry("one"), make_entry("two"))
    backup = tmp_path / "backup.jsonl"
    backup.write_text("old")
    monkeypatch.setattr(Entry, "export_line", lambda entry, *marks: 1 / 0)
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        kvproxy("cache", "export", backup, "--force", "--store", path)
    assert [file.name for file in tmp_path.glob("backup*")] == ["backup.jsonl"]
    assert backup.read_text() == "old"
    monkeypatch.undo()
    nowhere = kvproxy("cache", "export", tmp_path / "no/such/folder/file", "--store", path)
    assert (nowhere.returncode, "cannot write" in nowhere.stderr) == (2, True)


def test_a_truncated_or_empty_list_prints_a_note(tmp_path: Path) -> None:
    path = stored(tmp_path / "a.db", *(make_entry(f"question {n}", created=time.time() - 200) for n in range(5)))
    cut = kvproxy("cache", "ls", "--limit", 2, "--store", path)
    assert cut.stderr == "2 of 5 rows: list all with --limit 0\n"
    assert len(cut.stdout.splitlines()) == 3
    assert kvproxy("cache", "ls", "--limit", 5, "--store", path).stderr == ""
    assert kvproxy("cache", "ls", "--limit", 2, "--search", "question 1", "--store", path).stderr == ""
    none = kvproxy("cache", "ls", "--search", "nothing", "--store", path)
    assert (none.stdout, none.stderr) == ("", "no stored response matches these options\n")
    empty = kvproxy("cache", "ls", "--store", stored(tmp_path / "b.db"))
    assert empty.stderr == "no response is stored\n"


def test_an_entry_id_never_selects_another_route(tmp_path: Path) -> None:
    """With one entry, an export has the form of that entry."""
    with proxied(tmp_path) as url:
        ask(url, "one")
        for id in ("export", "../blocks", "a?b=c", "%2e%2e", ""):
            for command in ("show", "rm"):
                done = kvproxy("cache", command, id, url=url)
                assert (done.returncode in (1, 2, 3), done.stdout) == (True, ""), id


def test_the_beginning_of_an_id_must_be_unique(tmp_path: Path) -> None:
    path = stored(tmp_path / "a.db", *(make_entry(id, id=id) for id in ("ab01", "ab02")))
    for command in ("show", "rm"):
        done = kvproxy("cache", command, "ab", "--store", path)
        assert (done.returncode, "2 ids begin with 'ab': give more digits" in done.stderr) == (2, True)
    assert result("cache", "show", "ab01", "--store", path)["prompt"] == "ab01"


def test_digests_and_paths_fit_a_terminal_in_one_piece(tmp_path: Path) -> None:
    digest = "3f2a" * 16
    # The folder of the test may have a longer name than a terminal has columns.
    path = stored(tmp_path.parent / "fits.db", make_entry(id="ab01", key=digest, namespace=digest))
    for arguments, value in ((("show", "ab01"), digest), (("stats",), str(path))):
        lines = kvproxy("cache", *arguments, "--store", path, columns=80).stdout.splitlines()
        assert any(line.endswith(f" {value}") for line in lines), lines
        assert max(map(len, lines)) <= max(80, len(value) + 2), lines


def test_namespaces_of_the_library_have_their_names(tmp_path: Path) -> None:
    path = tmp_path / "answers.db"
    with open_cache(path, CacheSettings(semantic=False)) as cache:
        for namespace in ("help desk", "de", ""):
            cache.set(f"question in {namespace}", "a", namespace=namespace)
        digests = {each.namespace: each.id for each in cache}
    # The digest of another namespace may begin like a name.
    store = open_store(path)
    store.put(make_entry("of a proxy", namespace="de" * 32))
    store.close()
    shown = result("cache", "ls", "--store", path, "--namespace", "help desk")
    assert [(each["id"], each["namespace_name"]) for each in shown] == [(digests["help desk"], "help desk")]
    assert [each["namespace_name"] for each in result("cache", "ls", "--store", path, "--namespace", "de")] == ["de"]
    digest = shown[0]["namespace"]
    assert result("cache", "ls", "--store", path, "--namespace", digest[:8]) == shown
    table = kvproxy("cache", "ls", "--store", path, "--wide", columns=120).stdout
    assert "  help desk  " in table
    lines = kvproxy("cache", "ls", "--store", path, "--columns", "prompt,namespace").stdout.splitlines()
    named = {
        "question in help desk": "help desk",
        "question in de": "de",
        "question in": library_digest(""),
        "of a proxy": "de" * 32,
    }
    assert dict(line.split("\t") for line in lines[1:]) == named
    assert "  help desk\n" in kvproxy("cache", "show", digests["help desk"], "--store", path, columns=80).stdout
    assert result("cache", "rm", "--store", path, "--namespace", "help desk", "--yes") == {"removed": 1}
    names = {each["prompt"]: each["namespace_name"] for each in result("cache", "ls", "--store", path)}
    assert names == {"of a proxy": None, "question in de": "de", "question in ": ""}


def test_keys_are_created_with_limits(tmp_path: Path) -> None:
    limits = {"requests_per_minute": 5, "tokens_per_minute": 1000, "concurrent_requests": 2, "stored_bytes": 2048}
    flags = [text for name, value in limits.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    made = result("keys", "add", "team", *flags, "--data", tmp_path)
    assert made["name"] == "team"
    assert result("keys", "ls", "--data", tmp_path) == [
        {
            "name": "team",
            **limits,
            "team": None,
            "models": None,
            "expires": None,
            "disabled": False,
            "previous_key_expires": None,
            **dict.fromkeys(("budget_per_day", "spent_today", "left_today")),
            **dict.fromkeys(("budget_per_month", "spent_this_month", "left_this_month")),
            **dict.fromkeys(("requests", "refused", "unpriced", "estimated", "unreported", "tokens"), 0),
            "spent": None,
            "reserved": None,
            "last_used": None,
        }
    ]
    assert (
        "team\t\tfalse\t\t\t\t\t0\t0\t0\t0\t0\t0\t\t\t\t5\t1000\t2\t\t\t2048\t"
        in kvproxy("keys", "ls", "--data", tmp_path).stdout
    )
    assert "2KiB" in kvproxy("keys", "ls", "--data", tmp_path, columns=120).stdout
    assert kvproxy("keys", "rm", "team", "--data", tmp_path).returncode == 0
    assert result("keys", "ls", "--data", tmp_path) == []
    result("keys", "add", "the-agents-of-the-help-desk-in-Bern", *flags, "--data", tmp_path)
    lines = re.sub("\x1b.*?m", "", kvproxy("keys", "ls", "--data", tmp_path, columns=80).stdout).splitlines()
    assert max(map(len, lines)) <= 80, lines


def test_a_dry_run_changes_nothing_and_a_soft_removal_expires_entries(tmp_path: Path) -> None:
    now = time.time()
    entries = [make_entry(f"question {number}", created=now, stale_if_error=60.0, tags=("t",)) for number in range(3)]
    path = stored(tmp_path / "responses.db", *entries)
    meant = result("cache", "rm", "--tag", "t", "--dry-run", "--store", path)
    assert (meant["would_remove"], set(meant["ids"])) == (3, {entry.id for entry in entries})
    one = kvproxy("cache", "rm", entries[0].id, "--dry-run", "--store", path).stdout
    assert "question 0" in one
    assert "would remove 1 response; nothing was changed" in one
    assert result("cache", "rm", "--tag", "t", "--soft", "--yes", "--store", path) == {"expired": 3}
    assert result("cache", "rm", entries[0].id[:12], "--store", path) == {"removed": 1}
    queue = result("cache", "queue", "--store", path)
    assert [each["reason"] for each in queue] == ["low priority"] * 2
    assert all(each["expires"] <= time.time() for each in queue)


def test_the_removal_of_a_pinned_response_is_named(tmp_path: Path) -> None:
    entries = [make_entry(f"question {number}", created=time.time()) for number in range(2)]
    place = "--store", stored(tmp_path / "responses.db", *entries)
    assert kvproxy("cache", "pin", entries[0].id, *place).returncode == 0
    found = [kvproxy("cache", "rm", entry.id, *place) for entry in entries]
    assert [(done.stdout, done.stderr) for done in found] == [
        ("removed 1 response\n", "1 response of these was pinned\n"),
        ("removed 1 response\n", ""),
    ]


def test_a_locked_store_is_one_error_that_names_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = stored(tmp_path / "responses.db", make_entry())
    monkeypatch.setattr(sqlite_files, "_BUSY_TIMEOUT", 0.01)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("begin exclusive")
        with (
            pytest.raises(KvproxyError, match=f"another process has locked the store {path}: try again"),
            open_configured_store(load_settings(data=tmp_path)) as store,
        ):
            store.delete(["x"])
    assert caplog.text == ""


def test_without_the_last_client_every_command_says_that_all_requests_are_rejected(tmp_path: Path) -> None:
    data = "--data", tmp_path
    formats = (), ("--json",), ("--csv",)
    for form in formats:
        assert "accepts requests without a key" in kvproxy("keys", "ls", *form, *data).stderr
    for name in ("one", "two"):
        kvproxy("keys", "add", name, *data)
    assert kvproxy("keys", "rm", "one", *data).stderr == ""
    closed = "no client is left, so all requests are rejected: kvproxy keys add NAME"
    last = kvproxy("keys", "rm", "two", *data)
    assert closed in last.stderr
    assert f"delete {tmp_path / 'clients.json'} and restart the proxy" in last.stderr
    for form in formats:
        assert closed in kvproxy("keys", "ls", *form, *data).stderr
    assert kvproxy("keys", "ls", "--json", *data).stdout == "[]\n"
    settings = load_settings(data=tmp_path, host="0.0.0.0")
    with pytest.raises(CheckWarning, match=closed):
        check_clients(settings)
    check_files(settings)
    assert [warning.startswith(closed) for warning in access_warnings(settings)] == [True, False]
    again = kvproxy("keys", "add", "three", *data)
    # All requests without a key were rejected before.
    assert (again.returncode, again.stderr) == (0, "")


def test_the_first_key_closes_the_proxy_and_rotation_shows_the_end_of_the_old_one(tmp_path: Path) -> None:
    first, second = (kvproxy("keys", "add", name, "--data", tmp_path) for name in ("one", "two"))
    assert first.stdout.startswith("kvp-")
    assert "rejects requests without a key" in first.stderr
    assert second.stderr == ""
    kvproxy("keys", "rotate", "two", "--grace", "7d", "--data", tmp_path)
    rows = [line.split("\t") for line in kvproxy("keys", "ls", "--data", tmp_path).stdout.splitlines()]
    assert [row[-1] for row in rows[:2]] == ["previous_key_expires", ""]
    ends = datetime.fromisoformat(rows[2][-1]).timestamp()
    narrow = kvproxy("keys", "ls", "--data", tmp_path, columns=80)
    shown = [re.sub(r"\x1b\[\d*m", "", line) for line in narrow.stdout.splitlines()]
    assert max(map(len, shown)) <= 80
    # Nobody has a limit.
    assert narrow.stderr == ""
    kvproxy(
        "keys", "set", "one", "--budget-per-day", 5, "--tokens-per-minute", 900, "--models", "m", "--data", tmp_path
    )
    narrow = kvproxy("keys", "ls", "--data", tmp_path, columns=80)
    assert narrow.stderr == "not shown: Old key until (--wide shows all columns)\n"
    head = re.sub(r"\x1b\[\d*m", "", narrow.stdout.splitlines()[0])
    assert re.sub(" +", " ", head).strip() == "Name Left today Requests Tokens Last used Budget/day Tokens/min Models"
    assert ends == pytest.approx(time.time() + 7 * 86_400, abs=60)


def test_reject_and_approve_in_a_file(tmp_path: Path) -> None:
    entry = make_entry("What is a block?", created=time.time())
    path = stored(tmp_path / "responses.db", entry)
    assert result("cache", "reject", entry.id[:8], "--store", path) == {"id": entry.id, "right": False}
    assert result("cache", "stats", "--store", path)["semantic"]["learned"]["rejected"] == 1
    approved = kvproxy("cache", "approve", entry.id, "--store", path).stdout
    assert (
        approved == f"approved {entry.id[:12]} for all similar questions; verdicts on single questions stay learned\n"
    )
    assert result("cache", "stats", "--store", path)["semantic"]["learned"]["rejected"] == 0
    rejected = kvproxy("cache", "reject", entry.id, "--store", path).stdout
    assert rejected.endswith(f"equal ones still receive it (kvproxy cache rm {entry.id[:12]})\n")
    assert kvproxy("cache", "reject", "nope", "--store", path).returncode == 3
    asked = kvproxy("cache", "reject", entry.id, "--question", "x", "--store", path)
    assert (asked.returncode, "running proxy" in asked.stderr) == (2, True)


def test_a_pinned_response_has_no_priority(tmp_path: Path) -> None:
    entries = [make_entry(id, id=id, created=time.time()) for id in ("ab01", "cd01")]
    path = stored(tmp_path / "a.db", *entries)
    assert kvproxy("cache", "pin", "ab01", "--store", path).returncode == 0
    rows = {row["id"]: row for row in result("cache", "queue", "--store", path)}
    assert (rows["ab01"]["reason"], rows["ab01"]["priority"]) == ("pinned", None)
    assert rows["cd01"]["priority"] > 0
    cells = kvproxy("cache", "queue", "--columns", "id,priority", "--store", path).stdout.splitlines()
    assert cells[-1] == "ab01\t"


def changes_of(data: Path) -> list[tuple[str, str]]:
    """Return the recorded changes, without the operator's machine, the first one first."""
    rows = result("keys", "history", "--data", data)
    return [(row["change"], row["operator"].partition("@")[0]) for row in rows][::-1]


@pytest.mark.parametrize("option", ["--data", "--store"])
def test_changes_of_responses_in_a_file_are_recorded(tmp_path: Path, option: str) -> None:
    entry = make_entry("What is a block?", created=time.time(), response=SERVABLE)
    path = stored(tmp_path / "responses.db", entry)
    place = (option, path if option == "--store" else tmp_path)
    exported = kvproxy("cache", "export", *place).stdout.encode()
    for command in (("reject",), ("approve",), ("pin",), ("unpin",), ("rm", "--soft"), ("rm",)):
        assert kvproxy("cache", *command, entry.id, *place).returncode == 0
    assert kvproxy("cache", "rm", "--all", "--yes", *place).returncode == 0
    fresh = json.loads(exported) | {"expires": time.time() + 60}
    assert kvproxy("cache", "import", "-", *place, stdin=json.dumps(fresh).encode()).returncode == 0
    verbs = ("rejected", "approved", "pinned", "unpinned")
    done = [
        *(f"{verb} {entry.id}" for verb in verbs),
        *(f"{verb} 1 response: id={entry.id}" for verb in ("expired", "removed")),
    ]
    assert changes_of(tmp_path) == [(change, getpass.getuser()) for change in (*done, "imported 1 response")]


def test_a_proxy_with_a_file_records_changes_of_responses(tmp_path: Path) -> None:
    with proxied(tmp_path) as url:
        ask(url, "one")
        id = result("cache", "ls", url=url)[0]["id"]
        for command in ("pin", "rm"):
            assert kvproxy("cache", command, id, url=url).returncode == 0
        (data := tmp_path / "changes.jsonl").rename(tmp_path / "earlier.jsonl")
        data.mkdir()
        ask(url, "two")
        # The change is made, even if it cannot be recorded.
        assert result("cache", "rm", "--all", "--yes", url=url) == {"removed": 1}
    data.rmdir()
    (tmp_path / "earlier.jsonl").rename(data)
    done = (f"pinned {id}", f"removed 1 response: id={id}")
    assert changes_of(tmp_path) == [(change, "admin at 127.0.0.1") for change in done]


def test_one_matching_response_is_removed_without_confirmation(tmp_path: Path) -> None:
    entries = [make_entry(f"question {number}", created=time.time(), tags=("t",)) for number in range(2)]
    path = stored(tmp_path / "responses.db", *entries)
    several = kvproxy("cache", "rm", "--tag", "t", "--store", path)
    assert (several.returncode, "removing 2 responses needs --yes" in several.stderr) == (2, True)
    assert "--dry-run lists them" in several.stderr
    # A prefix of one prompt: the command names the removed response.
    one = kvproxy("cache", "rm", "--prompt", "question 1", "--store", path)
    assert (one.returncode, one.stdout) == (0, "removed 1 response: question 1\n")
    assert [each["prompt"] for each in result("cache", "ls", "--store", path)] == ["question 0"]


def test_a_filter_that_no_stored_response_has_names_known_values(tmp_path: Path) -> None:
    path = stored(tmp_path / "a.db", make_entry("one", tags=("handbook",)), make_entry("two", tags=("news",)))
    known = "no stored response has the tag 'handbok': there are handbook, news\n"
    assert kvproxy("cache", "ls", "--tag", "handbok", "--store", path).stderr == known
    assert kvproxy("cache", "rm", "--tag", "handbok", "--yes", "--store", path).stderr == f"kvproxy: {known}"
    model = kvproxy("cache", "ls", "--model", "nope", "--store", path).stderr
    assert model.startswith("no stored response has the model 'nope': there are ")
    tenant = kvproxy("cache", "ls", "--tenant", "publc", "--store", path).stderr
    assert tenant == "no stored response has the tenant 'publc': there are public\n"
    both = kvproxy("cache", "ls", "--tag", "news", "--search", "one", "--store", path).stderr
    assert both == "no stored response matches these options\n"


@pytest.mark.parametrize("options", [(), ("--yes",), ("--dry-run",), ("--soft", "--yes")])
def test_a_removal_that_matches_nothing_fails_like_an_unknown_id(tmp_path: Path, options: tuple[str, ...]) -> None:
    path = stored(tmp_path / "responses.db", make_entry("question"))
    done = kvproxy("cache", "rm", "--tag", "none", *options, "--store", path)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "kvproxy: no stored response has the tag 'none'\n"
    assert kvproxy("cache", "rm", "none", "--store", path).returncode == 3
    # An empty store is what --all asks for.
    result("cache", "rm", "--all", "--yes", "--store", path)
    assert result("cache", "rm", "--all", "--yes", "--store", path) == {"removed": 0}


def test_limits_of_a_client_are_changed_without_a_new_key(tmp_path: Path) -> None:
    key = result("keys", "add", "team", "--requests-per-minute", 5, "--stored-bytes", "1KiB", "--data", tmp_path)["key"]
    before = (tmp_path / "clients.json").read_text()
    given = ("keys", "set", "team", "--data", tmp_path)
    changed = result(*given, "--tokens-per-minute", 9, "--unlimited", "requests-per-minute")
    assert (changed["requests_per_minute"], changed["tokens_per_minute"], changed["stored_bytes"]) == (None, 9, 1024)
    assert "tokens_per_minute 9" in kvproxy(*given, "--concurrent-requests", 2).stdout
    after = (tmp_path / "clients.json").read_text()
    (old,), (new,) = json.loads(before), json.loads(after)
    assert (old["key_sha256"], old["counts_since"]) == (new["key_sha256"], new["counts_since"])
    assert key not in after
    for arguments, message in (
        ((), "no limit to change"),
        (("--unlimited", "speed"), "'speed' is no limit: use some of requests_per_minute"),
        (("--tokens-per-minute", 3, "--unlimited", "tokens_per_minute"), "tokens_per_minute is given and removed"),
    ):
        wrong = kvproxy(*given, *arguments)
        assert (wrong.returncode, message in wrong.stderr) == (2, True), wrong
    assert kvproxy("keys", "set", "nobody", "--tokens-per-minute", 3, "--data", tmp_path).returncode == 3
    shown = kvproxy(
        *given, "--models", "small,large-*", "--expires", "2126-12-31T00:00Z", "--budget-per-day", 0.1
    ).stdout
    assert shown.strip().endswith("stored_bytes 1024, models small large-*, expires 2126-12-31T00:00:00+00:00")
    newest = json.loads(kvproxy("keys", "history", "--json", "--data", tmp_path).stdout)[0]
    limits = "budget_per_day none -> 0.1, models none -> small large-*, expires none -> 2126-12-31T00:00:00+00:00"
    assert newest["change"] == f"set limits of client team: {limits}"
    assert newest["operator"].partition("@")[0] == getpass.getuser()
    kvproxy(*given, "--concurrent-requests", 8, "--unlimited", "models")
    assert kvproxy("keys", "rotate", "team", "--grace", 0, "--data", tmp_path).returncode == 0
    kvproxy("keys", "rm", "team", "--data", tmp_path)
    removed, rotated, changed, *_, added = json.loads(kvproxy("keys", "history", "--json", "--data", tmp_path).stdout)
    assert added["change"] == "add client team: requests_per_minute 5, stored_bytes 1024"
    expected = "set limits of client team: concurrent_requests 2 -> 8, models small large-* -> none"
    assert (changed["change"], rotated["change"]) == (expected, "rotate the key of client team: the old key is revoked")
    assert removed["change"].startswith("remove client team: tokens_per_minute 9, concurrent_requests 8, ")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("expires = 2126-12-31T00:00:00Z", 4954348800.0),
        ('expires = "2126-12-31T00:00Z"', 4954348800.0),
        ("expires = 4954348800", 4954348800.0),
        ('expires = "90d"', "must be a date such as 2026-12-31"),
        ('models = "small, large-*"', ("small", "large-*")),
        ("budget_per_day = inf", "must be a finite number"),
        (f'[[clients]]\nname = "a"\nkey_sha256 = "{"1" * 64}"', "2 clients have the name a"),
    ],
)
def test_limits_in_the_settings_are_written_as_for_people(line: str, expected: object, tmp_path: Path) -> None:
    (tmp_path / "kvproxy.toml").write_text(f'[[clients]]\nname = "a"\nkey_sha256 = "{"0" * 64}"\n{line}\n')
    if isinstance(expected, str):
        with pytest.raises(SettingsError, match=expected):
            load_settings(data=tmp_path)
    else:
        assert getattr(load_settings(data=tmp_path).clients[0], line.split()[0]) == expected


def test_answers_of_a_program_survive_export_and_import(tmp_path: Path) -> None:
    old, new, file = (tmp_path / name for name in ("old.db", "new.db", "answers.jsonl"))
    exact = CacheSettings(semantic=False)
    with open_cache(old, exact) as cache:
        cache.set_many({"What is a block?": "16 tokens", "Why?": ""}, "docs", tags=["t"])
        before = sorted(cache, key=repr)
    assert kvproxy("cache", "export", file, "--store", old).returncode == 0
    open_cache(new, exact).close()
    assert kvproxy("cache", "import", file, "--store", new).stdout == "imported 2 responses, skipped 0\n"
    with open_cache(new, exact) as cache:
        after = sorted(cache, key=repr)
        assert [(each, each.id, each.tags, each.expires) for each in after] == [
            (each, each.id, each.tags, each.expires) for each in before
        ]
        assert cache.delete("Why?", "docs")


def test_expired_entries_are_not_imported(tmp_path: Path) -> None:
    old = make_entry("old", created=time.time() - 90, expires=time.time() - 30, response=SERVABLE)
    path = stored(tmp_path / "responses.db", old, make_entry("new", created=time.time(), response=SERVABLE))
    assert kvproxy("cache", "export", tmp_path / "export.jsonl", "--store", path).returncode == 0
    done = kvproxy("cache", "import", tmp_path / "export.jsonl", "--store", tmp_path / "other.db")
    assert done.stdout == "imported 1 response, skipped 1\n"


def test_an_empty_name_is_an_error(tmp_path: Path) -> None:
    with proxied(tmp_path) as url:
        done = kvproxy("cache", "show", "", url=url)
    assert (done.returncode, done.stderr) == (2, "kvproxy: id is empty: give one\n")
