"""Writes the handbook, the demo model's answers as Markdown: `python -m training.demo.handbook training/demo/handbook.md`."""

import sys
from itertools import groupby
from pathlib import Path

from training.demo.corpus import Pair, is_off_topic, load_pairs

INTRODUCTION = """# The handbook

The questions and answers that the demonstration model was trained on. `python -m training.demo.handbook` generates this file
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
