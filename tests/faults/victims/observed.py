"""What is learned: observations, the snapshots of namespaces, and the pruning of what a snapshot has taken in."""

import json
from collections.abc import Sequence
from pathlib import Path

from kvproxy.index.store.observations import Observation
from kvproxy.index.store.opening import open_observations
from tests.faults.victims.victim import READY, Tell


class Observed:
    """Tells `+NUMBER` of a person's verdict that is kept, and `=NUMBER` of a snapshot that is saved."""

    name = "observations"
    lives = 20
    longest = 0.1

    def prepare(self, folder: Path, seed: int) -> None:
        """An empty folder."""

    def work(self, folder: Path, seed: int, tell: Tell) -> None:
        log = open_observations(folder / "r.db")
        tell(READY)
        for number in range(10**6):
            name = f"{seed}-{number}"
            log.add([Observation.verdict(name, right=False, namespace="n")])
            tell(f"+{name}")
            log.add([Observation(f"served {name}", True, "answer", True, 0.0, "n")])
            if number % 3 == 0:
                last = log.since("n", 0, 10**6)[-1].number
                log.save("n", last, json.dumps({"upto": last}))
                tell(f"={last}")
                log.prune(10)

    def check(self, folder: Path, told: Sequence[str]) -> None:
        log = open_observations(folder / "r.db")
        verdicts = [line[1:] for line in told if line[0] == "+"]
        assert set(verdicts) <= log.rejected(verdicts), "a person's verdict is lost"
        saved = max((int(line[1:]) for line in told if line[0] == "="), default=0)
        state = log.snapshot("n")
        assert (0 if state is None else json.loads(state)["upto"]) >= saved, "a snapshot is lost"
        assert log.pruned("n") <= (0 if state is None else json.loads(state)["upto"]), "what no snapshot has is gone"
        log.close()
