"""Finds an exchange of the user and the addressee in eight languages: `meine Adresse` and `Ihre Adresse`."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from kvproxy.index.models.languages import language_of

# The words of the user and of the addressee by role. Impersonal subjects, such as `man`, count as the user: `wie kündigt man`.
_PERSONS = {
    "en": "user: i we; user's: my our; user as object: me us; addressee: you; addressee's: your",
    "de": "user: ich wir man; user's: mein meine meinen meinem meiner meines; user as object: mir mich;"
    " addressee: sie ihnen; addressee's: ihr ihre ihren ihrem ihrer ihres",
    "fr": "user: je j nous on puis peux veux voudrais souhaite aimerais; user's: mon ma mes; user as object: me m moi;"
    " addressee: vous pouvez; addressee's: votre vos",
    "es": "user: yo puedo quiero quisiera necesito hago impersonal; user's: mi mis; user as object: me;"
    " addressee: usted puede pueden; addressee's: su sus",
    "it": "user: io posso vorrei voglio faccio impersonal; user's: mio mia miei mie; user as object: mi;"
    " addressee: può; addressee's: suo sua suoi sue vostro vostra vostri vostre",
    "pt": "user: eu posso quero preciso faço impersonal; user's: meu minha meus minhas; user as object: me;"
    " addressee: pode; addressee's: seu sua seus suas",
    "nl": "user: ik wij men; user's: mijn; user as object: mij; addressee: u; addressee's: uw",
    "zh": "user: 我 我们; user's: 我的 我们的 *我的 *我们的; user as object: *我 *我们; addressee: 你 你们 您;"
    " addressee's: 你的 你们的 您的 *你的 *你们的 *您的; addressee as object: *你 *你们 *您",
}
# Requests for an explanation, whose rest is the question.
_FRAMES = re.compile(
    r"\b(?:können|könnten) sie (?:mir|uns) (?:bitte )?(?:sagen|erklären|zeigen|helfen|verraten|mitteilen|beschreiben)\b"
    r"|\b(?:pouvez|pourriez)-vous (?:m'|me |nous )(?:dire|expliquer|montrer|aider|indiquer)\b"
    r"|\b(?:puede|podría)n? (?:decir|explicar|mostrar|ayudar|indicar)(?:me|nos)\b"
    r"|\b(?:può|potrebbe) (?:dir|spiegar|mostrar|aiutar|indicar)(?:mi|ci)\b"
    r"|\b(?:pode|poderia)m? (?:me )?(?:dizer|explicar|mostrar|ajudar|indicar)(?:-me)?\b"
    r"|\b(?:kunt|kan|zou) u mij (?:vertellen|uitleggen|laten zien|helpen)\b"
    r"|(?:你们?|您)?(?:能不能|可不可以|能否|可以|能)?(?:告诉|帮|教|帮助)我们?"
)
_IMPERSONAL = re.compile(r"\bse (?=puede|pode\b)|\bsi (?=può)|\b(?:puede|pode)(?=-se\b)")
# Words before the subject of a subordinate clause, with relative pronouns: `wenn ich`, `das Paket, das Sie`.
_CONJUNCTIONS = {
    "de": "wenn falls sobald solange bevor ehe nachdem während weil da bis ob dass sofern sollte das die den",
    "fr": "si quand lorsque lorsqu puisque",
    "es": "si cuando mientras porque aunque",
    "it": "se quando mentre perché",
    "pt": "se quando enquanto porque",
    "nl": "als indien wanneer zodra voordat nadat terwijl omdat totdat of dat die",
    "zh": "果 当 是 若 旦",
}
# Verbs without a subject: `si cancelo`, `si cancela`.
_ENDINGS = {
    "es": r"(?P<user>\w{3,}(?:o|mos))|(?P<addressee>\w{3,}(?:an?|en?))",
    "it": r"(?P<user>\w{3,}(?:o|mo))|(?P<addressee>\w{3,}(?:a|e))",
    "pt": r"(?P<user>\w{3,}(?:o|mos))|(?P<addressee>\w{3,}(?:am?|em?))",
}
_WORD = re.compile(r"[^\W\d_]+")
_CHINESE = re.compile(r"(?:我们?|你们?|您)的?|[^\W\d_]")
_BEFORE_OBJECTS = "给帮问找让把向跟和与对"
_STATES = frozenset("ist sind lautet lauten est sont es son está están è sono é são is zijn 是".split())
_STEM = 4
_ADDRESSEES = {"addressee", "addressee as object"}


@dataclass(frozen=True, slots=True)
class _Persons:
    """The roles in a text, whether it asks what something is, its subjects, and the owner of each owned thing.

    `clauses` has the subjects of subordinate clauses.
    """

    roles: frozenset[str]
    states: bool
    subject: str
    clauses: frozenset[str]
    owners: Mapping[str, str]


def persons_are_exchanged(question: str, other: str) -> bool:
    """Whether the user owns or does in one question what the addressee owns or does in the other one."""
    ours, theirs = _persons(question), _persons(other)
    if any(ours.owners[thing] != theirs.owners[thing] for thing in ours.owners.keys() & theirs.owners.keys()):
        return True
    if {ours.roles, theirs.roles} == {frozenset(), frozenset({"user's"})} and ours.states and theirs.states:
        return True  # `Wie lautet meine Adresse?` and `Wie lautet die Adresse?`, but not `Meine Adresse ändern`
    owners, other_owners = set(ours.owners.values()), set(theirs.owners.values())
    if owners and other_owners and owners.isdisjoint(other_owners):
        return True
    if ours.subject and theirs.subject and ours.subject != theirs.subject:
        return True
    if ours.clauses and theirs.clauses and ours.clauses.isdisjoint(theirs.clauses):
        return True  # `Zahle ich, wenn ich storniere?` and `Zahle ich, wenn Sie stornieren?`
    return all(_ADDRESSEES & each.roles for each in (ours, theirs)) and any(
        "user" in one.roles - other.roles and "user as object" in other.roles - one.roles
        for one, other in ((ours, theirs), (theirs, ours))
    )


@lru_cache(maxsize=4096)
def _persons(text: str) -> _Persons:
    language = language_of(text)
    roles_by_word = _roles_by_word(language)
    plain = _FRAMES.sub(" ", text.lower().replace("’", "'"))
    plain = _IMPERSONAL.sub("impersonal ", plain)
    tokens = _chinese_words(plain) if language == "zh" else _WORD.findall(plain)
    roles = [roles_by_word.get(token, "") for token in tokens]
    owners = {later[:_STEM]: role for role, later in zip(roles, [*tokens[1:], ""], strict=True) if role.endswith("'s")}
    subject = next((role for role in roles if role in ("user", "addressee")), "")
    clauses = _clause_subjects(tokens, roles, language)
    return _Persons(frozenset(roles) - {""}, not _STATES.isdisjoint(tokens), subject, clauses, owners)


def _clause_subjects(tokens: Sequence[str], roles: Sequence[str], language: str) -> frozenset[str]:
    """Return the roles after conjunctions, of pronouns or of verbs without them."""
    conjunctions, ending = _CONJUNCTIONS.get(language, "").split(), _ENDINGS.get(language)
    subjects = set[str]()
    for before, word, role in zip(tokens, tokens[1:], roles[1:], strict=False):
        if before in conjunctions:
            verb = re.fullmatch(ending, word) if ending and not role else None
            subjects.add((verb.lastgroup or "") if verb else role.removesuffix("'s"))
    return frozenset(subjects & {"user", "addressee"})


def _chinese_words(text: str) -> list[str]:
    """Return persons and single characters. Persons after a preposition begin with `*`."""
    return [
        f"*{match.group()}" if text[: match.start()].endswith(tuple(_BEFORE_OBJECTS)) else match.group()
        for match in _CHINESE.finditer(text)
    ]


@lru_cache(maxsize=16)
def _roles_by_word(language: str) -> Mapping[str, str]:
    lines = (line.split(":") for line in _PERSONS.get(language, "").split(";") if line)
    return {word: role.strip() for role, named in lines for word in named.split()}
