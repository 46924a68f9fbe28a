"""Settings of what is stored of people's texts, and how."""

import re
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, field_validator


class EncryptionSettings(BaseModel):
    """Encryption of stored texts and of chunks on disk and in Redis."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key_file: Path | None = Field(
        None,
        description="File of keys, one a line, each 32 random bytes in base64: the first encrypts, all decrypt. Nothing is"
        " encrypted without keys; see [the store](store.md#encryption).",
    )
    key_env: str | None = Field(
        None, description="Environment variable that holds the keys instead, separated by spaces or line ends."
    )

    @property
    def enabled(self) -> bool:
        """Whether there are to be keys."""
        return self.key_file is not None or self.key_env is not None


class RedactionSettings(BaseModel):
    """What is taken out of texts before they are stored or logged."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    patterns: tuple[str, ...] = Field(
        (), description="Regular expressions of Python; what fits one is replaced. See [the store](store.md#redaction)."
    )
    replacement: str = Field("[redacted]", description="What stands in its place.")
    function: str | None = Field(
        None,
        description="A function of yours that takes a text and gives back what may be stored of it, as"
        " package.module:function. It runs after the patterns.",
    )

    @field_validator("patterns")
    @classmethod
    def _compile(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            try:
                empty = re.compile(pattern).fullmatch("") is not None
            except re.error as error:
                raise ValueError(f"{pattern!r} is no regular expression ({error}): correct it") from None
            if empty:
                raise ValueError(f"{pattern!r} fits the empty text: it would redact everywhere")
        return patterns

    @field_validator("function")
    @classmethod
    def _named(cls, name: str | None) -> str | None:
        if name is not None and not re.fullmatch(r"[^\W\d][\w.]*:[^\W\d]\w*", name):
            raise ValueError(f"{name!r} names no function: write package.module:function")
        return name

    @property
    def enabled(self) -> bool:
        """Whether anything is redacted."""
        return bool(self.patterns) or self.function is not None
