"""Redaction: stored texts, matches, and settings that stop the start."""

import contextlib
import sqlite3
import zlib
from pathlib import Path

import httpx
import pytest

from kvproxy.errors import SettingsError
from kvproxy.http.services import Services
from kvproxy.index.entry_redaction import RedactionFailed
from kvproxy.privacy.pattern_redaction import load_redactor
from kvproxy.settings import RedactionSettings, load_settings
from tests.flow.proxies import explain
from tests.plain_upstream import ANSWER, run_plain_upstream
from tests.polling import until
from tests.servers import run_front, run_proxy
from tests.statuses import makes_entry

MAIL = r"[\w.]+@[\w.]+"


def failing(text: str) -> str:
    """Fails on anything but an empty text, with the text in its message."""
    if text:
        raise ValueError(text)
    return text


def number(text: str) -> object:
    return 7 if text else text


def initials(text: str) -> str:
    return text.replace("Ann Lee", "A. L.")


def ask(url: str, question: str) -> httpx.Response:
    body = {"model": "m", "messages": [{"role": "user", "content": question}], "user": "ann@lee.org"}
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=300)


def wait_for(services: Services, count: int) -> None:
    """Wait until this number of answers is stored, which may be after the client has received its own."""
    until(lambda: services.cache.store.count() == count)


def journal_texts(data: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(data / "journal.db")) as connection:
        rows = connection.execute("select text, whole from prompts").fetchall()
    return [f"{text} {zlib.decompress(whole).decode()}" for text, whole in rows]


def test_a_proxy_stores_no_redacted_text_and_never_matches_what_differs_in_it(tmp_path: Path) -> None:
    redaction = {"patterns": [MAIL], "function": "tests.flow.test_redaction:initials"}
    with run_plain_upstream() as upstream:
        settings = load_settings(data=tmp_path, upstream=upstream, redaction=redaction, journal={"text": "all"})
        with run_proxy(settings) as (url, services):
            first = "How do I reset the password of ann@lee.org?"
            ask(url, first)
            wait_for(services, 1)
            again = ask(url, first)
            assert "hit" in again.headers["cache-status"]
            assert again.json()["choices"][0]["message"]["content"] == ANSWER
            for other in (
                "How do I reset the password of bob@lee.org?",
                "How can I reset the password of ann@lee.org?",
            ):
                assert "hit" not in ask(url, other).headers["cache-status"]
            ask(url, "Where does Ann Lee work?")
            wait_for(services, 4)
            shown = httpx.get(f"{url}/admin/cache").text
            assert "[redacted]" in shown
            assert "A. L." in shown
            assert "redacted" in str(explain(url, "Is it x@y.z?"))
            until(lambda: len(journal_texts(tmp_path)) >= 4)
            texts = " ".join(journal_texts(tmp_path))
            files = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert "How do I reset the password of [redacted]?" in texts
    assert not [hidden for hidden in ("lee.org", "Ann Lee") if hidden in texts]
    assert len(files) > 10_000
    for hidden in (b"ann@lee", b"bob@lee", b"Ann Lee"):
        assert hidden not in files


def test_a_failing_function_costs_the_cache_and_shows_no_text(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    redaction = {"function": "tests.flow.test_redaction:failing"}
    with run_plain_upstream() as upstream, run_front(tmp_path, upstream, redaction=redaction) as (url, _):
        for _ in range(2):
            answer = ask(url, "a secret question")
            assert answer.status_code == 200
            assert "hit" not in answer.headers["cache-status"]
            assert not makes_entry(answer.headers["cache-status"])
    assert "redaction.function failed (ValueError)" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("no.such_module:redact", r"cannot import no.such_module \(ModuleNotFoundError.*PYTHONPATH"),
        ("tests.flow.test_redaction:nothing", "has no function nothing"),
        ("tests.flow.test_redaction:MAIL", "has no function MAIL"),
        ("builtins:print", "gave a NoneType and no text"),
        ("builtins:open", r"on an empty text, redaction.function failed \(FileNotFoundError\)"),
    ],
)
def test_a_function_that_cannot_be_used_is_told_at_the_start(function: str, expected: str) -> None:
    with pytest.raises(SettingsError, match=expected):
        load_redactor(RedactionSettings(function=function))


@pytest.mark.parametrize(
    ("redaction", "expected"),
    [
        ({"patterns": ["("]}, "not a regular expression"),
        ({"patterns": ["x*"]}, "matches the empty text"),
        ({"function": "os.system"}, "package.module:function"),
    ],
)
def test_settings_that_cannot_work_are_refused(redaction: dict[str, object], expected: str) -> None:
    with pytest.raises(SettingsError, match=expected):
        load_settings(redaction=redaction)


def test_redactors_replace_text_literally_and_must_return_text() -> None:
    assert load_redactor(RedactionSettings()) is None
    wrong = load_redactor(RedactionSettings(function="tests.flow.test_redaction:number"))
    with pytest.raises(RedactionFailed, match="gave a int"):
        wrong and wrong("x")
    redactor = load_redactor(RedactionSettings(patterns=(r"(\d)\d+", "bob"), replacement=r"\1"))
    assert redactor is not None
    assert redactor("12 bobs and 7") == r"\1 \1s and 7"


def test_chunks_in_clear_and_redaction_exclude_each_other(tmp_path: Path) -> None:
    redaction = {"patterns": [MAIL]}
    for tiers in ({"disk": tmp_path}, {"redis": "redis://localhost"}):
        with pytest.raises(SettingsError, match="unredacted prompt tokens in plain text: set"):
            load_settings(redaction=redaction, tiers=tiers)
        load_settings(redaction=redaction, tiers=tiers, encryption={"key_env": "X"})
    load_settings(redaction=redaction, tiers={"host": 1 << 20})
