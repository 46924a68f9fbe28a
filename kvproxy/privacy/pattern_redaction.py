"""Redacts texts by patterns, and by the operator's function."""

import importlib
import re
from collections.abc import Callable

from kvproxy.errors import SettingsError
from kvproxy.index.entry_redaction import RedactionFailed, Redactor
from kvproxy.settings import RedactionSettings


def load_redactor(settings: RedactionSettings) -> Redactor | None:
    """Return a function that redacts a text by the patterns of the settings, then by the operator's function.

    Return None if the settings have neither. Raises SettingsError if the operator's function cannot be used.
    """
    if not settings.enabled:
        return None
    function = None if settings.function is None else _import_function(settings.function)
    patterns = [re.compile(pattern) for pattern in settings.patterns]

    def redact(text: str) -> str:
        for pattern in patterns:
            text = pattern.sub(lambda match: settings.replacement, text)
        return text if function is None else _redact_by_function(function, text)

    try:
        redact("")
    except RedactionFailed as error:
        raise SettingsError(
            f"setting redaction.function: on an empty text, {error}", param="redaction.function"
        ) from None
    return redact


def _redact_by_function(function: Callable[[str], object], text: str) -> str:
    try:
        kept = function(text)
    except Exception as error:
        # The message may contain the text.
        raise RedactionFailed(
            f"redaction.function failed ({type(error).__name__}): nothing of this request is stored"
        ) from None
    if not isinstance(kept, str):
        raise RedactionFailed(f"redaction.function gave a {type(kept).__name__} and no text: nothing is stored")
    return kept


def _import_function(name: str) -> Callable[[str], object]:
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
