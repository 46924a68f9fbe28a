"""Words that can change an answer, in languages that neither the verifier nor the lists of the guards know.

A stored answer may serve a question if each of these words occurs in stored questions with the same answer.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache

from kvproxy.index.models.e5.embedder import NAME
from kvproxy.index.models.languages import ENGLISH, language_of
from kvproxy.index.models.minilm.weights import load_tokenizer, packaged_model
from kvproxy.index.models.verifier.built_in import MAX_TOKENS, is_english

# Words that do not change an answer. Negations, prepositions, and question words except `how` are not among them.
_EMPTY = {
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
KNOWN = tuple(_EMPTY)
"""Languages with a list of such words."""
_WORD = re.compile(r"[\u3040-\u309f]+|[\u30a0-\u30ff]+|[\u3400-\u9fff\uf900-\ufaff]|(?:(?![\u3040-\u9fff])[^\W\d_])+")
# Kana that change an answer although they begin with a particle or an ending.
_KEPT = "から まで より ない なく なし ません だけ しか"
_UNSPACED = ("zh", "ja")
_LEAST_STEM, _MOST_ENDING = 4, 2


NewWords = Callable[[str, Sequence[str]], Sequence[str]]


def new_words_test(embedder: str) -> NewWords | None:
    """Return the test for an embedder, by its name; None unless it is the packaged multilingual one."""
    return new_foreign_words if embedder.startswith(NAME) else None


def new_foreign_words(question: str, stored: Sequence[str]) -> Sequence[str]:
    """Return `new_words`, but no words if the question and the nearest stored one are English.

    Args:
        stored: questions with the same answer, nearest first.
    """
    return () if is_surely_english(question) and is_surely_english(stored[0]) else new_words(question, stored)


@lru_cache(maxsize=4096)
def is_surely_english(text: str) -> bool:
    """Whether a text has English words. `language_of` also returns English for texts without any known word."""
    return language_of(text) == ENGLISH and is_english(text, _english_vocabulary())


@cache
def _english_vocabulary() -> frozenset[str]:
    return frozenset(load_tokenizer(packaged_model(), MAX_TOKENS).get_vocab())


def new_words(question: str, stored: Sequence[str]) -> list[str]:
    """Return the words of a question that no stored question has. Another inflection counts as the same word."""
    known = frozenset[str]().union(*map(content_words, stored))
    return [word for word in content_words(question) if word not in known and not _is_inflected(word, known)]


def have_same_words(one: str, other: str) -> bool:
    return not new_words(one, [other]) and not new_words(other, [one])


@lru_cache(maxsize=4096)
def content_words(text: str) -> frozenset[str]:
    """Return the words of a text, in lower case, without those that do not change an answer.

    A Chinese character is a word, and so is a run of kana.
    """
    language = language_of(text)
    plain = unicodedata.normalize("NFKC", text).lower()
    if language in _UNSPACED:
        plain = _phrases(language).sub(lambda match: f" {match['kept'] or ''} ", plain)
    # A single kana is an ending or a particle.
    found = {word for word in _WORD.findall(plain) if len(word) > 1 or not "\u3040" <= word <= "\u309f"}
    return frozenset(found - _empty_words(language))


@cache
def _empty_words(language: str) -> frozenset[str]:
    return frozenset(_EMPTY.get(language, "").split())


@cache
def _phrases(language: str) -> re.Pattern[str]:
    empty = sorted(_empty_words(language), key=len, reverse=True)
    return re.compile(f"(?P<kept>{'|'.join(_KEPT.split())})|{'|'.join(empty)}")


def _is_inflected(word: str, known: Iterable[str]) -> bool:
    stems = ((_common_length(word, other), len(other)) for other in known if word[0] == other[0])
    return any(stem >= _LEAST_STEM and max(len(word), length) - stem <= _MOST_ENDING for stem, length in stems)


def _common_length(word: str, other: str) -> int:
    pairs = enumerate(zip(word, other, strict=False))
    return next((place for place, (one, two) in pairs if one != two), min(len(word), len(other)))
