"""Runs tasks of lm-eval on a model, and reads its results."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from math import isclose
from typing import Any

import datasets
import lm_eval
import lm_eval.api.task
from lm_eval.api.metrics import mean
from lm_eval.utils import handle_non_serializable, hash_string, sanitize_list, sanitize_model_name
from tqdm import tqdm

from gym_core import GymError
from gym_eval.harness.config import LmEval
from gym_eval.harness.model import GymLM
from gym_eval.harness.tasks import Tasks, seeds
from gym_eval.language_model import LanguageModel
from gym_eval.scores import Results, Score


class HarnessEvaluation:
    """Tasks of lm-eval, with their data."""

    def __init__(self, config: LmEval) -> None:
        """Load the tasks. Raises RecipeError and DataError for what is not there."""
        self.config = config
        logging.getLogger("lm_eval").setLevel(logging.ERROR)
        datasets.disable_progress_bars()
        lm_eval.api.task.tqdm = partial(tqdm, desc="questions", leave=False, disable=None)  # on terminals alone
        self.tasks = Tasks(config)

    def run(self, model: LanguageModel) -> Results:
        """Ask the model."""
        config = self.config
        first, seed = seeds(config)
        asked = GymLM(model, config.max_length, config.add_bos_token, seed)
        if config.apply_chat_template and asked.chat_template(True) is None:
            fix = "name a template: `template=chatml`; or leave `apply_chat_template` out"
            raise GymError("the model has no chat template", where=model.name, key="apply_chat_template", fix=fix)
        found = lm_eval.simple_evaluate(
            asked,
            tasks=self.tasks.names,
            task_manager=self.tasks,
            num_fewshot=config.num_fewshot,
            limit=config.limit,
            bootstrap_iters=config.bootstrap_iters,
            system_instruction=config.system_instruction,
            apply_chat_template=config.apply_chat_template,
            fewshot_as_multiturn=config.fewshot_as_multiturn,
            gen_kwargs=dict(config.gen_kwargs) or None,
            random_seed=first,
            numpy_random_seed=seed,
            torch_random_seed=seed,
            fewshot_random_seed=seed,
            confirm_run_unsafe_code=config.confirm_run_unsafe_code,
        )
        samples, failed = found.pop("samples"), self.tasks.failed
        for name in [*found["results"]]:
            if not failed.keys().isdisjoint(_leaves(name, found["group_subtasks"])):
                del found["results"][name]  # made of a part of the answers
        return Results(
            [*self._scores(found, samples)],
            _report(found, samples, config, asked),
            {task: [*map(_row, rows)] for task, rows in samples.items()},
            failed,
        )

    def _scores(self, found: Mapping[str, Any], samples: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[Score]:
        """Yield the numbers of tasks, and of groups that have some."""
        tasks = self.tasks.loaded["tasks"]
        for name, numbers in found["results"].items():
            for key, value in numbers.items():
                metric, _, filtered = key.partition(",")
                if not filtered or metric.endswith("_stderr") or not isinstance(value, int | float):
                    continue
                stderr = numbers.get(f"{metric}_stderr,{filtered}")
                asked = _asked(_leaves(name, found["group_subtasks"]), samples, metric, filtered)
                total = tasks[name].aggregation()[metric] if name in tasks else None
                total = None if total is mean else total
                if total is None and not _is_mean(asked.values(), value):
                    asked = {}  # a group whose tasks count alike, whatever their size
                yield Score(
                    name,
                    metric if filtered == "none" else f"{metric},{filtered}",
                    float(value),
                    float(stderr) if isinstance(stderr, int | float) else None,
                    found["higher_is_better"].get(name, {}).get(metric),
                    found["n-shot"].get(name),
                    asked,
                    total,
                )


def _leaves(name: str, below: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the tasks of a group and of the groups in it; of a task, itself."""
    return [leaf for each in below[name] for leaf in _leaves(each, below)] if below.get(name) else [name]


def _asked(tasks: Sequence[str], samples: Mapping[str, Any], metric: str, filtered: str) -> dict[str, Any]:
    """Return what each question of some tasks contributes to a metric."""
    return {
        f"{task}/{row['doc_id']}": row[metric]
        for task in tasks
        for row in samples.get(task, ())
        if row["filter"] == filtered and metric in row["metrics"]
    }


def _is_mean(values: Collection[Any], value: float) -> bool:
    numbers = [*values]
    plain = all(isinstance(each, bool | int | float) for each in numbers)
    return bool(numbers) and plain and isclose(sum(numbers) / len(numbers), value, rel_tol=1e-6, abs_tol=1e-9)


def _report(found: Mapping[str, Any], samples: Mapping[str, Any], config: LmEval, asked: GymLM) -> dict[str, Any]:
    """Return what lm-eval writes of an evaluation, as plain data."""
    template = asked.chat_template(config.apply_chat_template)
    told = config.system_instruction
    named = {"model": "gym", "model_args": {"pretrained": str(asked.asked.artifact.path)}}
    hashes = {
        task: "".join(row["doc_hash"] + row["prompt_hash"] + row["target_hash"] for row in rows)
        for task, rows in samples.items()
    }
    further = {
        "config": found["config"] | named,
        "task_hashes": {task: hash_string(text) for task, text in hashes.items()},
        "model_source": "gym",
        "model_name": asked.asked.name,
        "model_name_sanitized": sanitize_model_name(asked.asked.name),
        "system_instruction": told,
        "system_instruction_sha": hash_string(told) if told else None,
        "fewshot_as_multiturn": config.fewshot_as_multiturn,
        "chat_template": template,
        "chat_template_sha": hash_string(template) if template else None,
    }
    return _plain({**found, **further})


def _row(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Return a question with its answer as lm-eval writes it, for `datasets` to read."""
    given = {
        f"gen_args_{number}": {f"arg_{at}": part for at, part in enumerate(arguments)}
        for number, arguments in enumerate(sample["arguments"])
    }
    texts = {key: sanitize_list(sample[key]) for key in ("resps", "filtered_resps")}
    return _plain({**sample, **texts, "arguments": given, "target": str(sample["target"])})


def _plain(value: Mapping[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(value, default=handle_non_serializable))
