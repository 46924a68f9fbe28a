"""Reads the corpus of the demo model: answers, each with several wordings of its question.

Each file in `data/` is a chapter. A line with `# ` names the chapter, and a line with `= ` is the answer of the next pair.
The other lines are wordings of its question; those with `? ` are held out from training.
"""

import sys
from dataclasses import dataclass, field
from itertools import groupby
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


INTRODUCTION = """# The handbook

The questions and answers that the demonstration model was trained on. `python -m training.demo.corpus` generates this file
from `training/demo/data/`.

Two answers are out of date until the model is trained again: the embedded engine also supports sliding windows, attention sinks,
and capped logits.
"""


def render(pairs: list[Pair]) -> str:
    parts = [INTRODUCTION]
    for chapter, members in groupby((pair for pair in pairs if not is_off_topic(pair)), key=lambda pair: pair.chapter):
        parts.append(f"\n## {chapter}\n")
        parts += [f"\n**{pair.wordings[0]}**\n{pair.answer}\n" for pair in members]
    return "".join(parts)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render(load_pairs()))
