"""Makes the report: opens the models, measures them on the same rows, and writes what was found."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gym_core import Artifact, RecipeError, load_recipe
from gym_core.files import write_atomically
from gym_core.record import plain
from gym_data.examples import UnpairedExample
from gym_data.location import artifact_at
from gym_manage.recorded import Recorded, recorded
from gym_torch import TorchAlgorithm
from gym_torch.checkpoints.open_artifact import as_stored, open_artifact
from gym_torch.console import say
from gym_torch.kernels.precision_probe import device
from gym_torch.kinds import part
from gym_unlearn.report.measures import Measures, measures
from gym_unlearn.report.picture import draw
from gym_unlearn.report.statistics import auc, forget_quality, privacy_leakage, utility

ROLES = BEFORE, AFTER, RETRAINED = "before", "after", "retrained"
Rows = Mapping[str, Sequence[UnpairedExample]]


def made(run: Path, retrained: str | None, beside: Sequence[str], most: int) -> tuple[dict[str, Any], list[Path]]:
    """Return the report of a run, and the files that hold it. Raises RecipeError where it did not unlearn."""
    found = recorded(run)
    recipe = load_recipe(found.recipe)
    algorithm = part(recipe, TorchAlgorithm)
    measured_by = algorithm.evaluation_metrics() if algorithm else {}
    if not any(name.startswith("forget_") for name in measured_by) or recipe.data is None or recipe.model is None:
        raise RecipeError(
            "this run did not unlearn", where=str(run), key="algorithm", fix="name a run of `npo`, for example"
        )
    rows = _rows(recipe, most)
    path = str(recipe.canonical(everything=True)["model"]["path"])
    models = {BEFORE: artifact_at(path), AFTER: found.artifact}
    models |= {RETRAINED: artifact_at(retrained, key="--retrained")} if retrained else {}
    # A folder may be named as a role is: then it keeps a name of its own.
    models |= {f"./{name}" if name in ROLES else name: artifact_at(name, key="--beside") for name in beside}
    measured = {name: _measured(name, artifact, recipe, rows) for name, artifact in models.items()}
    told = {
        "run": str(found.output),
        "algorithm": found.recipe["algorithm"],
        "rows": {k: len(v) for k, v in rows.items()},
    }
    report = {**told, "models": {name: _figures(each, measured.get(RETRAINED)) for name, each in measured.items()}}
    return report, _written(found, report)


def _rows(recipe: Any, most: int) -> Rows:
    """Return the rows to forget and to keep, each once, and those that were held out; at most so many of each, evenly spread."""
    prepared = recipe.data.in_memory().build(
        tokenizer=_tokenizer_folder(recipe), rows="feedback", seed=recipe.train.seed
    )
    found: dict[str, list[UnpairedExample]] = {}
    for rows, name in ((prepared.train, ""), (prepared.validation, "held_out_")):
        once = {_identity(each): each for each in (rows[number] for number in range(len(rows)))} if rows else {}
        for keep, kind in ((False, "forget"), (True, "retain")):
            mine = [each for each in once.values() if each.desirable == keep]
            if mine:
                places = np.linspace(0, len(mine) - 1, min(most, len(mine))).round().astype(int)
                found[name + kind] = [mine[place] for place in places]
    if "forget" not in found:
        raise RecipeError("no row of this run was to be forgotten", key="data", fix="name a run of `npo`, for example")
    return found


def _identity(row: UnpairedExample) -> tuple[str, bool, bytes]:
    """Return what two passes over a row have in common. Its id alone does not do: subsets of a dataset share them."""
    return row.id, row.desirable, row.tokens.tobytes()


def _tokenizer_folder(recipe: Any) -> Path:
    folder: Path = recipe.model.folder(weights=False)
    return folder


def _measured(name: str, artifact: Artifact, recipe: Any, rows: Rows) -> dict[str, Measures]:
    say(f"measuring {name}")
    model = open_artifact(as_stored(artifact), "float32").model.to(device())
    tokenizer = recipe.data.tokenizer(_tokenizer_folder(recipe))
    return {kind: measures(model, tokenizer, examples) for kind, examples in rows.items()}


def _figures(mine: Mapping[str, Measures], retrained: Mapping[str, Measures] | None) -> dict[str, Any]:
    """Return the figures of a model, with those against a retrained one where it is there."""
    means = {kind: each.means() for kind, each in mine.items()}
    kept = [
        means[kind][name]
        for kind in ("retain", "held_out_retain")
        if kind in means
        for name in ("probability", "rouge")
    ]
    found: dict[str, Any] = {**means, **({"utility": utility(kept)} if kept else {})}
    if retrained:
        found["forget_quality"] = forget_quality(mine["forget"].probability, retrained["forget"].probability)
    if "held_out_forget" in mine:
        found["membership_auc"] = _membership(mine)
        if retrained:
            found["privacy_leakage"] = privacy_leakage(found["membership_auc"], _membership(retrained))
    return found


def _membership(mine: Mapping[str, Measures]) -> float:
    return auc(mine["forget"].lowest, mine["held_out_forget"].lowest)


def _written(found: Recorded, report: Mapping[str, Any]) -> list[Path]:
    files = [found.output / f"unlearning{found.label}.{suffix}" for suffix in ("json", "png")]
    write_atomically(files[0], json.dumps(plain(report), indent=2))
    draw(report, files[1])
    return files
