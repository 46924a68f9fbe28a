"""Output files of commands are checked before the work."""

from pathlib import Path

import pytest

from kvproxy.commands.files import PLOT_SUFFIXES, check_writable, explain_write_errors
from kvproxy.errors import InvalidRequest, KvproxyError
from tests.commands.run import kvproxy


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


def test_unwritable_files_are_reported(tmp_path: Path) -> None:
    check_writable(None, PLOT_SUFFIXES)
    check_writable(tmp_path / "a.SVG", PLOT_SUFFIXES)
    check_writable(Path("/dev/null"))
    with pytest.raises(InvalidRequest, match=r"must end in \.png, \.svg or \.pdf"):
        check_writable(tmp_path / "a.gif", PLOT_SUFFIXES)
    with pytest.raises(InvalidRequest, match="name a file"):
        check_writable(tmp_path)


def test_a_full_disk_is_reported_in_one_sentence() -> None:
    full = Path("/dev/full")
    with (
        pytest.raises(KvproxyError, match="cannot write /dev/full: No space left on device"),
        explain_write_errors(full),
    ):
        full.write_text("x" * 10_000)
