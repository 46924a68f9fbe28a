"""Runs the commands of docs/tour.md against a new proxy.

python -m tests.tour.test_tour    # writes the printed output into the page
"""

import re
import tempfile
from unittest import mock

from index.policies.learned.learner import Learner
from kvproxy.settings import load_settings
from tests.commands.run import ROOT
from tests.servers import run_proxy
from tests.tour.shell import WIDTH, Step, run_commands, steps, with_output

PAGE = ROOT / "docs" / "tour.md"
# What differs from run to run: ids, times, and how often the caches were asked; and a similarity's last digits, from
# processor to processor (see index/models/minilm).
VARIABLE = [
    (re.compile(r"\b[0-9a-f]{12,64}\b"), "<hex>"),
    (re.compile(r"\b[0-9a-f]{8}\b"), "<hex>"),
    (re.compile(r"(?<=similarity=0\.9)\d+|(?<=verifier=0\.9)\d+"), "<digits>"),
    (re.compile(r"ttl=\d+"), "ttl=<s>"),
    (re.compile(r"verifier=0\.\d+"), "verifier=<p>"),
    (re.compile(r"\b0\.\d{3}\b"), "<number>"),
    (re.compile(r"(?<=[ >])[\d.]+(ms|s|m)(?= )"), "<age>"),
    (re.compile(r" +"), " "),
]


def run_tour(text: str, width: int = WIDTH) -> list[Step]:
    """Run each command of a page in one shell at a terminal, against a proxy of its own."""
    with tempfile.TemporaryDirectory() as data:
        # However busy the machine is: similar questions are looked up, and answers stored, before an answer is given.
        settings = load_settings(data=data, engine={"num_blocks": 1024}, cache={"lookup_timeout": 60})
        # A background comparison of a hit would add a column of `explain` on a machine that is busy enough.
        no_comparison = mock.patch.object(Learner, "early_exploration_share", return_value=0.0)
        with no_comparison, run_proxy(settings) as (url, _):
            commands = [step.command.replace("http://127.0.0.1:8484", url) for step in steps(text)]
            ran, notes = run_commands(commands, url, ROOT, width)
    assert all(note.startswith("not shown: ") for note in notes.splitlines() if note), notes
    return [Step(step.command, done.output.lstrip("\n")) for step, (done, _) in zip(steps(text), ran, strict=True)]


def normal(text: str) -> str:
    for pattern, replacement in VARIABLE:
        text = pattern.sub(replacement, text)
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


def test_the_output_of_the_page_is_current() -> None:
    text = PAGE.read_text()
    shown = steps(text)
    assert len(shown) > 8
    for step, claimed in zip(run_tour(text), shown, strict=True):
        assert normal(step.output) == normal(claimed.output), step.command


if __name__ == "__main__":
    PAGE.write_text(with_output(PAGE.read_text(), run_tour(PAGE.read_text())))
