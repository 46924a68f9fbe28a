"""Redaction by regular expressions and the operator's function."""

import importlib
import re
from collections.abc import Callable, Sequence

from kvproxy.errors import SettingsError
from kvproxy.index.entry_redaction import RedactionFailed, Redactor
from kvproxy.settings import RedactionSettings


class PatternRedactor:
    """Replaces matches of patterns, then calls a function.

    Args:
        replacement: literal text.
        function: returns the text to store.
    """

    def __init__(
        self, patterns: Sequence[str], replacement: str, function: Callable[[str], object] | None = None
    ) -> None:
        self._patterns = [re.compile(pattern) for pattern in patterns]
        self._replacement = replacement
        self._function = function

    def __call__(self, text: str) -> str:
        for pattern in self._patterns:
            text = pattern.sub(lambda match: self._replacement, text)
        if self._function is None:
            return text
        try:
            kept = self._function(text)
        except Exception as error:
            # The message may contain the text.
            raise RedactionFailed(
                f"redaction.function failed ({type(error).__name__}): nothing of this request is stored"
            ) from None
        if not isinstance(kept, str):
            raise RedactionFailed(f"redaction.function gave a {type(kept).__name__} and no text: nothing is stored")
        return kept


def load_redactor(settings: RedactionSettings) -> Redactor | None:
    """Load the configured redactor; None if the settings have neither patterns nor a function.

    Raises:
        SettingsError: the function cannot be used.
    """
    if not settings.enabled:
        return None
    function = None if settings.function is None else _import(settings.function)
    redactor = PatternRedactor(settings.patterns, settings.replacement, function)
    try:
        redactor("")
    except RedactionFailed as error:
        raise SettingsError(
            f"setting redaction.function: on an empty text, {error}", param="redaction.function"
        ) from None
    return redactor


def _import(name: str) -> Callable[[str], object]:
    module, _, attribute = name.partition(":")
    try:
        function = getattr(importlib.import_module(module), attribute, None)
    except Exception as error:
        raise SettingsError(
            f"setting redaction.function: cannot import {module} ({type(error).__name__}: {error}): install it, or name its"
            " folder in PYTHONPATH",
            param="redaction.function",
        ) from None
    if not callable(function):
        raise SettingsError(
            f"setting redaction.function: {module} has no function {attribute}: write package.module:function",
            param="redaction.function",
        )
    return function  # type: ignore[no-any-return]
