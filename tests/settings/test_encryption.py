"""The cipher and its keys."""

import base64
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproxy.errors import SettingsError
from kvproxy.privacy.encryption import Cipher, is_encrypted, load_cipher
from kvproxy.settings import EncryptionSettings, load_settings

OLD, NEW = bytes(32), bytes(range(32))
OLD_LINE, NEW_LINE = base64.b64encode(OLD).decode(), base64.urlsafe_b64encode(NEW).decode()
BOTH = Cipher([NEW, OLD])


@given(st.binary(max_size=200), st.binary(max_size=20))
def test_sealed_text_can_be_opened_and_contains_no_plain_text(clear: bytes, associated_data: bytes) -> None:
    encrypted = BOTH.encrypt(clear, associated_data)
    assert is_encrypted(encrypted)
    assert not is_encrypted(clear)
    assert BOTH.decrypt(encrypted, associated_data) == clear
    assert len(clear) < 8 or clear not in encrypted
    assert encrypted != BOTH.encrypt(clear, associated_data)


@given(st.integers(0, 52), st.integers(1, 255))
def test_a_changed_bit_is_detected(place: int, change: int) -> None:
    encrypted = bytearray(BOTH.encrypt(b"sixteen bytes ok", b"x"))
    assert len(encrypted) == 53
    encrypted[place] ^= change
    with pytest.raises(ValueError, match=r"not encrypted|not among the keys|changed"):
        BOTH.decrypt(encrypted, b"x")


def test_a_different_context_is_rejected() -> None:
    with pytest.raises(ValueError, match="changed"):
        BOTH.decrypt(BOTH.encrypt(b"x", b"one"), b"other")


def test_a_new_first_key_decrypts_entries_of_the_old_key() -> None:
    old = Cipher([OLD])
    assert BOTH.decrypt(old.encrypt(b"x", b""), b"") == b"x"
    with pytest.raises(ValueError, match=f"with the key {BOTH.name}, which is not among the keys"):
        old.decrypt(BOTH.encrypt(b"x", b""), b"")
    assert BOTH.names == {BOTH.name, old.name}
    assert BOTH.name == Cipher([NEW]).name != old.name


def test_keys_come_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_cipher(EncryptionSettings()) is None
    file = tmp_path / "keys"
    file.write_text(f"# of 2026\n{NEW_LINE}\n\n  {OLD_LINE}\n")
    monkeypatch.setenv("MY_KEYS", f"{NEW_LINE} {OLD_LINE}")
    for settings in (EncryptionSettings(key_file=file), EncryptionSettings(key_env="MY_KEYS")):
        cipher = load_cipher(settings)
        assert cipher is not None
        assert (cipher.name, cipher.names) == (BOTH.name, BOTH.names)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, r"cannot read .*keys \(No such file.*openssl rand"),
        ("", "holds no key: a key is 32 random bytes"),
        ("# none\n", "holds no key"),
        (f"{NEW_LINE}\nsecret-but-short\n", "key 2 of .*keys is invalid: a key is 32 random bytes"),
        ("ключ", "key 1 of .*keys is invalid"),
        (base64.b64encode(bytes(16)).decode(), "key 1 of .*keys is invalid"),
    ],
)
def test_invalid_keys_are_reported_without_their_content(tmp_path: Path, content: str | None, expected: str) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_text(content)
    with pytest.raises(SettingsError, match=expected) as raised:
        load_cipher(EncryptionSettings(key_file=file))
    assert "secret" not in raised.value.message
    assert "\n" not in raised.value.message


def test_missing_or_ambiguous_key_sources_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MY_KEYS", raising=False)
    with pytest.raises(SettingsError, match="variable MY_KEYS is not set"):
        load_cipher(EncryptionSettings(key_env="MY_KEYS"))
    with pytest.raises(SettingsError, match="not both"):
        load_cipher(EncryptionSettings(key_env="MY_KEYS", key_file=Path("keys")))


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEYS", NEW_LINE)
    monkeypatch.setitem(__import__("sys").modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(SettingsError, match=r"pip install .*\[encryption\]'"):
        load_cipher(EncryptionSettings(key_env="MY_KEYS"))


def test_an_encrypted_proxy_refuses_plain_text_in_its_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEYS", NEW_LINE)
    encryption = {"key_env": "MY_KEYS"}
    for fine in ({}, {"text": "none"}, {"text": "all", "enabled": False}):
        assert load_settings(encryption=encryption, journal=fine).encryption.enabled
    with pytest.raises(SettingsError, match="would store plain text beside an encrypted store"):
        load_settings(encryption=encryption, journal={"text": "all"})
    with pytest.raises(SettingsError, match="journal_text of the rule r would store plain text"):
        load_settings(encryption=encryption, rules=({"name": "r", "journal_text": "all"},))
