"""Graph files are reused if intact, and rebuilt otherwise, also by concurrent processes."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.index.models.minilm import graph_builder
from kvproxy.index.models.minilm.graph_builder import code_digest, int8_test_graph
from kvproxy.index.models.minilm.onnx_files import MAX_FILES, OnnxFiles, content_digest

PROBE = int8_test_graph()
LARGEST = {"tokens": np.full((1, 1, 2), 255, np.float32)}


def never() -> bytes:
    raise AssertionError("it was built though a file holds it")


def works(session: object) -> bool:
    return session.run(None, LARGEST)[0].item() > 0  # type: ignore[attr-defined, no-any-return]


def test_an_upgrade_during_a_run_does_not_change_the_name_of_a_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, upgraded = code_digest(), tmp_path / "graph_builder.py"
    upgraded.write_text("# Another version.")
    monkeypatch.setattr(graph_builder, "__file__", str(upgraded))
    assert code_digest() == before


def test_a_graph_is_built_once(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "graphs"
    files = OnnxFiles([folder])
    assert works(files.open("probe", "one", lambda: PROBE))
    assert works(files.open("probe", "one", never))
    assert works(OnnxFiles([tmp_path / "empty", folder]).open("probe", "one", never))
    with pytest.raises(AssertionError, match="it was built"):
        files.open("probe", "other", never)
    assert [file.suffix for file in folder.iterdir()] == [".onnx"]


@settings(max_examples=30)
@given(st.data())
def test_a_damaged_file_is_built_again(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("graphs")
    files = OnnxFiles([folder])
    files.open("probe", "one", lambda: PROBE)
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    damaged = bytearray(whole[: data.draw(st.integers(0, len(whole)))])
    for place in data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=3)):
        if place < len(damaged):
            damaged[place] ^= 1
    file.write_bytes(damaged)
    built = []

    def build() -> bytes:
        built.append(1)
        return PROBE

    assert works(files.open("probe", "one", build))
    assert bool(built) == (bytes(damaged) != whole)
    assert works(files.open("probe", "one", never))
    assert [each.read_bytes() for each in folder.iterdir()] == [whole]


def test_a_read_only_folder_is_tolerated(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("a file, in which no folder can be made")
    for _ in range(2):
        assert works(OnnxFiles([blocked / "graphs"]).open("probe", "one", lambda: PROBE))
    assert works(OnnxFiles([blocked / "graphs", tmp_path / "second"]).open("probe", "one", lambda: PROBE))
    assert works(OnnxFiles([blocked / "graphs", tmp_path / "second"]).open("probe", "one", never))
    assert works(OnnxFiles([]).open("probe", "one", lambda: PROBE))


def test_old_files_of_a_kind_are_removed(tmp_path: Path) -> None:
    files = OnnxFiles([tmp_path])
    files.open("other", "x", lambda: PROBE)
    abandoned, written = tmp_path / "probe-abandoned.part", tmp_path / "probe-written.part"
    abandoned.touch()
    written.touch()
    os.utime(abandoned, (time.time() - 7200,) * 2)
    for number in range(MAX_FILES + 3):
        files.open("probe", f"{number}", lambda: PROBE)
        for file in tmp_path.glob(f"probe-{number}-*.onnx"):
            os.utime(file, (number, number))
    left = {file.name.split("-")[1] for file in tmp_path.glob("probe-*.onnx")}
    assert left == {str(number) for number in range(3, MAX_FILES + 3)}
    assert list(tmp_path.glob("other-*.onnx"))
    assert not abandoned.exists()
    assert written.exists()


WRITER = """
import sys
from pathlib import Path
from kvproxy.index.models.minilm.onnx_files import OnnxFiles
from kvproxy.index.models.minilm import graph_builder
from kvproxy.index.models.minilm.graph_builder import code_digest, int8_test_graph
graph = int8_test_graph()
print("ready", flush=True)
number = 0
while True:
    OnnxFiles([Path(sys.argv[1])]).open("probe", f"made{number % 3}", lambda: graph)
    for file in Path(sys.argv[1]).glob(f"probe-made{number % 3}-*.onnx"):
        file.unlink(missing_ok=True)
    number += 1
"""


def test_concurrent_and_killed_writers_leave_intact_files(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE) for _ in range(2)
    ]
    try:
        for writer in writers:
            assert writer.stdout is not None
            writer.stdout.readline()
        for number in range(30):
            assert works(OnnxFiles([tmp_path]).open("probe", f"made{number % 3}", lambda: PROBE))
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
            assert writer.stdout is not None
            writer.stdout.close()
    for file in tmp_path.glob("*.onnx"):
        assert file.read_bytes() == PROBE


def test_a_digest_covers_names_shapes_and_values() -> None:
    one = np.arange(6, dtype=np.float32)
    same = content_digest({"a": one, "b": one}, "x")
    assert same == content_digest({"b": one.copy(), "a": one}, "x")
    others = [
        content_digest({"a": one}, "x"),
        content_digest({"a": one, "c": one}, "x"),
        content_digest({"a": one, "b": one.reshape(2, 3)}, "x"),
        content_digest({"a": one, "b": one + 1}, "x"),
        content_digest({"a": one, "b": one}, "x", ""),
    ]
    assert len({same, *others}) == len(others) + 1
