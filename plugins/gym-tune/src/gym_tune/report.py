"""What comes out of a study: `best.yaml`, `trials.csv`, `summary.json`, `trials.png`, and a text that does not overstate it."""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
from collections.abc import Sequence
from typing import Any

import optuna
from optuna.trial import TrialState

from gym_core.files import write_atomically
from gym_core.record import plain
from gym_manage.yaml_text import dump_yaml
from gym_tune.search import Search
from gym_tune.show import shown
from gym_tune.space import label

FEW = 10  #: trials with a value below which nothing is said of what mattered
STATES = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}


def summary(search: Search, repeats: dict[str, list[float]]) -> dict[str, Any]:
    """Return the outcome as plain data. `repeats` are the values of runs with other seeds, of `best` and of `own` values."""
    trials, best = [each for each in search.trials() if each.state.is_finished()], search.best()
    own = next((each for each in trials if search.own and each.number == 0 and each.state == TrialState.COMPLETE), None)
    return {
        "study": str(search.folder.path),
        "metric": search.metric.name,
        "direction": search.metric.direction,
        "trials": {name: sum(1 for each in trials if each.state == state) for state, name in STATES.items()},
        "steps": sum(each.user_attrs.get("steps", 0) for each in trials),
        "seconds": round(sum(each.user_attrs.get("seconds", 0.0) for each in trials), 1),
        "other_rows": search.with_other_rows(),
        "best": best and {"trial": best.number, "value": best.value, "values": search.values_of(best)},
        "own": own and {"value": own.value, "values": search.values_of(own)},
        "importance": importance(search),
        "repeats": {name: noise(values) for name, values in repeats.items()},
        "recipe": str(search.folder.path / "best.yaml") if best else None,
    }


def noise(values: Sequence[float]) -> dict[str, Any]:
    """Return mean and standard deviation of a run with several seeds."""
    spread = statistics.stdev(values) if len(values) > 1 else None
    return {"values": list(values), "mean": statistics.fmean(values), "std": spread}


def importance(search: Search) -> dict[str, float]:
    """Return which share of the differences between trials each key explains; empty where there are too few to say."""
    done = [each for each in search.trials() if each.state == TrialState.COMPLETE]
    if len(done) < FEW or len({each.value for each in done}) == 1 or len(search.axes) == 1:
        return {}
    found = optuna.importance.get_param_importances(search.optuna)
    return {key: round(float(share), 4) for key, share in found.items() if math.isfinite(share)}


def write(search: Search, outcome: dict[str, Any]) -> None:
    """Write all files of the outcome, each in one piece."""
    from gym_tune.picture import draw

    folder = search.folder.path
    write_atomically(folder / "trials.csv", table(search), alone=True)
    write_atomically(
        folder / "summary.json", json.dumps(plain(outcome), indent=2, ensure_ascii=False) + "\n", alone=True
    )
    if best := search.best():
        recipe = search.base.runnable(search.values_of(best), str(folder / "best"))
        write_atomically(folder / "best.yaml", dump_yaml(recipe), alone=True)
    draw(search, outcome["importance"], folder / "trials.png")


def table(search: Search) -> str:
    """Return a line for each trial: how it ended, its value, and its values by key."""
    text = io.StringIO()
    columns = ["trial", "state", "value", "steps", "seconds", *(axis.key for axis in search.axes), "reason"]
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for each in search.trials():
        if each.state.is_finished():
            row = {"trial": each.number, "state": STATES[each.state], "value": each.value}
            row |= {"steps": each.user_attrs.get("steps"), "seconds": round(each.user_attrs.get("seconds", 0.0), 1)}
            values = {key: label(value) for key, value in search.values_of(each).items()}
            writer.writerow({**row, **values, "reason": each.user_attrs.get("reason", "")})
    return text.getvalue()


def told(outcome: dict[str, Any]) -> str:
    """Return the outcome for people."""
    counts = ", ".join(f"{count} {name}" for name, count in outcome["trials"].items() if count)
    lines = [
        f"{sum(outcome['trials'].values())} trials ({counts}), {outcome['steps']} steps in {outcome['seconds']:.0f} s"
    ]
    if outcome["other_rows"]:
        numbers = ", ".join(map(str, outcome["other_rows"]))
        lines.append(f"warning: files of the data changed; trials {numbers} do not compare with those before")
    best, own, name = outcome["best"], outcome["own"], outcome["metric"]
    if best is None:
        return "\n".join([*lines, "no trial came to its end with a value"])
    lines.append(f"best: {name} {best['value']:.6g} (trial {best['trial']}): {shown(best['values'])}")
    if own:
        lines.append(f"the recipe's own values: {name} {own['value']:.6g}: {shown(own['values'])}")
    if outcome["importance"]:
        shares = ", ".join(f"{key} {share:.0%}" for key, share in outcome["importance"].items())
        lines.append(f"what mattered, as far as these trials show: {shares}")
    return "\n".join([*lines, *_certainty(outcome), f"wrote {outcome['recipe']}"])


def _certainty(outcome: dict[str, Any]) -> list[str]:
    """Return what is known of the noise: the best of many is the luckiest too."""
    repeats = outcome["repeats"]
    if not repeats:
        return ["each value is of one run, and the best of many is partly luck: `repeats=3` runs it with other seeds"]
    lines = [
        f"{name} with {len(each['values'])} other seed{'s' * (len(each['values']) > 1)}: mean {each['mean']:.6g}{_spread(each)}"
        for name, each in repeats.items()
    ]
    if len(repeats) == 2:
        best, own = repeats["best"], repeats["own values"]
        sign = 1 if outcome["direction"] == "minimize" else -1
        # the same seeds hold out the same rows, so runs are compared seed by seed
        gains = noise([sign * (mine - its) for its, mine in zip(best["values"], own["values"], strict=True)])
        gain, error = gains["mean"], (gains["std"] or 0.0) / math.sqrt(len(best["values"]))
        if best["std"] is None:
            lines.append("two seeds or more would tell whether the difference is more than noise")
        else:
            way, noisy = "better" if gain >= 0 else "worse", abs(gain) <= 2 * error
            said = f"{way} by {abs(gain):.4g} at the same seeds, with a standard error of {error:.2g}"
            lines.append(f"{said}: no more than noise" if noisy else said)
    return lines


def _spread(each: dict[str, Any]) -> str:
    return "" if each["std"] is None else f", standard deviation {each['std']:.2g}"
