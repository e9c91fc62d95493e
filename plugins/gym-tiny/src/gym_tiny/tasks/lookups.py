"""Facts of small tables: capitals, colours, opposites, plurals, young animals, days and months."""

from __future__ import annotations

from random import Random

from gym_tiny.tasks.task import Task, user
from gym_tiny.tasks.words import listed

KIND = "lookups"


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    """`a:b, c:d` as pairs."""
    entries = (entry.split(":") for entry in text.split(","))
    return tuple((subject.strip(), value.strip()) for subject, value in entries)


_DAYS = listed("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
_MONTHS = listed("January February March April May June July August September October November December")

# name: (facts, wordings of the question, the fact as a sentence)
TABLES: dict[str, tuple[tuple[tuple[str, str], ...], tuple[str, ...], str]] = {
    "capital": (
        _pairs(
            "France:Paris, Italy:Rome, Norway:Oslo, Spain:Madrid, Germany:Berlin, Austria:Vienna, "
            "Greece:Athens, Portugal:Lisbon, Ireland:Dublin, England:London, Japan:Tokyo, Egypt:Cairo, "
            "Peru:Lima, Poland:Warsaw, Finland:Helsinki, Canada:Ottawa, Kenya:Nairobi, "
            "Sweden:Stockholm, Cuba:Havana, Hungary:Budapest"
        ),
        ("What is the capital of {x}?", "Name the capital city of {x}.", "Which city is the capital of {x}?"),
        "The capital of {x} is {y}",
    ),
    "colour": (
        _pairs(
            "grass:green, snow:white, coal:black, a lemon:yellow, the sky:blue, blood:red, a "
            "carrot:orange, milk:white, a banana:yellow, a tomato:red, a frog:green, the sea:blue, a "
            "crow:black, chocolate:brown, an elephant:grey, a flamingo:pink, a plum:purple, tree "
            "bark:brown, ash:grey, a lime:green"
        ),
        ("What colour is {x}?", "Name the colour of {x}.", "Which colour does {x} have?"),
        "The colour of {x} is {y}",
    ),
    "opposite": (
        _pairs(
            "hot:cold, big:small, up:down, left:right, day:night, open:closed, fast:slow, wet:dry, "
            "old:new, hard:soft, full:empty, high:low, happy:sad, long:short, early:late, light:dark, "
            "rich:poor, loud:quiet, near:far, thick:thin"
        ),
        (
            "What is the opposite of {x}?",
            "Name the opposite of {x}.",
            "Which word means the opposite of {x}?",
        ),
        "The opposite of {x} is {y}",
    ),
    "plural": (
        _pairs(
            "mouse:mice, foot:feet, tooth:teeth, goose:geese, child:children, man:men, woman:women, "
            "leaf:leaves, knife:knives, wolf:wolves, box:boxes, bus:buses, baby:babies, city:cities, "
            "cat:cats, dog:dogs, book:books, tree:trees, fox:foxes, sheep:sheep"
        ),
        ("What is the plural of {x}?", "Give the plural of {x}.", "Which word means more than one {x}?"),
        "The plural of {x} is {y}",
    ),
    "young": (
        _pairs(
            "dog:puppy, cat:kitten, cow:calf, horse:foal, sheep:lamb, pig:piglet, goat:kid, bear:cub, "
            "lion:cub, hen:chick, duck:duckling, frog:tadpole, deer:fawn, goose:gosling, owl:owlet, "
            "swan:cygnet"
        ),
        ("What is a young {x} called?", "Name the young of the {x}.", "Which word means a young {x}?"),
        "A young {x} is called {y}",
    ),
    "day after": (
        tuple(zip(_DAYS, _DAYS[1:] + _DAYS[:1], strict=True)),
        ("Which day comes after {x}?", "Name the day after {x}.", "What is the next day after {x}?"),
        "The day after {x} is {y}",
    ),
    "month after": (
        tuple(zip(_MONTHS, _MONTHS[1:] + _MONTHS[:1], strict=True)),
        ("Which month comes after {x}?", "Name the month after {x}.", "What is the next month after {x}?"),
        "The month after {x} is {y}",
    ),
}
OPENERS = ("", "Hello! ", "Please tell me. ", "A quick question. ", "I forgot. ", "Help me out. ")


def make(rng: Random) -> Task:
    """One question. A fact cannot be guessed, so each is in both splits: the key is the whole question."""
    skill = rng.choice(sorted(TABLES))
    facts, wordings, sentence = TABLES[skill]
    subject, value = rng.choice(facts)
    phrasing = rng.randrange(len(wordings))
    question = rng.choice(OPENERS) + wordings[phrasing].format(x=subject)
    return Task(
        kind=KIND,
        skill=skill,
        key=question,
        phrasing=phrasing,
        messages=user(question),
        answer=value,
        wrong=rng.choice(sorted({other for _, other in facts} - {value})),
        note=sentence.format(x=subject, y=value),
    )
