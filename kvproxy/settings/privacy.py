"""The sections `[encryption]` and `[redaction]`."""

import re
from pathlib import Path

from pydantic import Field, field_validator

from kvproxy.settings.section import Section, compile_pattern


class EncryptionSettings(Section):
    """Encryption of stored texts, and of KV chunks on disk and in Redis."""

    key_file: Path | None = Field(
        default=None,
        description="File with one key per line (32 random bytes in base64); the first encrypts, all decrypt: see [the"
        " store](store.md#encryption).",
    )
    key_env: str | None = Field(
        default=None, description="Environment variable with keys, separated by spaces or line ends."
    )

    @property
    def enabled(self) -> bool:
        return self.key_file is not None or self.key_env is not None


class RedactionSettings(Section):
    """Redaction of texts before they are stored or logged."""

    patterns: tuple[str, ...] = Field(
        default=(), description="Regular expressions (Python) to replace, see [the store](store.md#redaction)."
    )
    replacement: str = Field(default="[redacted]", description="Replacement text.")
    function: str | None = Field(
        default=None, description="Your package.module:function, which returns the text to store, after the patterns."
    )

    @field_validator("patterns")
    @classmethod
    def _check_patterns(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            if compile_pattern(pattern).fullmatch(""):
                raise ValueError(f"{pattern!r} matches the empty text: correct it")
        return patterns

    @field_validator("function")
    @classmethod
    def _check_function(cls, name: str | None) -> str | None:
        if name is not None and not re.fullmatch(r"[^\W\d][\w.]*:[^\W\d]\w*", name):
            raise ValueError(f"{name!r} is not a function: use the form package.module:function")
        return name

    @property
    def enabled(self) -> bool:
        return bool(self.patterns) or self.function is not None
