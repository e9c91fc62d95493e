"""Word lists that several kinds of task draw from."""

from __future__ import annotations

from random import Random


def listed(text: str) -> tuple[str, ...]:
    """Words between blanks."""
    return tuple(text.split())


WORDS: tuple[str, ...] = listed(
    """
    ant apple arm bag ball bank barn bed bird boat bone book bowl box bread bridge broom brush bucket
    bus button cake camel candle cap car carrot cat chair cheese cloud comb cup deer dog door dress duck
    ear egg eye farm field finger fire fish flag flower foot fox frog fruit game garden gate gift glass
    goat grass hand hat hen hill horse house ice island jacket jam key king kite knee knife lake lamp
    leaf lemon letter light lion lock map melon milk mirror monkey moon mouse music needle night nose
    ocean oil onion orange paper path pencil pepper piano pig pillow plane plant pocket pond queen
    rabbit radio rain ribbon rice ring river road rock roof room root rose salt sand school seed sheep
    ship shirt shoe shop sky snake snow song soup spoon star step stone storm street sugar sun swan
    table tea tiger tooth tower town track train tree truck turtle valley village violin voice wall
    watch water wave well whale wheel wind window wolf wood zebra zoo
    """
)

NAMES: tuple[str, ...] = listed(
    """
    Ada Ben Cora Dan Ella Finn Gina Hugo Iris Jack Kim Leo Mia Ned Olga Paul Rosa Sam Tara Uma Vera Will
    Yara Zoe
    """
)

CITIES: tuple[str, ...] = listed(
    """
    Paris Rome Oslo Madrid Berlin Vienna Athens Lisbon Dublin London Tokyo Cairo Lima Delhi Bern Warsaw
    Prague Helsinki Ottawa Nairobi
    """
)

_CONSONANTS = "bdfgklmnprstvz"
_VOWELS = "aeiou"


def letters(rng: Random) -> list[str]:
    """Three to five letters that read like a word, few of which are one."""
    size = rng.choice((3, 3, 4, 4, 5))
    return [rng.choice(_VOWELS if index % 2 else _CONSONANTS) for index in range(size)]
