"""Vetoes a semantic hit if two questions name different currencies."""

import re

from kvproxy.index.policies.guards import Guard

NAMES = {"$": "usd", "usd": "usd", "dollar": "usd", "€": "eur", "eur": "eur", "euro": "eur", "£": "gbp", "pound": "gbp"}
_WORDS = re.compile(r"[$€£]|[a-z]+")


def currencies(question: str) -> set[str]:
    words = _WORDS.findall(question.lower())
    return {NAMES[name] for word in words if (name := word if word in NAMES else word.removesuffix("s")) in NAMES}


def currencies_differ(question: str, cached_question: str) -> bool:
    return currencies(question) != currencies(cached_question)


CURRENCIES = Guard("currencies", "other currencies", currencies_differ)
