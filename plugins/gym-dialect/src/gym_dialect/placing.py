"""Places the keys of a file in the sections of a recipe, by the tables of its dialect.

What no table knows goes to the short form of the kernel: options may stand beside such keys under their own names.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gym_core.dialect import chosen_names, fill_own, mapping_of, put
from gym_core.discovery import catalogue, entries
from gym_core.errors import Problem
from gym_core.sections import SLOTS, Findings
from gym_dialect import table as tables
from gym_dialect.convert import note
from gym_dialect.stated import Stated
from gym_dialect.table import Choice, Key, Table


@dataclass(frozen=True)
class Dialect:
    """What the keys of a dialect mean, beside what its tables say."""

    kind: str
    """The kind of its tables."""
    stated: Mapping[str, Stated]
    """Keys that choose nothing and fill no option."""
    top: Mapping[str, str] = field(default_factory=dict)
    """Keys that are a section by themselves, such as `output_dir`."""
    left_standing: Mapping[str, str] = field(default_factory=dict)
    """Keys that files keep when they change to another component of this section, and that say nothing then."""
    beside: frozenset[str] = frozenset()
    """Keys that the package takes by itself, before the tables are asked."""

    @property
    def table(self) -> Table:
        """Return the rows of all installed tables."""
        return tables.installed(self.kind)

    def known(self) -> set[str]:
        """Return all keys that a file may have."""
        table = self.table
        filling = {key for row in table.keys for key in (row.key, *row.together.split())}
        return {*self.top, *self.beside, *self.stated, *table.choosing(), *filling}


class Chosen(NamedTuple):
    """What keys of a file chose."""

    by: dict[str, str]  #: the key that chose the component of a section
    values: dict[str, Any]  #: the values of keys that chose


def place(dialect: Dialect, sections: dict[str, Any], flat: dict[str, Any], found: Findings) -> None:
    """Place keys in sections. Notes every key that cannot be placed.

    `sections` and `flat` are what `gym_core.dialect.parted` makes of a file; both change.
    """
    table, stated, standing = dialect.table, dialect.stated, dialect.left_standing
    chosen = _choose(table, sections, flat, found)
    for key in sorted(dialect.top.keys() & flat.keys()):
        put(sections, (dialect.top[key],), flat.pop(key), key, found)
    names = {section: name.rpartition("/")[2] for section, name in chosen_names(sections).items()}
    fitting = list(table.filling(names))
    rows: dict[str, list[Key]] = {}
    for row in fitting:
        if row.chosen_by in ("", chosen.by.get(row.section, row.chosen_by)):
            rows.setdefault(row.key, []).append(row)
    flat |= {key: chosen.values[key] for key in chosen.by.values() if key in chosen.values and key in rows}
    said = {**chosen.values, **flat}
    beside: dict[str, list[Key]] = {}
    for row in fitting:
        for key in row.together.split():
            beside.setdefault(key, []).append(row)
    of_some = {row.key for row in table.keys}
    left = {}
    for key, value in flat.items():
        options = sorted({row.option for row in rows.get(key, ())})
        if value is not None and len(options) > 1:
            both = " and ".join(f"`{option}`" for option in options)
            found.problems.append(Problem(f"could mean {both}", found.where((key,)), key, "write the section out"))
        elif value is not None and options:
            _fill(sections, rows[key][0], value, found, said)
        elif (key not in beside or (key in of_some and not options)) and (value is not None or not options):
            # of a key without a value the kernel asks the name
            left[key] = value
        elif value is not None and all(flat.get(row.key) is None and row.default is None for row in beside[key]):
            found.problems.append(_alone(key, beside[key][0], found))
    unknown = fill_own(sections, left, found, dialect.known())
    said_only = [key for key in unknown if key in stated]  # a component's own option of that name was filled before
    _take(said_only, stated, left, found)
    unknown = [key for key in unknown if key not in stated and not _off(left[key], key in of_some)]
    for key in [key for key in unknown if standing.get(key) in names]:
        unknown.remove(key)
        note(f"{key}: says nothing beside `{standing[key]}: {names[standing[key]]}`")
    found.problems += [_elsewhere(key, fitting, chosen, found) or _of_another(table, key, found) for key in unknown]
    left_out = [
        row for several in rows.values() for row in several if row.default is not None and flat.get(row.key) is None
    ]
    for row in left_out:
        counts = row.chosen_by in ("", chosen.by.get(row.section))
        present = row.section in sections or row.section == "train" or SLOTS[row.section].implied
        if counts and present and not {row.name, row.unless} & mapping_of(sections, row.section).keys():
            _fill(sections, row, row.default, found, said)


def take_apart(holding: Iterable[str], flat: dict[str, Any], found: Findings) -> None:
    """Make keys of those that one key holds, as a mapping, as JSON or as `name=value, ...`: each becomes `optim_args.name`."""
    for key in holding:
        try:
            held = _held(flat.pop(key, None) or "")
        except ValueError as error:
            found.problems.append(Problem(str(error), found.where((key,)), key, "write name=value, ..., or a mapping"))
            continue
        for name, value in held.items():
            flat[f"{key}.{name}"] = value
            found.marks[f"{key}.{name}",] = found.where((key, name))


def _held(told: Any) -> Mapping[str, Any]:
    """Return what a key holds. Raises ValueError where it is not told as it should be."""
    if isinstance(told, Mapping):
        return told
    if str(told).lstrip().startswith("{"):
        read: dict[str, Any] = json.loads(told)
        return read
    pairs = [pair.partition("=") for pair in str(told).replace(" ", "").split(",") if pair]
    if lacking := next((name for name, sign, _ in pairs if not sign), ""):
        raise ValueError(f"`{lacking}` has no value")
    return {name: value for name, _, value in pairs}


def _off(value: Any, of_some: bool) -> bool:
    """Whether a value asks for nothing: a switch that is off, or a coefficient of 0 of a component `of_some` table."""
    return value is False or (of_some and value == 0)


def _take(keys: Iterable[str], known: Mapping[str, Stated], flat: Mapping[str, Any], found: Findings) -> None:
    """Take keys that say what is done anyway, or change nothing; note a problem for what they say beyond that."""
    for key in keys:
        stated, value = known[key], flat[key]
        if stated.values and value not in stated.values:
            found.problems.append(Problem(stated.why, found.where((key,)), key, stated.fix))
        elif stated.note and value:
            note(f"{key}: {stated.note}")


def _choose(table: Table, sections: dict[str, Any], flat: dict[str, Any], found: Findings) -> Chosen:
    """Name the components that keys choose, and take from `flat` the keys that did nothing else."""
    rows = table.choosing()
    values = {key: _worded(key, rows[key], flat, found) for key in rows if flat.get(key) is not None}
    picked = {key: _picked(key, rows[key], value, found) for key, value in values.items()}
    chosen = Chosen({}, {})
    named: dict[str, str] = {}
    for key in sorted(rows, key=lambda key: (key not in values, key)):  # what is said outweighs what is left out
        given = key in values
        if key in flat:
            # Where any value will do, it is an option's, but for one that chooses nothing.
            several = any("*" in row.names for _, row in rows[key]) and (not given or bool(picked[key]))
            chosen.values[key] = flat.get(key) if several else flat.pop(key)
        narrower = {other for _, row in rows[key] for other in row.yields.get(values.get(key, ""), "").split()}
        if any(picked.get(other) for other in narrower):
            continue
        name = picked[key] if given else next((row.default for _, row in rows[key] if row.default), "")
        section = rows[key][0][1].section
        if name and section not in sections:
            chosen.by[section], named[section] = key, name
            put(sections, (section,), {SLOTS[section].selector: name}, key, found)
        elif name and given and named.get(section, name) != name:
            why = f"contradicts `{chosen.by[section]}`"
            found.problems.append(Problem(why, found.where((key,)), key, "give one"))
    return chosen


def _worded(key: str, rows: list[tuple[str, Choice]], flat: Mapping[str, Any], found: Findings) -> str:
    """Return the value of a key that chooses as the tables name it; `false` for none, also after noting a problem."""
    read = next((row.read for _, row in rows if row.read), None)
    try:
        return (read(flat[key]) or "false") if read and flat[key] else str(flat[key] or "false").lower()
    except (ValueError, TypeError) as error:
        found.problems.append(Problem(str(error), found.where((key,)), key))
        return "false"


def _picked(key: str, rows: list[tuple[str, Choice]], value: str, found: Findings) -> str:
    """Return the name of the component that a value chooses, empty for none or after noting a problem."""
    refused = next((row.refused[value] for _, row in rows if value in row.refused), "")
    if refused:
        found.problems.append(Problem(f"there is no `{value}` here; set {refused}", found.where((key,)), key))
        return ""
    names = {name: owner for owner, row in rows for name in [row.names.get(value, row.names.get("*"))] if name}
    if len(names) > 1:
        both = " and ".join(f"`{name}` ({owner})" for name, owner in names.items())
        fix = f"write the section `{rows[0][1].section}` out"
        found.problems.append(Problem(f"`{value}` could mean {both}", found.where((key,)), key, fix))
    elif not names and value != "false":
        known = ", ".join(sorted({known for _, row in rows for known in row.names}))
        problem = Problem(f"no installed plugin brings `{value}`", found.where((key,)), key, f"known: {known}")
        found.problems.append(problem)
        found.plugins.add(problem)
    return next(iter(names)) if len(names) == 1 else ""


def _fill(sections: dict[str, Any], row: Key, value: Any, found: Findings, said: Mapping[str, Any]) -> None:
    more = {key: said[key] for key in row.together.split() if key in said}
    more = {key: each for key, each in more.items() if each is not None or key in row.null.split()}
    try:
        if row.convert:
            value = _worth(row.convert, value) if isinstance(row.convert, Mapping) else row.convert(value, **more)
    except (ValueError, TypeError) as error:
        found.problems.append(Problem(str(error), found.where((row.key,)), row.key))
        return
    if value is not None and row.key:
        put(sections, (row.section, row.name), value, row.key, found)
    elif value is not None:
        mapping_of(sections, row.section)[row.name] = value


def _worth(table: Mapping[Any, Any], value: Any) -> Any:
    """Return what a table says of a value. Raises ValueError for one that it does not have."""
    known = [each for each in table if each == value and type(each) is type(value)]
    if not known:
        raise ValueError(f"is {' or '.join(str(each).lower() for each in table)}, not `{value}`")
    return table[known[0]]


def _alone(key: str, row: Key, found: Findings) -> Problem:
    """Explain a key that says nothing without another one."""
    return Problem(f"says nothing without `{row.key}`", found.where((key,)), key, f"set {row.key}, or leave it out")


def _elsewhere(key: str, fitting: list[Key], chosen: Chosen, found: Findings) -> Problem | None:
    """Explain a key that counts where another one chooses the component."""
    row = next((row for row in fitting if row.key == key), None)
    if row is None or row.section not in chosen.by:
        return None
    why = f"goes with `{row.chosen_by}`, and here `{chosen.by[row.section]}` chooses the {row.section}"
    fix = f"write the section `{row.section}` out, or choose by `{row.chosen_by}`"
    return Problem(why, found.where((key,)), key, fix)


def _of_another(table: Table, key: str, found: Findings) -> Problem:
    """Explain a key of a component that is not selected: the one that the key is named after, or the first that has it."""
    where, rows = found.where((key,)), [row for row in table.keys if key in (row.key, *row.together.split())]
    having = [(name not in key, row.section, name) for row in rows for name in row.of.split()]
    _, section, name = min(having, key=lambda having: having[0])
    kind, noun = SLOTS[section].kind, "exporter" if section == "export" else section
    owner = next((entry.dist for entry in entries(kind) if entry.name == name), "")
    if owner:
        why = f"belongs to {noun} `{name}` ({owner})"
        return Problem(why, where, key, f"set `{section}: {name}`")
    why, package = f"belongs to {noun} `{name}`, which is not installed", catalogue().get(f"{kind}/{name}")
    problem = Problem(why, where, key, f"pip install {package}" if package else f"set `{section}: {name}`")
    found.plugins.add(problem)
    return problem
