import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import xxhash

from kvproxy.offline.prompt_regions import Region, prompt_head

_WORD = re.compile(r"\w+|[^\w\s]")
_SHINGLE_WORDS = 3
_MAX_WORDS = 2000
_MIN_COMMON_SHARE = 0.5


@dataclass(slots=True)
class Family:
    """Requests to one model whose prompts begin with almost the same text.

    Attributes:
        head: beginning of the family's first prompt: its tools and system prompt, or else its first message.
        members: indexes of the requests in the log.
        shingles: see the function `shingles`; of `head`.
    """

    model: str
    head: str
    members: list[int] = field(default_factory=list)
    shingles: set[int] = field(default_factory=set)


def shingles(text: str) -> set[int]:
    """Return the hashes of all sequences of three words in a text; a shorter text has one hash."""
    words = _WORD.findall(text)[:_MAX_WORDS]
    starts = range(max(1, len(words) - _SHINGLE_WORDS + 1))
    runs = (" ".join(words[start : start + _SHINGLE_WORDS]) for start in starts)
    return {xxhash.xxh3_64_intdigest(run.encode("utf-8", "replace")) for run in runs}


def group_families(models: Sequence[str], prompts: Sequence[list[Region]]) -> list[Family]:
    """Group prompts of one model whose beginnings share half of their phrases of three words. The largest group is first.

    A prompt without text belongs to no group.
    """
    families: list[Family] = []
    index: dict[tuple[str, int], set[int]] = {}
    for member, (model, regions) in enumerate(zip(models, prompts, strict=True)):
        head = prompt_head(regions)
        if not head.strip():
            continue
        hashes = shingles(head)
        votes = Counter(number for each in hashes for number in index.get((model, each), ()))
        number, count = votes.most_common(1)[0] if votes else (-1, 0)
        size = len(families[number].shingles) if votes else len(hashes)
        if count < _MIN_COMMON_SHARE * min(len(hashes), size):
            # Only the first head defines the family, so that changing spans do not attract other families.
            number = len(families)
            families.append(Family(model, head, shingles=hashes))
            for each in hashes:
                index.setdefault((model, each), set()).add(number)
        families[number].members.append(member)
    return sorted(families, key=lambda family: -len(family.members))
