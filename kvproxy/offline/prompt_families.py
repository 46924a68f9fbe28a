"""Prompt families: requests whose prompts begin alike, whatever small part of the beginning changes."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvproxy.offline.prompt_regions import Region, head_of

_WORD = re.compile(r"\w+|[^\w\s]")
_SHINGLE = 3
"""Words that are compared together."""
_MOST_WORDS = 2000
_ALIKE = 0.5
"""Least share of the smaller one's shingles that two heads of a family have in common."""
_OF_A_SIGNATURE = 64


@dataclass(slots=True)
class Family:
    """Requests that begin alike.

    Attributes:
        model: that they name.
        head: what the first of them begins with.
        members: places of its requests in the log.
        shingles: of that beginning.
    """

    model: str
    head: str
    members: list[int] = field(default_factory=list)
    shingles: set[int] = field(default_factory=set)

    @property
    def signature(self) -> list[int]:
        """Some of its shingles, always the same ones for the same text: what tells the family in a later run."""
        return sorted(self.shingles)[:_OF_A_SIGNATURE]


def shingles(text: str) -> set[int]:
    """Names of all runs of a few words; of a text that has fewer, of the whole."""
    found = _WORD.findall(text)[:_MOST_WORDS]
    runs = [tuple(found[place : place + _SHINGLE]) for place in range(max(1, len(found) - _SHINGLE + 1))]
    return {_name(" ".join(run)) for run in runs}


def _name(text: str) -> int:
    """A number that is the same in every process."""
    import xxhash

    return xxhash.xxh3_64_intdigest(text.encode("utf-8", "replace"))


def group(models: Sequence[str], prompts: Sequence[Sequence[Region]]) -> list[Family]:
    """The families of a log, the largest first; a prompt without text is in none.

    Args:
        models: of each request.
        prompts: the regions of each request.
    """
    families: list[Family] = []
    holders: dict[tuple[str, int], set[int]] = {}
    for place, (model, regions) in enumerate(zip(models, prompts, strict=True)):
        head = head_of(list(regions))
        if not head.strip():
            continue
        names = shingles(head)
        votes = Counter(number for name in names for number in holders.get((model, name), ()))
        number, votes_for = votes.most_common(1)[0] if votes else (-1, 0)
        known = len(families[number].shingles) if votes else 0
        if votes_for < _ALIKE * min(len(names), known or len(names)):
            number = len(families)
            families.append(Family(model, head))
        families[number].members.append(place)
        # What a family began with tells it; with all that ever stood in a changing span it would swallow others.
        if len(families[number].members) == 1:
            families[number].shingles = names
            for name in names:
                holders.setdefault((model, name), set()).add(number)
    return sorted(families, key=lambda family: -len(family.members))
