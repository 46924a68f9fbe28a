"""All errors in the settings are reported at once, with the source of each value."""

from pathlib import Path

import pytest

from kvproxy.errors import SettingsError
from kvproxy.settings.tree import load_settings
from tests.commands.run import kvproxy

WRONG = """\
port = "x"
admin_tokn = "SECRET"
[cache]
ttl = "1x"
policy = "learnt"
tlt = 3
[[rules]]
name = "a"
policy = "foo"
"""


def test_config_check_reports_all_errors_at_once(tmp_path: Path) -> None:
    file = tmp_path / "kvproxy.toml"
    file.write_text(WRONG)
    done = kvproxy("config", "check", "--data", tmp_path, KVPROXY_PROT="1", KVPROXY_LOG__LEVEL="loud")
    assert (done.returncode, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert all(line.startswith("kvproxy: ") for line in lines)
    for number, text in [(1, "port"), (2, "admin_token?"), (4, "1x"), (5, "learnt"), (6, "cache.ttl?"), (9, "rules.0")]:
        (found,) = [line for line in lines if line.endswith(f"({file}, line {number})")]
        assert text in found
    assert "kvproxy: there is no setting for KVPROXY_PROT: did you mean KVPROXY_PORT?" in lines
    assert [line for line in lines if "'loud'" in line and line.endswith("(KVPROXY_LOG__LEVEL)")]
    assert len(lines) == 8
    assert "SECRET" not in done.stderr


def test_config_check_reports_a_missing_folder_or_key_file(tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "keys"
    done = kvproxy("config", "check", "--data", data, KVPROXY_ENCRYPTION__KEY_FILE=str(file))
    assert (done.returncode, data.exists()) == (2, False)
    folder, keys = done.stderr.splitlines()
    assert folder.startswith(f"kvproxy: there is no data folder {data}: create it with kvproxy init")
    assert f"cannot read {file} (No such file or directory): create it with `openssl rand -base64 32" in keys
    # Nobody can create files in this folder, not even root.
    done = kvproxy("config", "check", "--data", "/proc/self")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "cannot write to the data folder /proc/self" in done.stderr
    assert kvproxy("config", "check", "--data", tmp_path).returncode == 0


def test_all_conflicts_between_settings_are_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / "kvproxy.toml").write_text(
        '[encryption]\nkey_env = "KEY"\n[journal]\ntext = "all"\n[[rules]]\nname = "a"\nedits = ["b", "c"]\n'
        '[[rules]]\nname = "a"\njournal_text = "all"\n'
    )
    with pytest.raises(SettingsError) as caught:
        load_settings(data=tmp_path)
    assert [line.partition(":")[0] for line in caught.value.message.splitlines()] == [
        *["setting rules.0.name", "setting rules.0.edits", "setting rules.0.edits", "setting rules.1.name"],
        *["setting journal.text", "setting rules.1.journal_text"],
    ]


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        *[("--port", "99999"), ("--upstream", "ftp://x"), ("--policy", "x"), ("--max-entries", "-1")],
        *[("--min-similarity", "3"), ("--num-blocks", "-1"), ("--chunk-tokens", "-1"), ("--log-level", "loud")],
        *[("--log-format", "x"), ("--kv-memory", "x"), ("--eviction-policy", "x")],
    ],
)
def test_an_error_names_its_flag(tmp_path: Path, flag: str, value: str) -> None:
    # The flag overrides the file, which must not be blamed.
    (tmp_path / "kvproxy.toml").write_text("port = 1\n[cache]\nmax_entries = 1\n[log]\nlevel = 'info'\n")
    done = kvproxy("serve", "--data", tmp_path, flag, value)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.endswith(f"({flag})\n"), done.stderr


def test_a_variable_without_json_is_named_without_its_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVPROXY_UPSTREAMS", "http://SECRET@a")
    with pytest.raises(SettingsError, match=r"^KVPROXY_UPSTREAMS must contain JSON") as caught:
        load_settings(data=tmp_path)
    assert "SECRET" not in caught.value.message
