"""Language detection; questions in unknown languages have exact hits only."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.index.models.languages import EVERY, is_in_languages, language_of
from kvproxy.index.models.minilm.embedder import MiniLMEmbedder
from kvproxy.index.policies.threshold import ThresholdPolicy
from kvproxy.index.search.semantic_cache import SemanticCache
from kvproxy.index.store import Store
from tests.index.doubles import HashEmbedder
from tests.index.entries import make_entry

QUESTIONS = {
    "de": ("Wie kann ich mein Passwort zurücksetzen?", "wie lange dauert die lieferung", "Ist der Versand kostenlos?"),
    "fr": (
        "Comment annuler ma commande et être remboursé ?",
        "Quelle est la capitale de la France ?",
        "Où est ma facture ?",
    ),
    "es": ("¿Cómo cambio mi contraseña?", "como puedo cancelar mi pedido", "¿Dónde está la estación?"),
    "ru": ("Как сменить пароль?", "Сколько стоит доставка?", "столица Франции"),
    "pl": ("Jak zmienić hasło?", "Ile kosztuje dostawa?", "Czy mogę anulować zamówienie?"),
    "zh": ("怎么重置密码？", "法国的首都是哪里", "What does 装逼 mean?"),
    "ja": ("パスワードを変更するには？", "フランスの首都はどこですか", "送料はいくらですか？"),
    "ko": ("비밀번호를 어떻게 바꾸나요?",),
    "other": ("Schrödingerův zákon", "ሰላም ነው"),
}
ENGLISH = (
    "How do I reset my password?",
    "git rename branch locally",
    "def f(x): return x + 1",
    "SELECT * FROM users WHERE id = 3",
    "kubectl get pods -n kube-system",
    "New York",
    "Angela Merkel age",
    "Who is Beyoncé?",
    "Zürich to Genève by train",
    "What is the area of a circle, πr²?",
    "How do I say 'wie geht es dir' in German?",
    "C++ vs Rust",
    "2 + 2",
    "",
)


@pytest.fixture(scope="module")
def embedder() -> MiniLMEmbedder:
    return MiniLMEmbedder()


@pytest.mark.parametrize("language", QUESTIONS)
def test_other_languages_are_detected(language: str) -> None:
    for text in QUESTIONS[language]:
        assert language_of(text) == language
        assert not is_in_languages(text, ("en",))
        assert is_in_languages(text, ("en", language))
        assert is_in_languages(text, (EVERY,))


@pytest.mark.parametrize("text", ENGLISH)
def test_english_names_and_code_are_english(embedder: MiniLMEmbedder, text: str) -> None:
    assert language_of(text) == "en"
    assert is_in_languages(text, ("en",), embedder.vocabulary)
    assert not is_in_languages(text, ("de",))


def test_unknown_words_without_function_words_are_not_english(embedder: MiniLMEmbedder) -> None:
    assert not is_in_languages("Hauptstadt Frankreich", ("en",), embedder.vocabulary)
    assert is_in_languages("Hauptstadt Frankreich", ("en",))


def test_almost_all_english_questions_are_detected(embedder: MiniLMEmbedder) -> None:
    # Of 103,687 real questions, 1 in 640 is misclassified.
    files = (Path(__file__).parents[1] / "data").glob("*.jsonl")
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    texts = {text for line in lines for text in line.values() if isinstance(text, str)}
    assert len(texts) > 500
    strange = [text for text in texts if not is_in_languages(text, ("en",), embedder.vocabulary)]
    assert len(strange) < 0.01 * len(texts), strange


@settings(max_examples=50)
@given(st.text(max_size=20))
def test_any_text_has_a_language(text: str) -> None:
    assert is_in_languages(text, (language_of(text),))


async def test_questions_in_other_languages_have_exact_hits_only(store: Store) -> None:
    english = SemanticCache(store, HashEmbedder(), ThresholdPolicy(0.5, guards=()), languages=("en",))
    for text in ("Wie öffne ich das Konto?", "How do I open the account?"):
        assert await english.insert(make_entry(text))
    assert (await english.lookup("n", "Wie öffne ich das Konto bitte?")).candidates == ()
    assert (await english.lookup("n", "How do I open the account please?")).entry is not None
    assert [entry.semantic for entry in store.list_entries()].count(True) == 1
    german = SemanticCache(store, HashEmbedder(), ThresholdPolicy(0.5, guards=()), languages=("en", "de"))
    assert await german.insert(make_entry("Wie öffne ich das neue Konto?"))
    assert (await german.lookup("n", "Wie öffne ich das neue Konto bitte?")).entry is not None
