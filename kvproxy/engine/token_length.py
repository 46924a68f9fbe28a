"""How many bytes of text one token can cover, so that a text that is far too long is refused before it is tokenised."""

import json
from typing import Any

_COMPOSED = 4
"""More bytes than one byte can stand for after Unicode's composition (NFC), where 7 become 2 at the most."""


def longest_token(tokenizer: Any) -> int | None:
    """Most bytes of text that one token covers; None where that cannot be told exactly.

    It can be told of byte-level BPE, which loses no byte: every character of a token's name is one byte. Normalizers and
    pre-tokenizers that may drop text, and special tokens that take the blanks around them, make any number wrong.

    Args:
        tokenizer: a `PreTrainedTokenizerBase`.
    """
    if not tokenizer.is_fast:
        return None
    backend = tokenizer.backend_tokenizer
    composes = _parts(backend.normalizer, "normalizers") == [{"type": "NFC"}]
    if type(backend.model).__name__ != "BPE" or not (composes or backend.normalizer is None):
        return None
    *splits, last = _parts(backend.pre_tokenizer, "pretokenizers") or [{}]
    if last.get("type") != "ByteLevel" or not all(_keeps_text(split) for split in splits):
        return None
    added = tokenizer.added_tokens_decoder.values()
    if any(token.lstrip or token.rstrip for token in added):
        return None
    names = tokenizer.get_vocab()
    longest = max((*map(len, names), *(len(token.content.encode()) for token in added)))
    return longest * (_COMPOSED if composes else 1)


def _keeps_text(step: dict[str, Any]) -> bool:
    return (step.get("type") == "Split" and step.get("behavior") != "Removed") or step.get("type") in (
        "Digits",
        "ByteLevel",
    )


def _parts(component: Any, name: str) -> list[dict[str, Any]]:
    """The steps of a normalizer or pre-tokenizer, which may be a sequence of them."""
    if component is None:
        return []
    state: dict[str, Any] = json.loads(component.__getstate__())
    steps: list[dict[str, Any]] = state[name] if state.get("type") == "Sequence" else [state]
    return steps
