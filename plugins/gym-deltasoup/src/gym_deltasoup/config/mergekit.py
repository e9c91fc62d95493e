"""Reads files of mergekit: a table of its methods, and of what each of its parameters is called here. No torch is imported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gym_core.sections import Findings, dotted

MARK = "merge_method"  #: a key that only files of mergekit have
Place = tuple[str | int, ...]


class Method(NamedTuple):
    """A method, as options of a merger. A text that begins with `$` stands for a parameter."""

    merger: Mapping[str, Any]
    parameters: Mapping[str, Any] = {}  #: of the merge, with what mergekit takes where there is none
    of_model: Mapping[str, Any] = {}  #: of a model
    base: str = "origin"
    """What `base_model` is: the `origin` of the changes that are combined, which counts as none among the models; the `first` of
    the inputs; or `one` of them, the last where `models` has it not."""
    only: Mapping[str, Any] = {}  #: parameters of which one value alone is there


GIVEN = object()  #: stands for what has to be said
SUM = {"name": "task_arithmetic", "scale": "$lambda"}
ELECTED = {"name": "ties", "density": 1.0, "scale": "$lambda", "normalize": "$normalize"}
WHOLE, SHARE = {"weight": GIVEN}, {"weight": GIVEN, "density": 1.0}
SCALED = {"lambda": 1.0}
DARE = {"name": "dare", "rescale": "$rescale"}
CRUMBS = {"name": "breadcrumbs", "top": "$gamma", "bottom": 0.0}
DELLA = {"name": "della", "epsilon": "$epsilon", "rescale": "$rescale"}
THINNED = {"lambda": 1.0, "rescale": True}
PLAIN = {"normalize": False, "rescale": False}

METHODS: dict[str, Method] = {
    "linear": Method({"name": "weighted_mean", "normalize": "$normalize"}, {"normalize": True}, WHOLE, "one"),
    "passthrough": Method({"name": "uniform_soup"}, base="one"),
    "slerp": Method({"name": "slerp", "t": "$t"}, {"t": GIVEN}, {}, "first"),
    "nuslerp": Method({"name": "slerp"}, of_model=WHOLE, only={"nuslerp_flatten": True, "nuslerp_row_wise": False}),
    "karcher": Method({"name": "karcher", "max_iter": "$max_iter", "tol": "$tol"}, {"max_iter": 10, "tol": 1e-5}, base="one"),
    "model_stock": Method({"name": "model_stock"}, only={"filter_wise": False}),
    "sce": Method({"name": "sce", "density": "$select_topk"}, {"select_topk": 1.0}),
    "task_arithmetic": Method(SUM, SCALED, WHOLE, only=PLAIN),
    "ties": Method(
        {**ELECTED, "scope": "tensor"}, {**SCALED, "normalize": True}, {"weight": GIVEN, "density": 1.0}, only={"rescale": False}
    ),
    "dare_linear": Method({**DARE, "rule": SUM}, THINNED, SHARE, only={"normalize": False}),
    "dare_ties": Method({**DARE, "rule": ELECTED}, {**THINNED, "normalize": False}, SHARE),
    "breadcrumbs": Method({**CRUMBS, "rule": SUM}, {**SCALED, "gamma": 0.01}, SHARE, only=PLAIN),
    "breadcrumbs_ties": Method(
        {**CRUMBS, "rule": ELECTED}, {**SCALED, "gamma": 0.01, "normalize": False}, SHARE, only={"rescale": False}
    ),
    "della_linear": Method({**DELLA, "rule": SUM}, {**THINNED, "epsilon": 0.15}, SHARE, only={"normalize": False}),
    "della": Method({**DELLA, "rule": ELECTED}, {**THINNED, "epsilon": 0.15, "normalize": True}, SHARE),
}  # fmt: skip
SHARED = {"gamma", "epsilon"}  #: parameters that each model may have there, and the merge alone has here
FREE = {"int8_mask"}  #: parameters that change no number of the result
DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
ABSENT = {
    "modules": "models of several parts are merged as one; write `models`",
}


def translated(data: dict[str, Any], found: Findings) -> dict[str, Any]:
    """Return a merge as options of `gym merge`; a problem in `found` for each key that says what is not there."""
    data = dict(data)
    for key in sorted(ABSENT.keys() & data.keys()):
        if data.pop(key) is not None:
            found.add((key,), f"is not there: {ABSENT[key]}", "leave it out")
    name, said = data.pop(MARK), data.pop("parameters", None) or {}
    models, base = data.pop("models", None), data.pop("base_model", None)
    if (slices := data.pop("slices", None)) is not None and models is None:
        models = _stacks(slices, said, found)
    method = METHODS.get(name) if isinstance(name, str) else None
    if method is None:
        found.add((MARK,), f"{name!r} is not there", f"use {', '.join(METHODS)}; in a file of Gym, any `merger`")
        return data
    if not isinstance(models, list) or not isinstance(said, dict):
        found.add(("models",), "is a list of models, and `parameters` a mapping")
        return data
    if method.base == "one" and base is not None and slices is None and base not in map(_model, models):
        models = [*models, base]  # which mergekit takes for one more
    said, models = _shared(method, said, models, base, found)
    for key, only in method.only.items():
        if said.get(key, only) != only:
            found.add(("parameters", key), f"is not there: `{name}` has {only}", "leave it out")
    mine = {key: value for key, value in said.items() if key not in {*method.only, *method.of_model}}
    values = _values(method.parameters, mine, ("parameters",), found)
    if isinstance(values.get("epsilon"), int | float):
        values["epsilon"] *= 2  # there half of the difference of the probabilities, here all of it
    inputs = _inputs(method, models, base, said, found)
    if name == "passthrough" and len(inputs) != 1:
        found.add((MARK,), f"`{name}` takes one model, or one source in each slice", "use `linear` for a mean")
    _moved(found, (MARK,), ("merger",))
    for option, value in method.merger.items():
        if isinstance(value, str) and value.startswith("$"):
            _moved(found, ("parameters", value[1:]), ("merger", option))
    dtype = [data.pop(key, None) for key in ("dtype", "out_dtype")]
    told = {"merger": _filled(method.merger, values), "inputs": inputs, "dtype": dtype[1] or dtype[0]}
    told["dtype"] = DTYPES.get(told["dtype"], told["dtype"])
    told["base"] = base if method.base == "origin" else None
    told["tokenizer"] = _tokenizer(data.pop("tokenizer", None), data.pop("tokenizer_source", None), base, found)
    return data | {key: value for key, value in told.items() if value is not None}


def _shared(
    method: Method, said: Mapping[str, Any], models: list[Any], base: Any, found: Findings
) -> tuple[Mapping[str, Any], list[Any]]:
    """Return parameters of the merge with what all models say alike, and models without that."""
    shared = SHARED & method.parameters.keys()
    own = [dict(each.get("parameters") or {}) if isinstance(each, dict) else {} for each in models]
    for key in sorted(shared):
        told = [(n, each.get(key, said.get(key))) for n, each in enumerate(own) if _model(models[n]) != base]
        if differing := next((n for n, value in told if value != told[0][1]), None):
            path = ("models", differing, "parameters", key)
            found.add(
                path, "differs from that of the model before, and there is one for all", "give all models the same"
            )
        elif told and told[0][1] is not None:
            said = {**said, key: told[0][1]}
    kept = [{key: value for key, value in each.items() if key not in shared} for each in own]
    return said, [
        {**each, "parameters": rest} if isinstance(each, dict) and each.get("parameters") else each
        for each, rest in zip(models, kept, strict=True)
    ]


def _model(said: Any) -> Any:
    return said.get("model") if isinstance(said, dict) else said


def _tokenizer(said: Any, source: Any, base: Any, found: Findings) -> Any:
    """Return which tokenizer the result has, in which the base of the file has the first word."""
    if source is not None:
        if said is not None:
            found.add(("tokenizer_source",), "says the same as `tokenizer`", "keep one of them")
        _moved(found, ("tokenizer_source",), ("tokenizer", "source"))
        said = {"source": source}
    return {"base": base, **said} if isinstance(said, dict) and base is not None else said


def _inputs(
    method: Method, models: list[Any], base: Any, said: Mapping[str, Any], found: Findings
) -> list[dict[str, Any]]:
    """Return the models as inputs, with the parameters that `said` has for all of them. Adds a problem for one that is none."""
    inputs: list[dict[str, Any]] = []
    for number, each in enumerate(models):
        path: Place = ("models", number)
        told: Any = {"model": each} if isinstance(each, str) else each
        known = isinstance(told, dict) and not told.keys() - {"model", "parameters", "stack"}
        if not known or not isinstance(told.get("model"), str):
            found.add(path, "is no path, nor a mapping with `model` and `parameters`")
        elif "+" in told["model"] and not Path(told["model"]).exists():
            fix = "make it whole, and name that: `gym export ADAPTER --base MODEL --into FOLDER`"
            found.add(path, f"`{told['model']}` is a model and an adapter, which are not added here", fix)
        elif method.base != "origin" or told["model"] != base:
            own = {key: said[key] for key in method.of_model if key in said} | (told.get("parameters") or {})
            _moved(found, path, ("inputs", len(inputs)))
            named = {"stack": told["stack"]} if "stack" in told else {"path": told["model"]}
            inputs.append({**named, **_values(method.of_model, own, (*path, "parameters"), found)})
    if method.base == "first" and base is not None:
        first = next((each for each in inputs if _name(each) == base), {"path": base})
        return [first, *(each for each in inputs if _name(each) != base)]
    return inputs


def _name(given: Mapping[str, Any]) -> str:
    return str(given["path"] if "path" in given else given["stack"][0]["path"])


def _stacks(slices: Any, said: Mapping[str, Any], found: Findings) -> list[dict[str, Any]]:
    """Return as models what lies above each other in slices: the first source of each of them, the second of each, and so on."""
    models: list[dict[str, Any]] = []
    for number, each in enumerate(slices if isinstance(slices, list) else [None]):
        sources = each.get("sources") if isinstance(each, dict) and each.keys() == {"sources"} else None
        if not isinstance(sources, list) or not sources or (number and len(sources) != len(models)):
            found.add(("slices", number), "is no mapping with `sources` alone, as many in each slice")
            return models
        for place, told in enumerate(sources):
            path: Place = ("slices", number, "sources", place)
            if (
                not isinstance(told, dict)
                or told.keys() - {"model", "layer_range", "parameters"}
                or not told.get("layer_range")
            ):
                found.add(path, "is no mapping with `model`, `layer_range` and `parameters`")
                return models
            if not number:
                models.append({"model": told.get("model"), "stack": [], "parameters": told.get("parameters")})
            own = models[place]
            if len(slices) > 1 and (told.get("parameters") or _along(said)):
                found.add((*path, "parameters"), "parameters of several slices, or along each of them, are not there")
            if len(sources) > 1 and told.get("model") != own["model"]:
                found.add(
                    path, "is another model than in the slice before", "merge what each source is first, and then that"
                )
            own["stack"].append({"path": told.get("model"), "layers": told["layer_range"]})
    return models


def _along(said: Any) -> bool:
    """Return whether a value changes with the layer."""
    if isinstance(said, Mapping):
        return any(_along(each) for each in said.values())
    return isinstance(said, list) and any(not isinstance(each, dict) or _along(each) for each in said)


def _moved(found: Findings, source: Place, target: Place) -> None:
    """Let problems of an option name the key that the file has."""
    found.marks[target], found.keys[target] = found.where(source), dotted(source)


def _values(wanted: Mapping[str, Any], said: Mapping[str, Any], path: Place, found: Findings) -> dict[str, Any]:
    """Return parameters by name, each as `gym_deltasoup.config.by_layer` has it. Adds a problem for one that is not there."""
    for key in said.keys() - wanted.keys() - FREE:
        found.add((*path, key), "unknown key", f"this method has {', '.join(wanted) or 'no parameters'}")
    values = {}
    for key, default in wanted.items():
        if key not in said and default is GIVEN:
            found.add((*path, key), "is required")
        values[key] = _by_layer(said[key], (*path, key), found) if key in said else default
    return values


def _by_layer(said: Any, path: Place, found: Findings) -> Any:
    """Return a value, of which `[{filter: mlp, value: 1}, ...]` becomes a mapping."""
    if not isinstance(said, list) or not any(isinstance(each, dict) for each in said):
        return said
    values: dict[str, Any] = {}
    for each in said:
        if not isinstance(each, dict) or "value" not in each or each.keys() - {"filter", "value"}:
            found.add(path, "has an item that is no mapping with `filter` and `value`")
            return None
        values.setdefault(each.get("filter") or "*", each["value"])
    return values


def _filled(options: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(options, Mapping):
        return {key: _filled(each, values) for key, each in options.items()}
    return values.get(options[1:]) if isinstance(options, str) and options.startswith("$") else options
