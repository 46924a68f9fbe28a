"""Features of the nearest neighbour, from which its error is estimated."""

from collections.abc import Sequence

import numpy as np

REACH = 24
"""Number of neighbours."""
FEATURES = ("constant", "cosine", "margin", "rivals", "density", "votes", "company")
_WIDTH = 0.05
"""Difference of cosines at which a neighbour's weight falls to 1/e."""
_NEAREST = 5
_MAX_MARGIN = 5.0


def compute_features(cosines: Sequence[float], classes: Sequence[str]) -> np.ndarray:
    """Return `[len(FEATURES)]` features of the nearest neighbour, each about 1 in size.

    - `cosine` of the nearest neighbour;
    - `margin` to the nearest neighbour of another class;
    - `rivals`: log weight of other classes among the neighbours;
    - `density`: mean cosine of the nearest five;
    - `votes`: share of its class among the nearest five;
    - `company`: its class has a second neighbour.

    Args:
        cosines: of at least one neighbour, nearest first.
        classes: of their answers.
    """
    near = np.asarray(cosines, dtype=np.float64)
    own = np.fromiter((name == classes[0] for name in classes), bool, len(classes))
    other = float(near[~own][0]) if not own.all() else float(near[-1])
    weights = np.exp((near - near[0]) / _WIDTH)
    rivals = float(weights[~own].sum() / weights.sum())
    return np.array(
        [
            1.0,
            (near[0] - 0.8) * 5,
            min((near[0] - other) * 10, _MAX_MARGIN),
            -np.log(rivals + 0.01) - 2,
            (near[:_NEAREST].mean() - 0.7) * 5,
            own[:_NEAREST].mean() * 2,
            float(own.sum() > 1),
        ]
    )
