"""P-CHR AUC: the area under the precision of hits by the share of requests that are hits."""

import numpy as np
import pytest

from kvproxy.index.evaluation.stream_replay import precision_hit_ratio_area


def test_the_area_is_the_mean_precision_over_all_hit_rates() -> None:
    right = np.array([True, False, True, True])
    assert precision_hit_ratio_area(np.array([0.9, 0.8, 0.7, 0.6]), right) == pytest.approx(
        (1 + 1 / 2 + 2 / 3 + 3 / 4) / 4
    )
    # An answer that is never served adds nothing.
    assert precision_hit_ratio_area(np.array([0.9, -1.0, 0.7, 0.6]), right) == pytest.approx(3 / 4)
    assert precision_hit_ratio_area(np.empty(0), np.empty(0)) == 0.0
