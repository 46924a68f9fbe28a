"""What the demo model learns: question/answer pairs in several wordings, one wording of each held out.

A file of `data/` is a list of pairs in one chapter. `# ` names the chapter, `= ` begins a pair with its answer, a plain
line is a wording to train on, and `? ` marks a wording that is held out to measure with.
"""

from dataclasses import dataclass, field
from pathlib import Path

DATA = Path(__file__).parent / "data"
OFF_TOPIC = "off_topic"


@dataclass(slots=True)
class Pair:
    """One answer and the wordings of its question."""

    chapter: str
    answer: str
    wordings: list[str] = field(default_factory=list)
    held_out: list[str] = field(default_factory=list)


def load_pairs(folder: Path = DATA) -> list[Pair]:
    """All pairs in the order of the files; the off-topic questions come last, in a pair of their own."""
    pairs: list[Pair] = []
    for path in sorted(folder.glob("*.txt")):
        chapter = path.stem
        for line in path.read_text().splitlines():
            if line.startswith("# "):
                chapter = line[2:]
            elif line.startswith("= "):
                pairs.append(Pair(chapter, line[2:]))
            elif line.startswith("? "):
                pairs[-1].held_out.append(line[2:])
            elif line:
                pairs[-1].wordings.append(line)
    return pairs


def is_off_topic(pair: Pair) -> bool:
    """Whether the pair is the one that turns questions away."""
    return pair.chapter == OFF_TOPIC
