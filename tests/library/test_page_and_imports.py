"""The library API: lazy imports, types, and a documentation page that runs."""

import ast
import contextlib
import inspect
import io
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from fastapi.testclient import TestClient
from langchain_core.globals import get_llm_cache, set_llm_cache
from langchain_core.language_models import FakeListChatModel, FakeListLLM
from starlette.requests import Request
from starlette.responses import JSONResponse

import kvproxy
from kvproxy.errors import SettingsError
from kvproxy.index.policies.policy import Verdict, verdict_token
from tests.library.page import PAGE, blocks
from tests.polling import until
from tests.servers import run_upstream


def test_the_code_on_the_page_prints_its_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    printed = ""
    parts = blocks("python", "text")
    assert {kind for kind, _ in parts} == {"python", "text"}
    for kind, text in parts:
        if kind == "text":
            assert printed == text
            continue
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            # Readers copy one block.
            exec(compile(text, str(PAGE), "exec"), {"__name__": "page"})
        printed = output.getvalue()


def run_block(package: str) -> dict[str, Any]:
    """Run the block of the page that needs a package, and return its names."""
    (block,) = (text for _, text in blocks("py") if package in text)
    space: dict[str, Any] = {"__name__": "page"}
    exec(compile(block, str(PAGE), "exec"), space)
    return space


def test_the_server_with_fastapi_asks_the_model_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, reasons = list[str](), {"cut": "length"}

    async def answer(request: Request) -> JSONResponse:
        system, user = [message["content"] for message in (await request.json())["messages"]]
        asked.append(user)
        message = {"role": "assistant", "content": f"{system} {len(asked)}"}
        choice = {"index": 0, "message": message, "finish_reason": reasons.get(user, "stop")}
        return JSONResponse({"id": "x", "object": "chat.completion", "choices": [choice]})

    monkeypatch.chdir(tmp_path)
    with run_upstream(answer) as url:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        with TestClient(run_block("fastapi")["app"]) as client:
            replies = [client.get("/ask", params={"question": text}) for text in ("open?", "open?", "cut", "cut", " ")]
    assert [reply.status_code for reply in replies] == [200, 200, 502, 502, 422]
    assert replies[0].json() == replies[1].json() == {"answer": "Answer questions about our shop. 1"}
    assert asked == ["open?", "cut", "cut"]


@pytest.mark.filterwarnings("ignore:The function `loads` is in beta")
def test_the_cache_for_langchain_serves_its_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    space = run_block("langchain")
    with contextlib.closing(space["answers"]) as answers:
        try:
            answers.set("q", "of another program")
            model = FakeListLLM(responses=["first", "second", "third"])
            assert [model.invoke("q"), model.invoke("q"), model.invoke("other")] == ["first", "first", "second"]
            chat = FakeListChatModel(responses=["hello", "bye"])
            assert [chat.invoke("q").content, chat.invoke("q").content] == ["hello", "hello"]
            get_llm_cache().clear()
            assert (model.invoke("q"), answers.count()) == ("third", 2)
            for file in tmp_path.glob("answers.db*"):
                file.unlink()
            # The model answers, and its responses start again.
            until(lambda: model.invoke("q") == "first")
        finally:
            set_llm_cache(None)


def test_every_name_exists_and_is_documented() -> None:
    page = PAGE.read_text()
    for name in kvproxy.__all__:
        assert inspect.getdoc(getattr(kvproxy, name)), name
    # Without the names that the module itself imports.
    assert {name for name in dir(kvproxy) if not name.startswith("__")} == {*kvproxy.__all__}
    unnamed = {name for name in kvproxy.__all__ if not re.search(rf"\b{name}\b", page)}
    # Result types need no description.
    assert unnamed == {"ComputedBlocks", "PoolSimulation", "PoolStats", "Sweep"}
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        getattr(kvproxy, "nothing")  # noqa: B009


def test_types_equal_the_loaded_names() -> None:
    """mypy reads the imports under TYPE_CHECKING, Python the table below them."""
    tree = ast.parse(Path(kvproxy.__file__).read_text())
    (checked,) = (node for node in tree.body if isinstance(node, ast.If))
    typed = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in checked.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert typed == kvproxy._PLACES
    assert sorted(typed) == kvproxy.__all__


@pytest.mark.parametrize(
    ("use", "heavy"),
    [
        ("import kvproxy", {"numpy", "pydantic", "xxhash", "kvproxy.blocks", "kvproxy.index", "typer"}),
        (
            "from kvproxy import KVCacheManager, CacheRequest, simulate_pool, sweep",
            {"torch", "pydantic", "onnxruntime"},
        ),
        (
            "from kvproxy import CacheSettings, open_cache as o; o('r.db', CacheSettings(semantic=False)).close()",
            {"torch", "onnxruntime", "faiss", "pandas", "starlette"},
        ),
    ],
)
def test_an_import_loads_only_what_it_needs(use: str, heavy: set[str], tmp_path: Path) -> None:
    code = f"import sys; {use}; print(*sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("open_any", [kvproxy.open_cache, kvproxy.open_async_cache])
def test_a_missing_folder_and_other_types_are_refused(open_any: Callable[..., object], tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=f"no folder {tmp_path}/a: create it"):
        open_any(tmp_path / "a" / "r.db")
    assert not (tmp_path / "a").exists()
    for name, type_name in [("settings", "Cache"), ("encryption", "Encryption"), ("redaction", "Redaction")]:
        with pytest.raises(TypeError, match=f"{name} must be of the type {type_name}Settings, not dict"):
            open_any(tmp_path / "r.db", **{name: {"ttll": 5}})


@pytest.mark.parametrize("location", ["~/r.db", Path("~/r.db")])
def test_a_store_in_the_home_folder_is_opened(
    location: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    kvproxy.open_cache(location, kvproxy.CacheSettings(semantic=False)).close()
    assert (tmp_path / "r.db").is_file()


def test_the_page_lists_the_reasons_of_explain() -> None:
    reasons = {verdict_token(verdict, "NAME") for verdict in get_args(Verdict)}
    # A library does not explore, and these verdicts decide no lookup.
    reasons -= {"accepted", "explored", "expired", "not-compared"}
    assert {reason for reason in reasons if f"`{reason}`" not in PAGE.read_text()} == set()


def test_the_page_has_the_signatures_of_the_methods() -> None:
    rows = [line.split(" | ")[0] for line in PAGE.read_text().splitlines() if re.match(r"\| `\w+\(", line)]
    written = [signature for row in rows for signature in re.findall(r"`(\w+)\((.*?)\)`", row)]
    assert len(written) > 15
    for cache in (kvproxy.Cache, kvproxy.AsyncCache):
        for name, parameters in written:
            method = inspect.signature(getattr(cache, name))
            plain = [each.replace(annotation=inspect.Parameter.empty) for each in method.parameters.values()]
            actual = str(inspect.Signature(plain[1:])).replace("'", '"')[1:-1]
            assert parameters == actual, name
