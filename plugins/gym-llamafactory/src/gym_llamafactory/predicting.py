"""A file of LLaMA-Factory with `do_predict`, for `gym predict`: the rows of a recipe, and who answers them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gym_core.errors import Problem
from gym_core.sections import Findings
from gym_llamafactory import serving, translation

ALSO_DATA = ("template", "default_system", "enable_thinking")  #: keys of serving by which prompts are written here
SWITCHES = {
    "do_predict": (True, "asks for nothing to be predicted", "set it to true, or run `gym train` on the file"),
    "predict_with_generate": (True, "asks for no answers, and their loss is not measured", "set it to true"),
    "stage": ("sft", "is for answers of stage sft alone", "set it to sft"),
}
"""Keys with what they must say, and what is wrong where they do not."""


def translate(data: Mapping[str, Any], found: Findings) -> dict[str, Any]:
    """Return the `recipe` whose rows are answered, and the `options` of `gym predict`. Notes every key that nobody obeys here."""
    given = dict(data)
    for key, (meant, why, fix) in SWITCHES.items():
        if given.get(key, meant if key == "stage" else None) != meant:
            found.problems.append(Problem(why, found.where((key,)), key, fix))
        given.pop(key, None)
    asking = {key: given.pop(key) for key in list(given) if key in GENERATING}
    trained = given.get("do_train") is True
    model = {"model_name_or_path": data["output_dir"]} if trained else _model(data)
    options = serving.translate({**model, **asking}, found) | {"output": given.get("output_dir")}
    named = given.pop("eval_dataset", None)
    if named:
        given |= {"dataset": named, "val_size": None}
        options["rows"] = "all"
    elif not given.get("val_size"):
        fix = "name datasets, or set `val_size`"
        found.problems.append(Problem("names no rows to answer", found.where(("eval_dataset",)), "eval_dataset", fix))
    if not trained:
        given.pop("do_train", None)
    if not options["output"]:
        why = "is missing"
        found.problems.append(Problem(why, found.where(("output_dir",)), "output_dir", "name the folder to write"))
    return {"recipe": translation.translate(given, found), "options": options}


def _model(data: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: data[key] for key in ("model_name_or_path", "adapter_name_or_path", "trust_remote_code") if key in data
    }


GENERATING = {
    *(key for key in serving.OPTIONS if key not in ALSO_DATA),
    *serving.LENGTHS.values(),
    *(key for key in serving.UNREAD if key.startswith(("vllm", "sglang", "max_length", "length_penalty", "offload"))),
    "do_sample", "num_beams", "infer_backend", "infer_dtype", "skip_special_tokens", "use_kv_cache",
}  # fmt: skip
"""Keys that say how answers are drawn, and by which engine."""
