"""Finds common roots of words: of inflected forms, and of names and their adjectives, such as `India` and `Indian`."""

import re
from functools import lru_cache

WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")
NUMBER = re.compile(r"\d+(?:[.,:/-]\d+)*(?:[kK]\b)?")
cached_by_text = lru_cache(maxsize=512)
"""Decorator that caches a function of one text. Callers must not modify the result."""


@cached_by_text
def words(text: str) -> tuple[str, ...]:
    return tuple(word.lower().replace("’", "'") for word in WORD.findall(text))


_DOTTED = str.maketrans("aouAOU", "äöüÄÖÜ")
_UMLAUT = re.compile(r"(?<![aeiouqAEIOUQ])([aou])e", re.IGNORECASE)


def with_umlauts(text: str) -> str:
    """Return a text with `ü` for `ue` after a consonant, and `ss` for `ß`, for comparisons of German texts."""
    return _UMLAUT.sub(lambda match: match[1].translate(_DOTTED), text).replace("ß", "ss")


IRREGULAR_VERBS = {
    form: line.split()[0]
    for line in (
        "forget forgot forgotten|lose lost|find found|buy bought|sell sold|send sent|lend lent|give gave given|take took taken"
        "|begin began begun|win won|rise rose risen|fall fell fallen|come came|go went gone|leave left|keep kept"
        "|lead led|hold held|run ran|make made|say said|pay paid|tell told|think thought|bring brought|teach taught|build built"
        "|spend spent|meet met|know knew known|grow grew grown|write wrote written|drive drove driven|speak spoke spoken"
        "|choose chose chosen|break broke broken|eat ate eaten|get got gotten|fly flew flown|become became|stand stood|hear heard"
        "|drink drank drunk|sing sang sung|swim swam swum|wear wore worn|throw threw thrown|draw drew drawn|steal stole stolen"
        "|ride rode ridden|hide hid hidden|freeze froze frozen|see saw seen|feel felt|sleep slept|fight fought|catch caught"
        "|seek sought|sit sat|lay laid|lie lain|deal dealt|shoot shot|stick stuck|strike struck|hang hung|dig dug|spin spun"
        "|feed fed|breed bred|bleed bled|bind bound|grind ground|bear bore born|tear tore torn|swear swore sworn|wake woke woken"
        "|shrink shrank shrunk|sink sank sunk|ring rang rung|spring sprang sprung|blow blew blown|show shown|do did done"
        "|understand understood|mean meant|dream dreamt|burn burnt|learn learnt|spell spelt|smell smelt|spill spilt"
        "|bite bit bitten|shake shook shaken|forgive forgave forgiven|sweep swept|weep wept|creep crept|leap leapt|bend bent"
        "|slide slid|light lit|shine shone|sting stung|swing swung|cling clung|fling flung|weave wove woven"
        "|mistake mistook mistaken"
    ).split("|")
    for form in line.split()[1:]
}


@lru_cache(maxsize=8192)
def base_forms(word: str) -> frozenset[str]:
    """Return possible base forms of a word: `accept` for `accepted`, `stop` for `stopped`, `heavy` for `heavier`."""
    forms = {
        word,
        *IRREGULAR_VERBS.get(word, "").split(),
        *(word.removesuffix(ending) for ending in ("s", "es") if len(word) > len(ending) + 2),
    }
    for ending in ("ed", "ing", "er", "est"):
        stem = word.removesuffix(ending)
        if stem != word and len(stem) > 2:
            forms |= {stem, f"{stem}e", stem[:-1] if stem[-1] == stem[-2] else stem}
            forms |= {f"{stem[:-1]}y"} if stem[-1] == "i" else set()
    return frozenset(forms)


REQUEST_VERBS = frozenset("tell say explain describe define list give show find help compare write name".split())
FUNCTION_WORDS = REQUEST_VERBS | frozenset(
    "a an the is are was were be been am do does did can could would should will shall may might must i you we they he she"
    " it its my your our their me us them this that these those there here what which who whom whose how when where why"
    " please and or but so if then than as also just exactly hi hello hey ok in on at of to for from by with about has have had"
    " isn't aren't wasn't weren't don't doesn't didn't can't couldn't wouldn't shouldn't won't".split()
)
NUMBER_WORDS = {word: str(number) for number, word in enumerate(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen"
    " nineteen twenty".split()) if word != "one"} | {"thirty": "30", "forty": "40", "fifty": "50", "sixty": "60",
    "seventy": "70", "eighty": "80", "ninety": "90", "hundred": "100", "thousand": "1000", "million": "1000000"} | {
    word: word for word in "first second third fourth fifth half double twice".split()}  # fmt: skip
ROMAN = {"II": "2", "III": "3", "IV": "4", "VI": "6", "VII": "7", "VIII": "8", "IX": "9"}
NEGATION = frozenset(
    "not no never none nothing nobody nowhere without cannot neither nor hardly except unless isn't aren't wasn't weren't don't"
    " doesn't didn't can't won't shouldn't wouldn't couldn't haven't hasn't hadn't mustn't needn't".split()
)
NEGATIVE_PREFIXES = ("un", "in", "im", "ir", "il", "dis", "non", "de", "mis", "anti")
PREFIX_PAIRS = (("hyper", "hypo"), ("over", "under"), ("macro", "micro"), ("pre", "post"), ("inter", "intra"))
TIMES = frozenset(
    "today tonight tomorrow yesterday now currently latest recent recently monday tuesday wednesday thursday friday"
    " saturday sunday january february march april june july august september october november december week month"
    " year weekday weekdays weekend weekends spring summer autumn winter morning noon afternoon evening midnight".split()
)
# `now` and `latest` are mostly used for emphasis.
DAYS = frozenset(
    "today tonight tomorrow yesterday monday tuesday wednesday thursday friday saturday sunday weekend weekends".split()
)
SINGULAR_TIMES = {
    f"{time}s": time
    for time in "monday tuesday wednesday thursday friday saturday sunday morning afternoon evening".split()
}
"""`on Sundays` and `on Sunday` name the same time."""
# `may` is not among the months, because it is mostly a verb.
TIME_SHIFTS = frozenset("this next last past previous coming".split())
LANGUAGES = frozenset(
    "english french german spanish italian portuguese dutch danish swedish norwegian finnish icelandic polish czech"
    " slovak hungarian romanian bulgarian serbian croatian greek turkish russian ukrainian arabic hebrew persian hindi"
    " urdu bengali tamil telugu marathi punjabi chinese mandarin cantonese japanese korean vietnamese thai indonesian"
    " malay tagalog swahili latin esperanto".split()
)
FREQUENT = {
    "english": frozenset("the is are what how does do can you where when why who".split()),
    "german": frozenset("der die das ist ein eine was wie wo ich und nicht kann".split()),
    "french": frozenset("le les est un une qu'est que quoi comment où je et pas pourquoi".split()),
    "spanish": frozenset("el los es un una qué cómo dónde yo y por cuál".split()),
    "italian": frozenset("il gli è un una che cos'è come dove io e perché".split()),
    "portuguese": frozenset("o os é um uma que como onde eu e por quê".split()),
    "dutch": frozenset("het de is een wat hoe waar ik en niet kan".split()),
}
_UNITS = """
mm millimetre millimeter|cm centimetre centimeter|m metre meter|km kilometre kilometer|mi mile|ft foot feet|yd yard|inch inches
mg milligram|g gram|kg kilogram kilo|lb lbs pound|oz ounce|ton tonne|ml millilitre milliliter|l litre liter|gal gallon
ns nanosecond|us microsecond|ms millisecond|s sec second|min minute|h hr hour|day|week|month|year|decade
bit|byte|kb kilobyte|mb megabyte|gb gigabyte|tb terabyte|kib|mib|gib|hz hertz|khz|mhz|ghz|w watt|kw kilowatt|kwh|v volt
percent %|degree|celsius °c|fahrenheit °f|kelvin|usd dollar $|eur euro €|gbp £|inr rs rupee ₹|yen|mph|kmh kph
"""
UNITS = {
    form: unit.split()[0]
    for unit in _UNITS.replace("\n", "|").split("|")
    for word in unit.split()
    for form in (word, f"{word}s")
}


_ENDINGS = tuple("n an ian ean ese ish i ic ical al a e o y ia en and land istan ist".split())
_SHORTEST_STEM = 4
# Names whose adjectives no ending explains.
_IRREGULAR = """
france french|spain spanish|netherlands holland dutch|uk britain british|us usa america american americans|greece greek
greeks|switzerland swiss|wales welsh|denmark danish danes|ireland irish|finland finnish|scotland scottish scots|thailand thai
poland polish poles|peru peruvian|philippines filipino|cyprus cypriot|norway norwegian|belgium belgian|portugal portuguese
lebanon lebanese|congo congolese|turkey turkish turks|uae emirati|europe eu european|mars martian|venice venetian|monaco
monegasque|other another|foot feet|man men|woman women|child children|naples neapolitan|barbados barbadian|kosovo kosovar
"""
_ROOTS = {
    word: group.split()[0]
    for line in _IRREGULAR.strip().splitlines()
    for group in line.split("|")
    for word in group.split()
}


@lru_cache(maxsize=8192)
def roots(word: str) -> frozenset[str]:
    """Return possible roots of a word. Two words with a common root may have the same meaning."""
    if word in _ROOTS:
        return frozenset({_ROOTS[word]})
    unit = UNITS.get(word)
    if unit is not None:
        return frozenset({unit})
    stems = (word.removesuffix(ending) for ending in _ENDINGS if word.endswith(ending))
    return base_forms(word) | {stem for stem in stems if len(stem) >= _SHORTEST_STEM}
