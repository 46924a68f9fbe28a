"""Detects the language of questions, by script and function words.

Short questions, names, and code count as English, unless a word of another language occurs.
"""

import unicodedata
from collections import Counter
from collections.abc import Container, Sequence
from functools import lru_cache

from kvproxy.index.models.embedder import Embedder
from kvproxy.index.policies.guards.hidden_text import has_hidden_text
from kvproxy.index.policies.guards.words import FUNCTION_WORDS, words

ENGLISH = "en"
EVERY = "*"
OTHER = "other"

# Words that are rare in English.
_WORDS = {
    "de": "der das ist sind ein eine einen einem einer eines und ich nicht wie wo wann warum wer welche welcher welches"
    " kann können könnte mein meine meinen meinem meiner mir mich dir dich sie wir ihr ihre auf für mit von zu zum zur"
    " den dem des es wird werden wurde haben habe hat gibt bei nach oder aber auch über aus im vom sich dass muss soll"
    " möchte mache macht bedeutet heißt heisst bitte wieviel viele unterschied zwischen",
    "fr": "le les des une est et je ne pas comment où quoi quel quelle quels quelles pourquoi quand qui que peut peux puis"
    " dans sur avec mon mes ton votre notre nous vous il elle ils elles du au aux ce cette cet ces sont fait faire"
    " c'est qu'est qu'est-ce j'ai puis-je combien différence entre plutôt très",
    "es": "el los las una es qué cómo dónde cuándo cuál cuáles quién cuánto cuántos para con mi mis sus del y lo puedo"
    " puede hay está están hacer por como donde cuando porque cual diferencia entre significa",
    "it": "gli una è che cosa come dove quando perché quale quali posso può mia mio miei quanto quanta quanti della dello"
    " dei delle degli del nel nella sono per non di cos'è qual differenza tra questo questa",
    "pt": "um uma é que como onde quando qual quais por para com meu minha da dos das na não são posso pode fazer está você"
    " significa diferença entre",
    "nl": "het een wat hoe waar ik en niet kan van voor met mijn dat zijn hebben wordt moet waarom wanneer welke ook"
    " verschil tussen jij naar deze",
    "pl": "jak gdzie kiedy dlaczego jest są nie na się czy mogę moje mój moja moją dla jaki jaka jakie który która oraz ile",
    "cs": "jak kde kdy proč je není jsem můj moje mohu se na jaký jaká jaké který mezi kolik",
    "sv": "hur vad är och inte jag mitt kan när varför ett för med på som till av den vilken mellan jag",
    "da": "hvordan hvad hvor hvornår hvorfor er og ikke jeg mit kan et på til af hvilken mellem",
    "no": "hvordan hva hvor hvorfor er og ikke jeg mitt kan et på til av hvilken mellom",
    "fi": "miten mikä mitä missä milloin miksi ja ei voin minun voinko kuinka onko ovat",
    "hu": "hogyan hol mikor miért az egy nem és hogy mennyi melyik lehet tudom",
    "ro": "unde când este și nu care pentru din pot cât între sunt",
    "tr": "nasıl nedir nerede neden bir ve bu için mi ile var yok hangi mı nasil icin",
    "id": "bagaimana apa yang dan tidak itu saya untuk dengan adalah cara apakah mengapa dimana berapa",
    "vi": "là gì của và không có như thế nào tôi làm cho",
    "hi": "kya hai kaise ka ki ke mein nahi kyu kyon hain mujhe karna kare kaun",
}


def _languages_by_word() -> dict[str, tuple[str, ...]]:
    by_word: dict[str, tuple[str, ...]] = {}
    for language, text in _WORDS.items():
        for word in dict.fromkeys(text.split()):
            by_word[word] = (*by_word.get(word, ()), language)
    return by_word


_BY_WORD = _languages_by_word()
_ENGLISH = FUNCTION_WORDS | frozenset(
    "no not into out up over after before between without while because any some more most much many"
    " only does did get got become use used using good best better make makes made".split()
)
_SHARED = frozenset("a an in on me do to no so as or he her will for at is has are was be by of us i".split())
_SCRIPTS = {
    "CJK": "zh",
    "HIRAGANA": "ja",
    "KATAKANA": "ja",
    "HANGUL": "ko",
    "CYRILLIC": "ru",
    "GREEK": "el",
    "HEBREW": "he",
    "ARABIC": "ar",
    "DEVANAGARI": "hi",
    "BENGALI": "bn",
    "TAMIL": "ta",
    "TELUGU": "te",
    "THAI": "th",
    "ARMENIAN": "hy",
    "GEORGIAN": "ka",
}
_LATIN_END = 0x24F
_LEAST_KNOWN = 0.3


@lru_cache(maxsize=4096)
def language_of(text: str) -> str:
    """Return the ISO 639-1 code of a text's language, or `other`.

    One word in another script than Latin determines the language, because the answer may depend on this word.
    """
    script = _script(text)
    if script is not None:
        return script
    tokens = words(text)
    counts = Counter(language for word in tokens for language in _BY_WORD.get(word, ()))
    language = max(_WORDS, key=lambda code: counts[code])
    most = counts[language]
    english = sum(word in _ENGLISH for word in tokens)
    # In a tie, English needs a word that no other language has.
    if most > english or (most and most == english and not any(word in _ENGLISH - _SHARED for word in tokens)):
        return language
    # Accents without English function words indicate another language.
    accented = sum(not word.isascii() for word in tokens)
    return OTHER if accented and not english else ENGLISH


def _script(text: str) -> str | None:
    script_counts: dict[str, int] = {}
    for word in words(text):
        foreign = [
            unicodedata.name(letter, "").split(" ")[0].split("-")[0] for letter in word if ord(letter) > _LATIN_END
        ]
        for name in foreign if foreign != ["GREEK"] else ():
            if name not in ("LATIN", "MODIFIER", "COMBINING"):
                script_counts[name] = script_counts.get(name, 0) + 1
    if not script_counts:
        return None
    for own in ("HIRAGANA", "KATAKANA"):
        if own in script_counts:
            return _SCRIPTS[own]
    return _SCRIPTS.get(max(script_counts, key=lambda name: script_counts[name]), OTHER)


def can_match(text: str, embedder: Embedder, languages: Sequence[str]) -> bool:
    """Whether a text may have semantic hits: no hidden text, in one of the languages, and readable for the embedder."""
    return (
        not has_hidden_text(text) and is_in_languages(text, languages, embedder.vocabulary) and embedder.can_read(text)
    )


def is_in_languages(text: str, language_codes: Sequence[str], vocabulary: Container[str] | None = None) -> bool:
    """Whether a text is in one of the languages: ISO 639-1 codes, or `*` for all.

    Text that counts as English must have words of the English `vocabulary`, if given.
    """
    if EVERY in language_codes:
        return True
    language = language_of(text)
    if language == ENGLISH and vocabulary is not None and not _may_be_english(words(text), vocabulary):
        language = OTHER
    return language in language_codes


def _may_be_english(tokens: Sequence[str], vocabulary: Container[str]) -> bool:
    if len(tokens) < 2 or any(word in _ENGLISH for word in tokens):
        return True
    known = sum(all(part in vocabulary for part in word.split("'") if part) for word in tokens)
    return known / len(tokens) > _LEAST_KNOWN
