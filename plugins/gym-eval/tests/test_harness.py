"""What a model of Gym answers to lm-eval is what lm-eval's own `hf` model answers; and the command around it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import lm_eval
import pytest
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from gym_core import DataError
from gym_core.cli import run
from gym_eval.evaluating import evaluated
from gym_eval.harness.config import LmEval
from gym_eval.harness.evaluation import HarnessEvaluation
from gym_eval.harness.model import GymLM
from gym_eval.language_model import opened
from gym_eval.log_likelihoods import Continuation
from gym_eval.options import EvalOptions
from gym_eval.scores import Results
from gym_serve.contract import ModelSource
from gym_testkit import tiny

NAMES = ("choose", "write", "read")


def asked(model: Path, batch_tokens: int = 8192, **options: Any) -> Results:
    evaluation = HarnessEvaluation(LmEval(bootstrap_iters=0, **options))
    with opened(ModelSource("one", str(model)), None, "float32", batch_tokens) as found:
        return evaluation.run(found)


@pytest.mark.parametrize("options", [{}, {"max_length": 64}, {"apply_chat_template": True}])
def test_every_answer_is_that_of_the_hf_model_of_lm_eval(models: Path, tasks: Path, options: dict[str, Any]) -> None:
    """Texts are cut from the left alike, and read in the same windows."""
    ours = HarnessEvaluation(LmEval(tasks=NAMES, include_path=(tasks,), bootstrap_iters=0, **options))
    with opened(ModelSource("one", str(models / "one")), None, "float32", 512) as model:
        found = ours.run(model)
    theirs = HFLM(
        pretrained=str(models / "one"),
        device="cpu",
        dtype="float32",
        batch_size=4,
        max_length=options.get("max_length"),
    )
    told = {"apply_chat_template": options.get("apply_chat_template", False)}
    expected = lm_eval.simple_evaluate(theirs, tasks=[*NAMES], task_manager=ours.tasks, bootstrap_iters=0, **told)
    for name in NAMES:
        for row, known in zip(found.samples[name], expected["samples"][name], strict=True):
            assert row["doc_hash"] == known["doc_hash"]
            for mine, other in zip(row["resps"], known["resps"], strict=True):
                if name == "write":
                    assert mine[0] == other[0]
                elif name == "choose":
                    assert float(mine[0][0]) == pytest.approx(other[0][0], abs=1e-3)
                    assert mine[0][1] == str(other[0][1])
                else:
                    assert float(mine[0]) == pytest.approx(other[0], rel=1e-5)
        for key, value in expected["results"][name].items():
            if isinstance(value, float):
                assert found.report["results"][name][key] == pytest.approx(value, rel=1e-4), key


def test_questions_that_are_drawn_are_those_of_lm_eval_for_every_model(models: Path, tasks: Path) -> None:
    """Some tasks shuffle their answers with the random numbers of the process, whenever they read their data."""
    ours = HarnessEvaluation(LmEval(tasks=("drawn",), include_path=(tasks,), bootstrap_iters=0, limit=3))
    prompts = []
    for name in ("one", "other"):
        with opened(ModelSource(name, str(models / name)), None, "float32", 512) as model:
            prompts.append([row["prompt_hash"] for row in ours.run(model).samples["drawn"]])
    theirs = HFLM(pretrained=str(models / "one"), device="cpu", dtype="float32")
    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    expected = lm_eval.simple_evaluate(theirs, tasks=["drawn"], task_manager=manager, bootstrap_iters=0, limit=3)
    assert prompts == 2 * [[row["prompt_hash"] for row in expected["samples"]["drawn"]]]


def test_two_groups_may_share_a_task(models: Path, tasks: Path) -> None:
    found = asked(models / "one", tasks=("few", "same", "choose"), include_path=(tasks,), limit=4)
    acc = {score.task: score.value for score in found.scores if score.metric == "acc"}
    assert acc["few"] == acc["same"] == acc["choose"]
    with pytest.raises(DataError, match="two of these have a task `choose` of their own"):
        HarnessEvaluation(LmEval(tasks=("few", "odd"), include_path=(tasks,)))


def test_answers_are_kept_where_a_task_cannot_score_one(models: Path, tasks: Path, tmp_path: Path) -> None:
    evaluator = LmEval(tasks=("bad", "same"), include_path=(tasks,), limit=4, bootstrap_iters=0)
    options = EvalOptions(model=str(models / "one"), evaluator=evaluator, output=tmp_path, dtype="float32")
    with pytest.raises(DataError, match=r"cannot score an answer: ZeroDivisionError") as caught:
        evaluated(options)
    assert len(str(caught.value).splitlines()) <= 4
    (file,) = (tmp_path / "one").glob("results_*.json")
    assert {*json.loads(file.read_text())["results"]} == {"choose", "same"}, "the group of the other is of a part"
    for name in ("broken", "choose"):
        (rows,) = (tmp_path / "one").glob(f"samples_{name}_*.jsonl")
        assert [bool(json.loads(row)["resps"]) for row in rows.read_text().splitlines()] == [True] * 4


NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
TRIMS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"


@pytest.mark.parametrize("template", [None, NO_SYSTEM + TRIMS])
@pytest.mark.parametrize("begun", ["", "The answer: ", "```python\n", "end", "user"])
def test_chats_are_rendered_as_by_the_hf_model(models: Path, tmp_path: Path, template: str | None, begun: str) -> None:
    """Also where the answer was begun by what the template writes too, and where it takes no system message."""
    model = shutil.copytree(models / "one", tmp_path / "model")
    if template is not None:
        (model / "chat_template.jinja").write_text(template)
    chat = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Which?"}]
    chat += [{"role": "assistant", "content": begun}] if begun else []
    with opened(ModelSource("one", str(model)), None, "float32", 512) as found:
        ours = GymLM(found, None, None, 0).apply_chat_template(chat, not begun)
    theirs = HFLM(pretrained=str(model), device="cpu", dtype="float32")
    assert ours == theirs.apply_chat_template(chat, not begun)


def test_a_text_that_spells_out_its_beginning_gets_no_second(tmp_path: Path) -> None:
    """Whatever stands in the same batch."""
    model = tiny.write_model(tmp_path / "model", extra=("bos_token",))
    file = model / "tokenizer.json"
    begins = {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}
    text, ids = (
        {"Sequence": {"id": "A", "type_id": 0}},
        {"id": "<|endoftext|>", "ids": [256], "tokens": ["<|endoftext|>"]},
    )
    adds = {"type": "TemplateProcessing", "single": [begins, text], "pair": [begins, text, text]}
    file.write_text(
        json.dumps(json.loads(file.read_text()) | {"post_processor": adds | {"special_tokens": {ids["id"]: ids}}})
    )
    asked = [("one", {"max_gen_toks": 6}), ("<|endoftext|>other", {"max_gen_toks": 6})]
    with opened(ModelSource("one", str(model)), None, "float32", 512) as found:
        ours = GymLM(found, None, None, 0).generate_until([Instance("generate_until", {}, pair, 0) for pair in asked])
    theirs = HFLM(pretrained=str(model), device="cpu", dtype="float32", batch_size=1)
    assert ours == theirs.generate_until([Instance("generate_until", {}, pair, 0) for pair in asked])


def test_what_is_computed_together_changes_no_score(models: Path) -> None:
    """Many continuations of one text, of texts that begin alike, and one that is a beginning of another."""
    texts = [[*range(3, 60)], [*range(3, 60), 7, 8, 9], [*range(3, 40)], [5, 6]]
    ends = ([9], [9, 10], [9, 10, 11, 12, 13], [20, 21, 22])
    pairs = [Continuation(text, end) for text in texts for end in ends]
    with opened(ModelSource("one", str(models / "one")), None, "float32", 4096) as model:
        whole = model.log_likelihoods(pairs, 61)
        for pair, score in zip(pairs, whole, strict=True):
            (alone,) = model.log_likelihoods([pair], 61)
            assert score.log_prob == pytest.approx(alone.log_prob, abs=1e-4) and score.greedy == alone.greedy


def test_a_comparison_is_written_and_decides_the_exit_code(
    models: Path, tasks: Path, tmp_path: Path, capsys: Any
) -> None:
    words = ["eval", str(models / "one"), "--tasks", "choose,write,read", "--include_path", str(tasks), "--limit", "6"]
    words += ["--compare", str(models / "other"), f"output={tmp_path}", "dtype=float32", "bootstrap_iters=0"]
    assert run([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {each["metric"] for each in told["changes"]} == {
        "acc",
        "acc_norm",
        "exact_match",
        "word_perplexity",
        "bits_per_byte",
    }
    for each in told["changes"]:
        low, high = each["interval"]
        assert low <= each["change"] <= high and each["questions"] == 6
    report = json.loads((tmp_path / "one" / Path(told["files"][-1]).name).read_text())
    assert report["results"]["choose"]["acc,none"] == told["scores"][0]["value"]
    assert report["gym"]["changes"] == told["changes"] and len(report["gym"]["model"]["fingerprint"]) == 16
    change = next(each for each in told["changes"] if each["metric"] == "bits_per_byte")
    worse, better = (words[1], words[8 + 1]) if change["change"] > 0 else (words[9], words[1])
    again = ["eval", worse, *words[2:8], "--compare", better, "bootstrap_iters=0", "--tasks", "read", "max_drop=0"]
    assert run(again) == 1 and "dropped" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--tasks", "chose"], "did you mean `choose`?"),
        (["--tasks", "programs"], "confirm_run_unsafe_code=true"),
        (["--tasks", "gone"], "cannot be loaded"),
        (["--tasks", "pictures"], "images or sounds"),
        (["--tasks", "choose", "--num_fewshots", "2"], "did you mean `num_fewshot`?"),
        (["--tasks", "choose", "max_drop=0.1"], "name that with `compare`"),
        (["--tasks", "choose", "--trust_remote_code"], "no code of their own"),
    ],
)
def test_what_cannot_be_done_is_said_in_four_lines(
    models: Path, tasks: Path, capsys: Any, words: list[str], said: str
) -> None:
    assert run(["eval", str(models / "one"), "--include_path", str(tasks), *words]) not in (0, None)
    error = capsys.readouterr().err.strip()
    assert said in error and len(error.splitlines()) <= 4
