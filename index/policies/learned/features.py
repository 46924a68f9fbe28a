"""What a question's neighbours say about the answer of the nearest one: numbers that a score is made from."""

from collections.abc import Sequence

import numpy as np

REACH = 24
"""Neighbours that are looked at."""
FEATURES = ("constant", "cosine", "margin", "rivals", "density", "votes", "company")
_WIDTH = 0.05  # A neighbour this much farther away has a third of the weight.
_NEAREST = 5
_WIDEST = 5.0  # Margins beyond half a cosine say no more.


def evidence(cosines: Sequence[float], classes: Sequence[str]) -> np.ndarray:
    """`[len(FEATURES)]` numbers on the class of the nearest neighbour, all of them about 1 in size.

    `cosine` of the nearest; `margin` to the nearest of another class; `rivals`, the weight of all other classes among the
    neighbours, as a logarithm; `density`, the mean cosine of the nearest five; `votes`, the share of these that are of its class;
    `company`, whether its class has a second neighbour.

    Args:
        cosines: of the neighbours, nearest first; at least one.
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
            min((near[0] - other) * 10, _WIDEST),
            -np.log(rivals + 0.01) - 2,
            (near[:_NEAREST].mean() - 0.7) * 5,
            own[:_NEAREST].mean() * 2,
            float(own.sum() > 1),
        ]
    )
