"""Finds common roots of words: of inflected forms, and of names and their adjectives, such as `India` and `Indian`."""

from functools import lru_cache

from kvproxy.index.policies.guards import word_lists
from kvproxy.index.policies.guards.tokenization import base_forms

_ENDINGS = tuple("n an ian ean ese ish i ic ical al a e o y ia en and land istan ist".split())
_SHORTEST_STEM = 4
# Names whose adjectives no ending explains.
_IRREGULAR = """
france french|spain spanish|netherlands holland dutch|uk britain british|us usa america american americans|greece greek
greeks|switzerland swiss|wales welsh|denmark danish danes|ireland irish|finland finnish|scotland scottish scots|thailand thai
poland polish poles|peru peruvian|philippines filipino|cyprus cypriot|norway norwegian|belgium belgian|portugal portuguese
lebanon lebanese|congo congolese|turkey turkish turks|uae emirati|europe eu european|mars martian|venice venetian|monaco
monegasque|foot feet|man men|woman women|child children|naples neapolitan|barbados barbadian|kosovo kosovar
"""
_ROOTS = {
    word: group.split()[0]
    for line in _IRREGULAR.strip().splitlines()
    for group in line.split("|")
    for word in group.split()
}


@lru_cache(maxsize=8192)
def roots(word: str) -> frozenset[str]:
    """Return possible roots of a word. Two words with a common root may have the same meaning."""
    if word in _ROOTS:
        return frozenset({_ROOTS[word]})
    unit = word_lists.UNITS.get(word)
    if unit is not None:
        return frozenset({unit})
    stems = (word.removesuffix(ending) for ending in _ENDINGS if word.endswith(ending))
    return base_forms(word) | {stem for stem in stems if len(stem) >= _SHORTEST_STEM}
