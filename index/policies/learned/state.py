"""What a namespace has learned, as JSON and back; floats come back as they were, so that decisions do too."""

import json

import numpy as np

from kvproxy.index.policies.learned.class_errors import Doubts
from kvproxy.index.policies.learned.error_model import Score
from kvproxy.index.policies.learned.features import FEATURES
from kvproxy.index.policies.learned.learner import Learner
from kvproxy.index.policies.learned.serving_level import Level

_VERSION = 1


def dump(learner: Learner) -> str:
    """A learner as JSON."""
    score, level, doubts = learner.score, learner.level, learner.doubts
    return json.dumps(
        {
            "version": _VERSION,
            "features": FEATURES,
            "weights": score.weights.tolist(),
            "covariance": score.covariance.tolist(),
            "slips": [score.slipped, score.sure],
            "served": level.served,
            "risk": level.risk,
            "seen": [level.wrong, level.expected],
            "repeats": [level.repeats, level.slips],
            "spread": level.spread.tolist(),
            "odds": doubts.odds,
            "lifted": sorted(doubts.lifted),
            "counts": [learner.observed, learner.checked_seen, learner.checked_wrong, learner.number],
        }
    )


def load(state: str, max_error: float) -> Learner | None:
    """The learner of a state; None where it was made by a version that looked at other things.

    Args:
        max_error: the bound now, which may be another than when the state was saved.
    """
    kept = json.loads(state)
    if kept.get("version") != _VERSION or tuple(kept["features"]) != FEATURES:
        return None
    level = Level(max_error, kept["served"], kept["risk"], *kept["seen"], *kept["repeats"])
    level.spread = np.array(kept["spread"])
    level.measure()
    level.plan()
    observed, checked_seen, checked_wrong, number = kept["counts"]
    return Learner(
        Score(np.array(kept["weights"]), np.array(kept["covariance"]), *kept["slips"]),
        level,
        Doubts(kept["odds"], {(name, guard) for name, guard in kept["lifted"]}),
        observed,
        checked_seen,
        checked_wrong,
        number,
    )
