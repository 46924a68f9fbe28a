"""Reads the corpus of the demo model: answers, each with several wordings of its question.

Each file in `data/` is a chapter. A line with `# ` names the chapter, and a line with `= ` is the answer of the next pair.
The other lines are wordings of its question; those with `? ` are held out from training.
"""

from dataclasses import dataclass, field
from pathlib import Path

DATA = Path(__file__).parent / "data"
OFF_TOPIC = "off_topic"


@dataclass(slots=True)
class Pair:
    chapter: str
    answer: str
    wordings: list[str] = field(default_factory=list)
    held_out: list[str] = field(default_factory=list)


def load_pairs(folder: Path = DATA) -> list[Pair]:
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
    """Whether a pair has the refusal, the answer to questions about other topics."""
    return pair.chapter == OFF_TOPIC
