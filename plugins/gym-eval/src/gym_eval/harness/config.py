"""Options of the evaluator `lm_eval`, under the names that its command line has. No torch here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from gym_core.yamlfile import parse_scalar
from gym_eval.kinds import Evaluator


def _listed(value: Any) -> Any:
    """Take `a,b` for a list of both."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _pairs(value: Any) -> Any:
    """Take `a=1,b=2`, as lm-eval's command line has it, for a mapping."""
    if not isinstance(value, str):
        return value
    pairs = (part.partition("=") for part in _listed(value))
    return {key.strip(): parse_scalar(text) if equals else None for key, equals, text in pairs}


Names = Annotated[tuple[str, ...], BeforeValidator(_listed)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]


class LmEval(Evaluator):
    """Tasks of lm-eval (EleutherAI): those that come with it, and your own as its YAML files."""

    target: ClassVar[str] = "gym_eval.harness.evaluation:HarnessEvaluation"

    tasks: Annotated[Names, Field(min_length=1, examples=[["arc_easy"]])]
    """Tasks, groups, tags or YAML files, such as `arc_easy,hellaswag`; a `*` stands for any part of a name."""
    num_fewshot: Annotated[int, Field(ge=0)] | None = None
    """Examples with answers before each question; by default as each task says."""
    limit: Annotated[int, Field(ge=1)] | Annotated[float, Field(gt=0, lt=1)] | None = None
    """Most questions of each task, the first ones; or a share of them, below 1. For trials: such scores are not comparable."""
    apply_chat_template: bool = False
    """Whether questions are asked as messages, by the chat template of the model."""
    fewshot_as_multiturn: bool = True
    """Whether the examples are turns of the conversation, where a chat template is applied."""
    system_instruction: str | None = None
    """What the model is told first."""
    include_path: Annotated[tuple[Path, ...], BeforeValidator(_listed)] = ()
    """Folders with task files of your own. Python files that these name are run, as lm-eval does."""
    gen_kwargs: Annotated[dict[str, Any], BeforeValidator(_pairs)] = {}
    """How answers are drawn, in place of what tasks say: `gen_kwargs=do_sample=true,temperature=0.7`."""
    max_length: Annotated[int, Field(ge=2)] | None = None
    """Most tokens of a text, of which the beginning is cut off; by default what the model says, as lm-eval reads it."""
    add_bos_token: bool | None = None
    """Whether texts begin with the token for that; by default as the tokenizer of the model does it."""
    seed: Seed | None = None
    """Seed of the examples before questions, and of answers that are drawn; by default those of lm-eval (0,1234,1234,1234)."""
    bootstrap_iters: Annotated[int, Field(ge=0)] = 100_000
    """Samples of the questions for the standard errors of metrics that have no formula; 0 leaves standard errors out."""
    confirm_run_unsafe_code: bool = False
    """Whether tasks may run programs that the model writes, with your rights and no sandbox. Such are refused otherwise."""
