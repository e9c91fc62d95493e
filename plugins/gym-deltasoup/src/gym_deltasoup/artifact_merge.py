"""Merges directories: models, adapters or deltas in, one artifact out, with its provenance. All of it is written, or nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gym_core import Artifact, BusyError, GymError
from gym_core.discovery import entries
from gym_core.files import remove
from gym_core.record import plain
from gym_data.location import locate
from gym_deltasoup.card import card
from gym_deltasoup.config.by_layer import ByLayer
from gym_deltasoup.config.vocabulary import TokenizerOptions
from gym_deltasoup.kinds import Merger, name_of
from gym_deltasoup.merging.rule import weighted
from gym_deltasoup.merging.updates import CHUNK, Updates
from gym_deltasoup.sources.adapters import Adapters
from gym_deltasoup.sources.chat_template import chosen_template, write_template
from gym_deltasoup.sources.files import Files
from gym_deltasoup.sources.group_means import KIND, LAYERS, Changes, LayerChanges
from gym_deltasoup.sources.inputs import Input, Opened, opened, taken_from_first
from gym_deltasoup.sources.models import Deltas, Models, Part
from gym_deltasoup.sources.moved_rows import OfOneVocabulary, vocabulary_of
from gym_deltasoup.sources.vocabulary import check_same_tokens
from gym_deltasoup.vector_merge import Prepared, check_names, densities_of, prepared, trusted_of, weights_of
from gym_torch.checkpoints.base_fingerprint import base_fingerprint
from gym_torch.checkpoints.checkpoint_folders import whole_by_one
from gym_torch.recorded_components import passed_on

REPORT = "merge.json"
SCRATCH = ".scratch"  #: what is unpacked, and candidates that are scored, while the result is made
SETS: dict[str, Callable[..., Models | Adapters]] = {
    "model": Models,
    "adapter": Adapters,
    "delta": Deltas,
    KIND: Changes,
    LAYERS: LayerChanges,
}

Evaluation = Callable[[Artifact], float]


@dataclass(frozen=True)
class MergedArtifact:
    """What came of directories."""

    artifact: Artifact
    report: Mapping[str, Any]

    @property
    def tolerated_byzantine(self) -> int:
        """How many hostile inputs the result tolerates."""
        return int(self.report["tolerated_byzantine"])


def merge_artifacts(
    merger: Merger,
    inputs: Sequence[Input],
    into: Path,
    *,
    base: str | None = None,
    hostile: int | None = None,
    trusted: str | None = None,
    evaluate: Evaluation | None = None,
    rank: int | None = None,
    dtype: torch.dtype | None = None,
    tokenizer: TokenizerOptions | None = None,
    chat_template: str | None = None,
    announce: Callable[[str], None] | None = None,
    most: int = CHUNK,
) -> MergedArtifact:
    """Merge what lies in several directories, a few coordinates of each at a time.

    Args:
        merger: the options.
        inputs: models, LoRA adapters or deltas, all of one kind.
        into: a directory that is not there yet, or is empty.
        base: the model that they were trained from: a family, a folder or a Hub id. Deltas need it, and mergers that combine
            changes; where it is named, an input that says that it belongs to another one is refused.
        hostile: how many inputs may hold anything; see `gym_deltasoup.vector_merge.expected`.
        trusted: name of an input that is known to be honest.
        evaluate: says how good a candidate is; higher is better.
        rank: of the adapter that is written; by default the largest of the inputs.
        dtype: of the model that is written; by default that of each tensor of the inputs.
        tokenizer: which tokenizer the result has, where those of whole models differ; by default they must be one.
        chat_template: its text, its name, or `auto` for the most frequent one; by default that of the first input.
        announce: is told what has to be said before anything is merged, such as how much noise there will be.
        most: numbers of all inputs together that are in memory at a time.

    Raises GymError where inputs do not belong together, or do not suit the merger, and where the disk does not take it.

    """
    check_free(into)
    if not inputs:
        raise GymError("there is nothing to merge", key="inputs", fix="name directories")
    given = [replace(each, name=each.name or str(each.path)) for each in inputs]
    if merger.order_free():  # then sums are taken in one order, whatever that of the inputs, to the bit
        given = sorted(given, key=lambda each: each.name)
    names = [each.name for each in given]
    check_names(names)
    weights, densities = [each.weight for each in given], [each.density for each in given]
    weights_of(merger, weights, ())  # refused here, before anything is read
    densities_of(merger, densities, ())
    at = trusted_of(merger, names, trusted)
    found = opened(given, base, any_tokenizer=tokenizer is not None)
    where = None if base is None else locate(base, key="base")
    parts = {one.path for each in found for one in each.stack}
    _check_outside(into, {*parts, *(each.artifact.path for each in found), *([] if where is None else [where])})
    if where is not None and tokenizer is None and found[0].artifact.kind == "model":
        check_same_tokens(found[0].name, found[0].artifact.path, str(base), where)
    template = "" if chat_template is None else chosen_template(chat_template, [each.artifact.path for each in found])
    taken = [] if tokenizer is not None else taken_from_first(found, template=not template)
    into.parent.mkdir(parents=True, exist_ok=True)
    with whole_by_one(into, "the merged model", "the inputs") as building:
        scratch = building / SCRATCH
        scratch.mkdir()
        make: Callable[..., Models | Adapters] = group_of(found[0].artifact.kind)
        if tokenizer is not None:
            first = inputs[0].name or str(inputs[0].path)
            of_base = None if base is None or where is None else (base, where)
            vocabulary = vocabulary_of(tokenizer, found, given, of_base, first, scratch / "tokenizer")
            taken, make = vocabulary.told(), partial(OfOneVocabulary, vocabulary)
        if announce is not None:
            for line in taken:
                announce(line)
        group = make(found, where, scratch)
        if dtype is not None:
            group.store_as(dtype)
        score = None if evaluate is None else _Score(group, evaluate, scratch / "candidate", base, rank)
        updates = Files(
            group.contributions,
            names,
            group.shapes,
            has_base=group.has_base,
            weights=weights_of(merger, weights, [*group.shapes]),
            densities=densities_of(merger, densities, [*group.shapes]),
            trusted=at,
            score=score,
            most=most,
        )
        if score is not None:
            score.updates = updates
        ready = prepared(merger, updates, hostile, announce)
        if announce is not None and merger.hides_inputs():
            for name, why in ready.excluded.items():
                announce(f"{name} holds {why}, and counts as no change")
        lost = group.write(_merged(ready), building, rank)
        report = {
            **_report(merger, hostile, ready, given, found),
            **lost,
            "taken_from_first": taken,
            "base": None if where is None else {"name": base, "fingerprint": base_fingerprint(where)},
        }
        remove(scratch)
        if template:
            write_template(template, building)
        details = {"merge": {"merger": name_of(merger), "inputs": len(found)}, **lost}
        if not merger.hides_inputs():
            details |= next(filter(None, (passed_on(each.artifact) for each in found)), {})
        if where is not None:
            details["base_fingerprint"] = report["base"]["fingerprint"]
        made = group.artifact(building, base, details)
        (building / REPORT).write_text(json.dumps(plain(report), indent=1) + "\n", encoding="utf-8")
        (building / "README.md").write_text(card(report), encoding="utf-8")
        made.record()
    return MergedArtifact(replace(made, path=into), report)


def check_free(into: Path) -> None:
    """Raise BusyError where something is in the place of an output."""
    if into.exists() and (not into.is_dir() or any(into.iterdir())):
        raise BusyError("the output is there already", where=str(into), key="output", fix="name another one")


def _check_outside(into: Path, read: Collection[Path]) -> None:
    """Raise GymError where an output would change a model that is read."""
    place = into.resolve()
    if held := next((path for path in sorted(read) if path.resolve() in (place, *place.parents)), None):
        why = f"the output lies in {held}, which is merged"
        raise GymError(why, where=str(into), key="output", fix="name another folder")


def hidden(inputs: Sequence[Opened]) -> dict[str, Any]:
    """Return what a report says of inputs that nobody may see: who took part, and nothing of what anybody holds."""
    return {
        "inputs": [{"name": each.name, "kind": each.artifact.kind, "base": each.base, "sha256": {}} for each in inputs],
        "excluded": {},
    }


def _report(
    merger: Merger, hostile: int | None, ready: Prepared, given: Sequence[Input], found: Sequence[Opened]
) -> dict[str, Any]:
    """Return what is written down of a merge before there is a result: of its inputs, only who took part where it hides them."""
    return {
        "merger": {"name": name_of(merger), "options": merger.model_dump(mode="json"), "package": _package(merger)},
        "hostile": hostile,
        **ready.report(),
        "inputs": [{**each.told(), **_said(one)} for each, one in zip(found, given, strict=True)],
        **(hidden(found) if merger.hides_inputs() else {}),
        "evaluation": "not evaluated",
    }


def _said(given: Input) -> dict[str, ByLayer[float]]:
    said = {"weight": given.weight, "density": given.density}
    return {key: value for key, value in said.items() if value is not None}


class _Score:
    """Writes a candidate and asks how good it is."""

    updates: Updates

    def __init__(
        self, group: Models | Adapters, evaluate: Evaluation, place: Path, base: str | None, rank: int | None
    ) -> None:
        self.group, self.evaluate, self.place, self.base, self.rank = group, evaluate, place, base, rank

    def __call__(self, weights: Tensor) -> float:
        remove(self.place)
        candidate = Prepared(self.updates, weighted(weights), 0, {})
        lost = self.group.write(_merged(candidate), self.place, self.rank)
        made = self.group.artifact(self.place, self.base, lost)
        made.record()
        try:
            return float(self.evaluate(made))
        except OSError as error:  # which is none of the disk that the result goes to
            why = f"the function that scores raised {type(error).__name__}: {error}"
            raise GymError(why, key="evaluate", fix="see to it and merge again") from error


def _merged(ready: Prepared) -> Iterator[Part]:
    for chunk in ready.updates.chunks(ready.plan.whole_rows):
        span = ready.updates.spans[chunk.tensor]
        yield Part(span.name, chunk.begin - span.begin, ready.plan.combine(chunk))


def group_of(kind: str) -> Callable[..., Models | Adapters]:
    """Return what reads artifacts of a kind. Raises GymError where they cannot be merged."""
    if kind not in SETS:
        raise GymError(f"artifacts of kind {kind} cannot be merged", key="inputs", fix=f"there are {', '.join(SETS)}")
    return SETS[kind]


def _package(merger: Merger) -> str:
    value = f"{type(merger).__module__}:{type(merger).__qualname__}"
    return next((f"{each.dist} {each.version}" for each in entries("mergers") if each.value == value), "")
