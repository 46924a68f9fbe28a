"""Compares questions by their content words, in languages that the verifier and the guards do not support.

The policy `learned` serves an answer only if the stored questions with this answer contain all content words of the question.
"""

import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import cache, lru_cache

import numpy as np

from kvproxy.index.models.e5 import NAME
from kvproxy.index.models.languages import ENGLISH, language_of
from kvproxy.index.models.minilm.weights import load_tokenizer, packaged_model
from kvproxy.index.models.verifier.built_in import MAX_TOKENS, BuiltInVerifier, is_english
from kvproxy.index.models.verifier.exchanged_comparison import comparison_is_exchanged
from kvproxy.index.models.verifier.exchanged_persons import persons_are_exchanged
from kvproxy.index.models.verifier.exchanged_third_person import third_person_is_exchanged
from kvproxy.index.policies.guards.words import with_umlauts

# Words that do not change an answer, unlike negations, prepositions, and most question words.
EMPTY = {
    "en": "a an the i you we my me your is are do does can could would will how please hi hello thanks",
    "de": "der die das den dem des eine einen einem einer eines ich man wir mir mich mein meine meinen meinem meiner meines"
    " sie ihr ihre ihren ihnen sich es wie kann können könnte möchte will wollen würde gerne gern wird werden ist sind geht"
    " gibt mache machen macht tun lasse lassen soll sollen bitte danke vielen dank hallo guten tag hier und dass ob wenn dann",
    "fr": "le la les l un une je j on nous me m moi mon ma mes vous votre vos se s il est ce c cela que qu comment puis peux"
    " peut pouvez pourrait voudrais veux souhaite aimerais faire fait fais faut et pour merci bonjour svp plaît si",
    "es": "el la los las un una lo yo me mi mis se su sus usted cómo como puedo puede pueden podría quiero quisiera necesito"
    " gustaría hacer hago hace es hay que y para favor gracias hola buenos días",
    "it": "il lo la i gli le un uno una l io mi mio mia miei mie si come posso può vorrei voglio fare faccio fa è che e per"
    " favore grazie ciao buongiorno",
    "pt": "o os as um uma eu me meu minha meus minhas se como posso pode quero gostaria preciso fazer faço faz é que e para"
    " favor obrigado obrigada olá",
    "nl": "de het een ik je u mijn uw men wij hoe kan kunnen wil zou graag wordt worden is er dat en doe doen alstublieft dank"
    " hallo goedendag",
    "zh": "怎么 怎样 如何 请问 请 您好 你好 谢谢 可以 能不能 可不可以 能否 是否 我想 我要 想要 我 你们 您 你 的 了 吗 呢 吧 一下"
    " 应该 需要 告诉 帮我 帮忙 麻烦 办 做 该 想 要 能 是 个 这 那 啊 得 才",
    "ja": "どうすれば どうやって どのように どうしたら どう いい よい ですか ますか でしょうか 教えてください てください"
    " ください 方法 やり方 手順 したい たい ことは ことが こと"
    " できますか できます 可能 です ます する します して した には ための ため"
    " を に は が の で と も か て 私 お",
}
# Kana that can change an answer, although they begin with one of these words.
_KEPT = "から|まで|より|ない|なく|なし|ません|だけ|しか"
_KANA = "\u3040", "\u309f"
_WORD = re.compile(r"[\u3040-\u309f]+|[\u30a0-\u30ff]+|[\u3400-\u9fff\uf900-\ufaff]|(?:(?![\u3040-\u9fff])[^\W\d_])+")
UNSPACED = ("zh", "ja")
_LEAST_STEM, _MOST_ENDING = 4, 2


def new_words_detector(embedder_name: str) -> Callable[[str, Sequence[str]], bool | None]:
    """Return `has_new_words` for the multilingual embedder.

    Other embedders read English only, whose words the guards compare: for them, the returned function always returns None.
    """
    return has_new_words if embedder_name.startswith(NAME) else lambda question, stored_questions: None


def has_new_words(question: str, stored_questions: Sequence[str]) -> bool | None:
    """Whether a question has content words or roles that no stored question has. None for English questions, for the guards."""
    if is_surely_english(question) and is_surely_english(stored_questions[0]):
        return None
    return bool(new_words(question, stored_questions)) or all(
        roles_are_exchanged(question, stored) for stored in stored_questions
    )


def have_equal_words(one: str, other: str) -> bool:
    """Whether two questions, not both in English, have the same content words and roles."""
    if is_surely_english(one) and is_surely_english(other):
        return False
    return not new_words(one, [other]) and not new_words(other, [one]) and not roles_are_exchanged(one, other)


def roles_are_exchanged(one: str, other: str) -> bool:
    """Whether persons, or the sides of a comparison, are exchanged in two questions, not both in English."""
    return (
        persons_are_exchanged(one, other)
        or third_person_is_exchanged(one, other)
        or comparison_is_exchanged(one, other)
    )


@lru_cache(maxsize=4096)
def is_surely_english(text: str) -> bool:
    """Whether the words of a text are in an English vocabulary. In contrast, `language_of` assumes English for unknown words."""
    return language_of(text) == ENGLISH and is_english(text, _english_vocabulary())


def is_english_word(word: str) -> bool:
    """Whether a word in lower case is in an English vocabulary of common words."""
    return word in _english_vocabulary()


@cache
def _english_vocabulary() -> frozenset[str]:
    return frozenset(load_tokenizer(packaged_model(), MAX_TOKENS).get_vocab())


def new_words(question: str, stored_questions: Sequence[str]) -> list[str]:
    """Return the content words that no stored question contains, not even with another ending."""
    known = frozenset[str]().union(*map(content_words, stored_questions))
    unknown = content_words(question) - known
    return [word for word in unknown if not any(_is_inflected(word, other) for other in known)]


def _is_inflected(word: str, other: str) -> bool:
    stem = max(_LEAST_STEM, len(word) - _MOST_ENDING, len(other) - _MOST_ENDING)
    return word[:stem] == other[:stem]


@lru_cache(maxsize=4096)
def content_words(text: str) -> frozenset[str]:
    """Return the content words in lower case. Each Chinese character and each run of kana is a word."""
    language, plain = language_of(text), with_umlauts(unicodedata.normalize("NFKC", text).lower())
    empty = with_umlauts(EMPTY.get(language, "")).split()
    if language in UNSPACED:
        phrases = "|".join(sorted(empty, key=len, reverse=True))
        plain = re.sub(f"({_KEPT})|{phrases}", lambda match: f" {match[1] or ''} ", plain)
    candidates = {word for word in _WORD.findall(plain) if len(word) > 1 or not _KANA[0] <= word <= _KANA[1]}
    return frozenset(candidates.difference(empty))


_SAME_WORDS = 0.95


class MultilingualVerifier:
    """Scores English pairs with the built-in verifier. Other pairs score 0.95 if their content words are equal, or else 0."""

    def __init__(self, english: BuiltInVerifier) -> None:
        self._english = english

    def can_read(self, text: str) -> bool:
        return True

    def score(self, pairs: Sequence[tuple[str, str]], cosines: np.ndarray) -> np.ndarray:
        return np.concatenate(
            [self._score_pair(*arguments) for arguments in zip(pairs, cosines, strict=True)] or [np.zeros(0)]
        )

    def _score_pair(self, pair: tuple[str, str], cosine: float) -> np.ndarray:
        if all(map(is_surely_english, pair)):
            return self._english.score([pair], np.array([cosine]))
        return np.array([_SAME_WORDS if have_equal_words(*pair) else 0.0], dtype=np.float32)
