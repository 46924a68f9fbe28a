"""What takes secrets out of texts before they are stored or logged; `kvproxy.redaction` makes the one that the settings name."""

from typing import Protocol


class RedactionFailed(Exception):
    """A text could not be redacted, so nothing of it may be stored. The message holds nothing of the text."""


class Redactor(Protocol):
    """Takes out of a text what must not be stored. Any thread may call it."""

    def __call__(self, text: str) -> str:
        """What may be stored or logged of a text: the text itself where it holds nothing to hide.

        Raises:
            RedactionFailed: that cannot be told.
        """
