"""Small stories and everyday remarks, so that the tokenizer and the model meet ordinary English."""

from __future__ import annotations

import re
from random import Random

from gym_tiny.tasks.words import CITIES, NAMES, WORDS, listed

_SLOTS: dict[str, tuple[str, ...]] = {
    "name": NAMES,
    "other": NAMES,
    "city": CITIES,
    "thing": WORDS,
    "place": listed("garden kitchen market school forest harbour library workshop station museum"),
    "feeling": listed("happy tired curious proud worried surprised hungry calm lonely excited"),
    "quality": listed("old small bright heavy broken golden strange simple useful quiet wooden empty"),
    "weather": ("it was raining", "the sun was shining", "snow was falling", "a strong wind was blowing"),
    "time": ("One morning", "Last summer", "Every evening", "On a cold day", "After lunch", "Before dawn"),
    "person": listed("teacher farmer baker doctor sailor neighbour painter student captain singer"),
    "topic": listed("history music science language cooking sport weather travel health gardening"),
    "verb": listed("carry clean draw find fix hide lift paint sell wash count follow"),
}

_OPENINGS = (
    "{time} {name} went to the {place} because {weather}.",
    "{name} was a {person} who lived near the {place} in {city}.",
    "{time}, {name} found a {quality} {thing} in the {place}.",
    "There was once a {person} with a {quality} {thing}.",
)
_MIDDLES = (
    "{name} felt {feeling} and wanted to {verb} the {thing}.",
    '"Could you help me {verb} this {thing}?" asked {other}.',
    "They looked for it everywhere, but nobody had seen the {quality} {thing}.",
    "The {person} said that it would take about an hour.",
    "{other} gave {name} a {thing}, and they became friends.",
    "Nothing happened for a long time, and everyone was {feeling}.",
    "Together they walked from the {place} to the {place}.",
)
_ENDINGS = (
    "In the end, {name} was {feeling} and went home.",
    "From that day on, the {thing} stood in the {place}.",
    "They laughed about it for many years.",
    "That is why the {person} still keeps a {thing}.",
)
_REMARKS = (
    "Learning about {topic} becomes easier when you practise a little every day.",
    "Here are three things to remember: start early, work slowly and check the result.",
    "If the {thing} is {quality}, you should ask a {person} before you use it.",
    "Many people believe that {topic} is difficult, although it only needs patience.",
    "First read the question carefully, then write a short answer in your own words.",
    "A good description explains what something is, how it works and why it matters.",
    "The following list shows some examples of what you can {verb} at home.",
    "Water, energy and food are important for every living thing in the world.",
    "Computers follow instructions; people give those instructions a meaning.",
    "For example, a {person} might use a {thing} to {verb} another {thing}.",
    "It is possible to improve your {topic} without spending much money.",
    "Different countries have different customs, languages and kinds of government.",
    "The system provides information, but you must decide which of it is useful.",
    "However, there are several reasons to be careful with a {quality} {thing}.",
    "Could you please write a letter to the {person} and thank them for their support?",
    "Thank you for your message. I would be glad to help you with {topic}.",
    "A model is trained on data, and its output depends on the quality of that data.",
    "Research in {topic} has changed the way in which we think about the future.",
    "Exercise, sleep and a balanced diet keep both the body and the mind in good condition.",
    "She could have taken the other road, which was longer but much more beautiful.",
    "While the children were playing outside, their parents prepared a great dinner.",
    "When the process is complete, the number at the bottom of the page will change.",
    "There should be enough space between the lines so that the text can be read.",
    "They had never been so far from home, and yet they did not feel lost.",
)
_SLOT = re.compile(r"\{(\w+)\}")


def prose(rng: Random) -> str:
    """A story of a few sentences with one cast, or a few remarks."""
    cast = dict(zip(("name", "other"), rng.sample(NAMES, 2), strict=True))
    if rng.random() < 0.6:
        plot = [rng.choice(_OPENINGS), *rng.sample(_MIDDLES, rng.randrange(1, 3)), rng.choice(_ENDINGS)]
    else:
        plot = rng.sample(_REMARKS, rng.randrange(2, 4))
    return _SLOT.sub(lambda slot: cast.get(slot[1]) or rng.choice(_SLOTS[slot[1]]), " ".join(plot))
