"""Writes the mean vector that the multilingual embedder subtracts: `python -m training.multilingual_mean`.

It is the mean over the English questions of `tests/index/data`, and a sample of each language in `tests.benchmarks.languages`.
"""

import json
import random

import numpy as np

from kvproxy.index.models.e5 import MEAN, MultilingualEmbedder
from tests.benchmarks.languages import LANGUAGES, read_language, traffic

_EACH = 300


def main() -> None:
    data = MEAN.parents[2] / "tests" / "index" / "data"
    lines = [json.loads(line) for file in sorted(data.glob("*.jsonl")) for line in file.read_text().splitlines()]
    english = sorted({text for line in lines for text in line.values() if isinstance(text, str)})
    groups = [random.Random(0).sample(english, min(_EACH, len(english)))]
    groups += [[text for text, _ in traffic(read_language(name), _EACH, ())] for name in LANGUAGES]
    if not MEAN.exists():
        np.save(MEAN, np.zeros(MultilingualEmbedder.dim, np.float16))
    embedder = MultilingualEmbedder(int8=False)
    embedder._mean = np.zeros_like(embedder._mean)
    np.save(MEAN, embedder.embed([text for group in groups for text in group]).mean(axis=0).astype(np.float16))


if __name__ == "__main__":
    main()
