"""Serialization of a learner as JSON. Floats keep their exact values, and decisions do too."""

import json

import numpy as np

from kvproxy.index.policies.learned.class_errors import ClassErrors
from kvproxy.index.policies.learned.error_model import ErrorModel
from kvproxy.index.policies.learned.features import FEATURES
from kvproxy.index.policies.learned.learner import Learner
from kvproxy.index.policies.learned.serving_level import ServingLevel

_VERSION = 1


def dump(learner: Learner) -> str:
    model, level, errors = learner.error_model, learner.level, learner.class_errors
    return json.dumps(
        {
            "version": _VERSION,
            "features": FEATURES,
            "weights": model.weights.tolist(),
            "covariance": model.covariance.tolist(),
            "slips": [model.slipped, model.sure],
            "served": level.served,
            "risk": level.risk,
            "seen": [level.wrong, level.expected],
            "repeats": [level.repeats, level.slips],
            "spread": level.spread.tolist(),
            "odds": errors.odds,
            "lifted": sorted(errors.lifted),
            "counts": [learner.observed, learner.checked_seen, learner.checked_wrong, learner.number],
        }
    )


def load(state: str, max_error: float) -> Learner | None:
    """Return the learner of a state; None if another version with other features saved it.

    Args:
        max_error: the current bound.
    """
    kept = json.loads(state)
    if kept.get("version") != _VERSION or tuple(kept["features"]) != FEATURES:
        return None
    level = ServingLevel(max_error, kept["served"], kept["risk"], *kept["seen"], *kept["repeats"])
    level.spread = np.array(kept["spread"])
    level.update()
    observed, checked_seen, checked_wrong, number = kept["counts"]
    return Learner(
        ErrorModel(np.array(kept["weights"]), np.array(kept["covariance"]), *kept["slips"]),
        level,
        ClassErrors(kept["odds"], {(name, guard) for name, guard in kept["lifted"]}),
        observed,
        checked_seen,
        checked_wrong,
        number,
    )
