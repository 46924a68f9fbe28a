"""What the verifier cannot read is not served: it was trained on English."""

import pytest

from kvproxy.index.models.verifier.built_in import BuiltInVerifier
from kvproxy.index.policies.checked import CheckedPolicy
from kvproxy.index.policies.policy import Neighbour


@pytest.fixture(scope="module")
def verifier() -> BuiltInVerifier:
    return BuiltInVerifier.load()


OTHERS = (
    "Wie kann ich mein Passwort zurücksetzen?",
    "Comment activer la double authentification ?",
    "¿Dónde está la estación?",
    "Come posso cambiare la password?",
    "Hoe kan ik mijn wachtwoord wijzigen?",
    "Jak zmienić hasło?",
    "Parolamı nasıl değiştiririm?",
    "Hur återställer jag mitt lösenord?",
)
ENGLISH = (
    "How do I reset my password?",
    "What does LRU evict first?",
    "Why has my direct debit been declined?",
    "how big is a kv block",
    "2 + 2",
)


@pytest.mark.parametrize("question", OTHERS)
def test_other_languages_are_refused(verifier: BuiltInVerifier, question: str) -> None:
    (decision,) = CheckedPolicy(verifier, 0.0, 0.0, guards=()).decide(question, [Neighbour(question, 1.0)]).decisions
    assert (decision.verdict, decision.guard) == ("vetoed", "language")


@pytest.mark.parametrize("question", ENGLISH)
def test_english_is_read(verifier: BuiltInVerifier, question: str) -> None:
    assert verifier.reads(question)
