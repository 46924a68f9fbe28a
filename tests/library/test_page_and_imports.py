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
from langchain_core.globals import get_llm_cache, set_llm_cache
from langchain_core.language_models import FakeListChatModel, FakeListLLM

import kvproxy
from kvproxy.errors import SettingsError
from kvproxy.index.policies.policy import Verdict, verdict_token
from tests.library.page import PAGE, blocks
from tests.polling import until


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


@pytest.mark.filterwarnings("ignore:The function `loads` is in beta")
def test_the_cache_for_langchain_serves_its_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ((_, block),) = blocks("py")
    space: dict[str, Any] = {"__name__": "page"}
    exec(compile(block, str(PAGE), "exec"), space)
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
