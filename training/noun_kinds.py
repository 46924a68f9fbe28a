"""Write the nouns of WordNet with their kinds: python -m training.noun_kinds FOLDER, where FOLDER has `data.noun`.

Each line of `index/policies/guards/noun_kinds.txt` has a noun, numbers of its first meanings (synsets), and numbers of the
parents and grandparents of those meanings (hypernyms). Nouns with a common meaning are synonyms; nouns with a common parent
are of one kind.
"""

import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

TARGET = Path(__file__).parent.parent / "index" / "policies" / "guards" / "noun_kinds.txt"
LICENCE = TARGET.with_name("antonyms.txt")
_NOUN = re.compile(r"[a-z]{3,14}")
_MEANINGS, _COMPARED_MEANINGS = 8, 2
_MIN_DEPTH = 5  # Above, hypernyms such as `artifact` or `activity` contain nouns of any kind.
_MAX_CHILDREN = 400


def main() -> None:
    folder = Path(sys.argv[1])
    parents, instances = _read_synsets(folder / "data.noun")
    every = _read_index(folder / "index.noun")
    meanings = {noun: [synset for synset in synsets if synset not in instances] for noun, synsets in every}
    depths: dict[str, int] = {}

    def depth(synset: str) -> int:
        if synset not in depths:
            depths[synset] = 1 + max(map(depth, parents[synset]), default=0)
        return depths[synset]

    kinds: dict[str, set[str]] = {}
    members: defaultdict[str, set[str]] = defaultdict(set)
    for noun, synsets in meanings.items():
        near = {parent for synset in synsets[:_COMPARED_MEANINGS] for parent in parents[synset]}
        near |= {ancestor for parent in near for ancestor in parents[parent]}
        kinds[noun] = {synset for synset in near if depth(synset) >= _MIN_DEPTH}
        for kind in kinds[noun]:
            members[kind].add(noun)
    used = {kind for kind, nouns in members.items() if 2 <= len(nouns) <= _MAX_CHILDREN}
    numbers: dict[str, str] = {}

    def encode(synsets: set[str]) -> str:
        return ",".join(numbers.setdefault(synset, f"{len(numbers):x}") for synset in sorted(synsets))

    lines = []
    for noun, synsets in sorted(meanings.items()):
        shared = kinds[noun] & used
        if shared:
            lines.append(f"{noun} {encode(set(synsets[:_MEANINGS]))} {encode(shared)}")
    licence = LICENCE.read_text().split("#\n", 1)[1]
    comments = [line for line in licence.splitlines() if line.startswith("#")]
    header = [
        "# Nouns of WordNet 3.0, their meanings, and the kinds of these: see training/noun_kinds.py.",
        "#",
        *comments,
    ]
    TARGET.write_text("\n".join([*header, *lines]) + "\n")
    print(f"{len(lines):,} nouns, {TARGET.stat().st_size:,} bytes")


def _read_synsets(path: Path) -> tuple[dict[str, list[str]], set[str]]:
    parents: dict[str, list[str]] = {}
    instances = set()
    for line in path.read_text().splitlines():
        if not line.startswith(" "):
            fields = line.split(" | ")[0].split()
            start = 5 + 2 * int(fields[3], 16)
            pointers = [fields[place : place + 4] for place in range(start, start + 4 * int(fields[start - 1]), 4)]
            parents[fields[0]] = [target for kind, target, part, _ in pointers if kind in ("@", "@i") and part == "n"]
            instances |= {fields[0]} if any(kind == "@i" for kind, *_ in pointers) else set()
    return parents, instances


def _read_index(path: Path) -> Iterator[tuple[str, list[str]]]:
    for line in path.read_text().splitlines():
        noun, *fields = line.split()
        if not line.startswith(" ") and _NOUN.fullmatch(noun):
            yield noun, fields[-int(fields[1]) :]


if __name__ == "__main__":
    main()
