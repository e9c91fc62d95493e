"""One vocabulary for models whose tokenizers differ: rows of embeddings and head go to where their token is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers

from gym_core import GymError
from gym_data.location import artifact_at
from gym_data.new_tokens import tokenizer_of
from gym_data.tokenizer_files import read_tokenizer
from gym_deltasoup.config.vocabulary import RowOptions, TokenizerOptions

KEY = "tokenizer"
STOPS = "generation_config.json"
ZERO = -1  #: in place of a model: zeros


class Member(NamedTuple):
    """A model that takes part, or the base."""

    names: tuple[str, ...]  #: what options may call it; the first is what messages do
    path: Path


class Vocabulary(NamedTuple):
    """The tokenizer of the result, and where each of its rows comes from."""

    members: tuple[Member, ...]
    folder: Path  #: of its files
    ids_of: Path  #: the model whose tokenizer it is, or begins as: numbers of tokens in a configuration are its own
    rows: int
    own: tuple[Mapping[str, int], ...]  #: of each member, the numbers that its tokens have
    tokens: Mapping[str, int]  #: the numbers of the result
    preferred: int  #: the member whose rows others get that lack a token
    said: Mapping[
        str, tuple[tuple[int, int], bool]
    ]  #: for some tokens: a member and a row of it, and whether for all members

    def sources(self, member: int, heights: Sequence[int]) -> dict[int, tuple[tuple[int, int], ...]]:
        """Return from which members and rows each row of a member comes: of several their mean. Rows of no token are left out.

        `heights` are the numbers of rows that members have; tokens behind them have none. Raises GymError where there is no row
        that an option names.
        """
        had = [
            {token: row for token, row in own.items() if row < height}
            for own, height in zip(self.own, heights, strict=True)
        ]
        found: dict[int, tuple[tuple[int, int], ...]] = {}
        for token, place in self.tokens.items():
            told, force = self.said.get(token, (None, False))
            if told is not None and told[0] != ZERO and told[1] >= heights[told[0]]:
                why = f"there is no row {told[1]:,}: the model that it is taken from has {heights[told[0]]:,}"
                raise GymError(why, key=f"{KEY}.tokens.{token}", fix="name another token")
            if not force and token in had[member]:
                found[place] = ((member, had[member][token]),)
            elif told is not None:
                found[place] = (told,)
            else:
                of = [(one, rows[token]) for one, rows in enumerate(had) if token in rows]
                chosen = [each for each in of if each[0] == self.preferred] or of
                found[place] = tuple(chosen) or ((ZERO, 0),)
        return found

    def told(self) -> list[str]:
        """Return what has to be said of tokens that a member has not."""
        lines = []
        for member, own in zip(self.members, self.own, strict=True):
            lacking = sorted(self.tokens.keys() - own.keys(), key=self.tokens.__getitem__)
            if lacking:
                lines.append(
                    f"{member.names[0]} lacks {len(lacking):,} of {len(self.tokens):,} tokens, such as {lacking[0]!r}"
                )
        return lines


def unified(options: TokenizerOptions, members: Sequence[Member], usual: str, scratch: Path) -> Vocabulary:
    """Make the tokenizer of the result, whose files are written to `scratch` where it has more tokens than that of a model.

    Args:
        options: which one, and what of single tokens.
        members: the models, and the base behind them.
        usual: the name of the member that `base` and `union` mean where options do not say.
        scratch: a folder that is not there yet.

    Raises GymError where a tokenizer is missing, where words of one could never be made, and for a token that is not there.

    """
    own = tuple(_vocabulary(each.path) for each in members)
    base = _member(options.base or usual, members, f"{KEY}.base")
    if options.source in ("union", "base"):
        begun = members[base].path
    else:
        known = next((each.path for each in members if str(Path(options.source)) in each.names), None)
        begun = known or artifact_at(options.source, key=f"{KEY}.source").path
    has = _vocabulary(begun)
    further = _added(members, own, has) if options.source == "union" else {}
    further |= {text: tokenizers.AddedToken(text) for text in options.tokens if text not in has and text not in further}
    folder = begun
    if further:
        tokenizer = tokenizer_of(begun)
        tokenizer.add_tokens([*further.values()])
        tokenizer.save_pretrained(scratch)
        if (begun / STOPS).is_file():  # whose numbers stay, as what is added comes behind them
            shutil.copyfile(begun / STOPS, scratch / STOPS)
        folder = scratch
        has = _vocabulary(folder)
    every = options.pad_to_multiple_of or 1
    rows = -(-(1 + max(has.values())) // every) * every
    said = {text: (_row(text, told.source, members, own), told.force) for text, told in options.tokens.items()}
    return Vocabulary(tuple(members), folder, begun, rows, own, has, base, said)


def _added(
    members: Sequence[Member], own: Sequence[Mapping[str, int]], has: Mapping[str, int]
) -> dict[str, tokenizers.AddedToken]:
    """Return tokens that somebody has beside what texts are cut into. Raises GymError where somebody has other words as well."""
    found: dict[str, tokenizers.AddedToken] = {}
    for member, tokens in zip(members, own, strict=True):
        added = {each["content"]: each for each in read_tokenizer(member.path).tokenizer["added_tokens"]}
        words = sorted((word for word in tokens if word not in has and word not in added), key=tokens.__getitem__)
        if words:
            some = f"{len(words):,}, such as {words[0]!r}"
            why = f"{member.names[0]} cuts texts into other words ({some}), which no tokenizer of both makes"
            fix = "take the tokenizer of one model: `source: base`, or its path"
            raise GymError(why, where=str(member.path), key=f"{KEY}.source", fix=fix)
        for text in sorted(added.keys() - has.keys() - found.keys(), key=tokens.__getitem__):
            flags = {key: value for key, value in added[text].items() if key not in ("id", "content")}
            found[text] = tokenizers.AddedToken(text, **flags)
    return found


def _row(
    text: str, said: str | RowOptions, members: Sequence[Member], own: Sequence[Mapping[str, int]]
) -> tuple[int, int]:
    """Return the member and the row that an option names. Raises GymError where there is none."""
    key = f"{KEY}.tokens.{text}"
    if isinstance(said, RowOptions) and said.kind == "zero":
        return ZERO, 0
    name = said if isinstance(said, str) else said.model
    at = _member(name, members, key)
    if isinstance(said, RowOptions) and said.token_id is not None:
        return at, said.token_id
    wanted = said.token if isinstance(said, RowOptions) and said.token is not None else text
    if wanted not in own[at]:
        raise GymError(f"{name} has no token {wanted!r}", key=key, fix="name a model that has it, or another token")
    return at, own[at][wanted]


def _member(name: str, members: Sequence[Member], key: str) -> int:
    """Return the number of a model. Raises GymError where there is none of that name."""
    at = next((number for number, each in enumerate(members) if {name, str(Path(name))} & {*each.names}), None)
    if at is None:
        known = ", ".join(each.names[0] for each in members)
        raise GymError(f"{name} is none of the inputs, nor the base", key=key, fix=f"name one of {known}")
    return at


def _vocabulary(folder: Path) -> dict[str, int]:
    files = read_tokenizer(folder)
    try:
        return dict(tokenizers.Tokenizer.from_str(json.dumps(files.tokenizer)).get_vocab())
    except Exception as error:  # the library raises no other class
        why = f"not a tokenizer: {str(error).splitlines()[0][:200]}"
        raise GymError(why, where=str(folder), key=KEY, fix="fetch the model again") from error


def check_same_tokens(name: str, path: Path, base: str, folder: Path) -> None:
    """Raise GymError where tokens of a model have other numbers in its base; either may have more tokens than the other."""
    if not all((each / "tokenizer.json").is_file() for each in (path, folder)):
        return
    own, of_base = _vocabulary(path), _vocabulary(folder)
    moved = next((token for token, number in own.items() if of_base.get(token, number) != number), None)
    if moved is not None:
        why = f"the token {moved!r} is number {own[moved]:,} in {name}, and number {of_base[moved]:,} in {base}"
        fix = "name the base that it was trained from, or say which tokenizer the result has: `tokenizer: base`"
        raise GymError(why, where=str(folder), key="base", fix=fix)


def with_ids(told: dict[str, Any], of: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with the numbers of tokens, such as `eos_token_id`, that another one has."""
    kept = {key: value for key, value in told.items() if not key.endswith("_token_id")}
    return kept | {key: value for key, value in of.items() if key.endswith("_token_id")}
