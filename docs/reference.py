"""Write the generated pages (hooks, kinds, LLaMA-Factory's keys, each method) and the catalogue that error messages use.

Run with `nox -s reference`; a test fails when what is written is not what the code says.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml
from absent_names import ABSENT, ELSEWHERE
from tree import ROOT, added_kinds, components, declarations, paper, points, projects, table

from gym_axolotl import stated as axolotl_stated
from gym_axolotl.datasets.markdown import markdown as of_datasets
from gym_axolotl.tracking import markdown as axolotl_callbacks
from gym_core import Artifact, Run
from gym_core.component import Component, load_object
from gym_core.discovery import PREFIX
from gym_core.hooks import HookSpecs, Trainer
from gym_core.kinds import KINDS
from gym_core.ranks import Ranks
from gym_core.sections import SECTION_OF, SLOTS
from gym_core.train import Train
from gym_data.kinds import DataAlgorithm, Rows
from gym_deltasoup.merging.rule import MergeRule, Plan
from gym_deltasoup.merging.updates import Chunk, Updates
from gym_dialect import Choice, Key, Stated
from gym_dialect.markdown import markdown
from gym_export.format import Format, Loaded
from gym_export.kinds import CertifiedExporter
from gym_llamafactory import stated as llamafactory_stated
from gym_llamafactory.tracking import markdown as llamafactory_callbacks
from gym_rewards.reward import Logging, RewardInput, Score, Selective
from gym_rl.rollout_engine import RolloutEngine, RolloutRequest
from gym_serve.contract import Engine, Limits, ModelSource, Piece, Request, Sampling, ServedModel, TokenLogprob
from gym_torch import LoadTimeQuantizer, TorchAlgorithm, TorchBackend, TorchStrategy
from gym_torch.auxiliary_module import AuxiliaryModule
from gym_torch.contribution import Contribution, Parts
from gym_torch.kernels.kernel_functions import Kept, KernelFunctions, LinearProducts, Places, Scores
from gym_torch.loop.prepared_data import Prepared
from gym_torch.model.adapted import AdaptedModel, Plain
from gym_torch.model.loading import LoadedModel
from gym_torch.observer import Observer, Progress
from gym_torch.planners import PlannedRun, Plans
from gym_torch.quantization.weight_codec import WeightCodec
from gym_torch.source import Source, Step
from gym_torch.trained_part import TrainedPart
from gym_training_free import ChatBackend
from gym_training_free.endpoint.chat import ChatModel, ChatRequest
from gym_training_free.endpoint.reply import ChatReply
from gym_webui.site import Link, Page, Site

#: What `build` is given and returns, where that is a class or a protocol.
HANDED = (
    Run, Artifact, Rows, Trainer, LoadedModel, WeightCodec, AdaptedModel, Plain, TrainedPart, AuxiliaryModule,
    RewardInput, Score, Logging, Selective,
    PlannedRun, Plans, Prepared, KernelFunctions, LinearProducts, Kept, Places, Scores,
    MergeRule, Plan, Updates, Chunk,
    Format, Loaded,
    Parts, Contribution, Source, Step, Observer, Progress, Ranks, RolloutEngine, RolloutRequest,
    ChatModel, ChatRequest, ChatReply,
    Engine, ModelSource, Limits, Request, Sampling, Piece, TokenLogprob, ServedModel,
    Page, Site, Link,
)  # fmt: skip
#: What packages ask of components of the kernel's kinds beyond what it does itself.
FURTHER: tuple[type[Component], ...] = (
    TorchBackend, ChatBackend, DataAlgorithm, TorchAlgorithm, LoadTimeQuantizer, TorchStrategy, CertifiedExporter,
)  # fmt: skip
KIND_OF_ONES_OWN = [
    "A package adds a kind by an entry point in `gym.kinds`: its name is the name of the kind, and it leads to the base class, a",
    "subclass of `gym_core.Component` with `kind: ClassVar[str]`. Components of the kind stand in the group `gym.<kind>`, in",
    "whatever package; lists, schemas, checks and messages know them from then on. A component names one as an option with a",
    "`Slot`:",
    "",
    "```toml",
    '[project.entry-points."gym.kinds"]',
    'rewards = "gym_rewards.reward:Reward"',
    "```",
    "",
    "```python",
    'rewards: list[Annotated[SerializeAsAny[Reward], Slot("rewards")]]',
    "```",
    "",
    "Laws of the kind are functions in a module `gym_testkit.laws.<kind>`; only the kinds of this tree have one.",
    "",
]
PAGED = ("algorithms", "optimizers", "adapters")  #: kinds whose components have a page each


def hooks() -> str:
    """Return docs/hooks.md: every hook with its exact signature."""
    lines = [
        "# Hooks",
        "",
        "A run calls four hooks, in this order. The first implementation that returns something other than `None`",
        "decides; the default builds the component that the recipe named. Observe or wrap a hook with",
        "`@hookimpl(wrapper=True)` around a `yield`, replace it with `@hookimpl`. An implementation may leave out",
        "arguments it does not need. The entry point stands in `gym.hooks`, and the plugin is active only in recipes",
        "that name it: `hooks: [my-hooks]`.",
        "",
        "What comes out of a hook is checked behind all hooks: where a wrapper forgets to return the result, the run ends",
        "with an error that names the hooks of that hook.",
        "",
        "A hook plugin is a part of the run as a component is: `gym validate` finds and imports it, `gym explain` and `run.json`",
        "name its package and version, and another version is another run. `gym plugins trace` (gym-manage) shows which",
        "implementations a recipe's hooks would call, in order.",
        "",
    ]
    for name, function in hook_specs().items():
        default_of = inspect.getsource(function).rstrip().rpartition("return ")[2]
        lines += [f"## `{signature(name, function)}`", "", inspect.getdoc(function) or "", ""]
        lines += [f"Default: `{default_of}`.", ""]
    return "\n".join(lines)


def hook_specs() -> dict[str, Callable[..., Any]]:
    """Return the hook specifications in the order of a run."""
    return {name: function for name, function in vars(HookSpecs).items() if inspect.isfunction(function)}


def signature(name: str, function: object) -> str:
    """Write a hook as an implementation declares it."""
    shown = inspect.signature(function)  # type: ignore[arg-type]
    parameters = [parameter for parameter in shown.parameters.values() if parameter.name != "self"]
    returned = f" -> {shown.return_annotation}" if shown.return_annotation is not inspect.Signature.empty else ""
    return f"{name}({', '.join(f'{p.name}: {p.annotation}' for p in parameters)}){returned}"


def kinds() -> str:
    """Return docs/kinds.md: every kind with its group, section, contract and declarations."""
    lines = [
        "# Kinds",
        "",
        "A component is a pydantic class that subclasses the base class of its kind and stands in that kind's",
        "entry-point group. `build` imports what `target` names and calls it with the configuration and the context given here.",
        "",
        "A component of any kind that needs what no package brings, such as a network or a GPU, declares so:",
        '`outside: ClassVar[str] = "a GPU"`. Neither the laws of its kind nor the recipes of its README are run then.',
        "",
    ]
    for kind, base in {**KINDS, **added_kinds()}.items():
        section = SECTION_OF.get(kind)
        default = f", default `{SLOTS[section].default}`" if section and SLOTS[section].default else ""
        where = f"section `{section}`{default}" if section else "no section of its own"
        lines += [f"## `{kind}`: `{public(base)}`", "", f"Group `{PREFIX}{kind}`, {where}.", "", *promises(base)]
        for further in FURTHER:
            if further.kind == kind:
                package = further.__module__.partition(".")[0].replace("_", "-")
                lines += [f"### Under {package}: `{public(further)}`", "", *promises(further)]
    lines += ["## A kind of your own", "", *KIND_OF_ONES_OWN, "## What they hand to each other", ""]
    for cls in HANDED:
        lines += [f"### `{cls.__module__}.{cls.__name__}`", "", "```python", inspect.getsource(cls).strip(), "```", ""]
    return "\n".join(lines)


def promises(base: type[Component]) -> list[str]:
    """Return what the class says of itself, and what it declares and answers."""
    lines = [inspect.getdoc(base) or "", ""]
    declared = declarations(base)
    if declared:
        lines += ["Declared as data on the class:", "", *declared, ""]
    methods = {name: found for name, found in vars(base).items() if inspect.isfunction(found) and name[0] != "_"}
    if methods:
        lines += ["Methods of the component:", ""]
        lines += [f"* `{signature(name, found)}`: {inspect.getdoc(found)}" for name, found in methods.items()]
        lines += [""]
    return lines


def public(base: type[Component]) -> str:
    """Return where a class is imported from: its package, where that offers it, or its module."""
    package = import_module(base.__module__.partition(".")[0])
    offered = base.__name__ in getattr(package, "__all__", ()) and getattr(package, base.__name__) is base
    return f"{package.__name__ if offered else base.__module__}.{base.__name__}"


def index(kind: str) -> str:
    """Return docs/KIND/README.md: all components of a kind in a table."""
    lines = [
        f"# {kind.capitalize()}",
        "",
        f"Each is named in a recipe as `{SECTION_OF[kind]}: NAME`. `gym --plugins list` shows those of other packages too.",
        "",
    ]
    lines += ["| Name | Package | What it is | Paper |", "|---|---|---|---|"]
    for name, (project, base) in components(kind).items():
        first = (inspect.getdoc(base) or "").partition("\n")[0]
        lines += [f"| [`{name}`]({name}.md) | {project['name']} | {first} | {paper(project, name)} |"]
    return "\n".join([*lines, ""])


def component(kind: str, name: str) -> str:
    """Return docs/KIND/NAME.md: what it is, its paper, and every option with its default."""
    project, base = components(kind)[name]
    source = f"Paper: {paper(project, name)}. " if paper(project, name) else ""
    first, _, rest = (inspect.getdoc(base) or "").partition("\n\n")
    lines = [f"# `{name}`", "", first, "", f"{source}Package: `pip install gym-core {project['name']}`.", ""]
    lines += [rest, ""] if rest else []
    lines += table(base) if base.model_fields else ["It has no options."]
    return "\n".join([*lines, ""])


def options() -> str:
    """Return docs/options.md: the options of the sections that nearly every recipe has."""
    sections = {
        "train": Train,
        "data": components("data")["dataset"][1],
        "model": components("backends")["transformers"][1],
    }
    lines = [
        "# Options of `train`, `data` and `model`",
        "",
        "Of `data` and `model`: those of `dataset` and `transformers`,",
    ]
    lines += [
        "which a recipe has that names no other. [Algorithms](algorithms/README.md), [adapters](adapters/README.md)"
    ]
    lines += ["and [optimizers](optimizers/README.md) have a page each."]
    for section, base in sections.items():
        lines += ["", f"## `{section}`", "", *table(base)]
    return "\n".join([*lines, ""])


def dialect(title: str, package: str, kind: str, stated: Mapping[str, Stated], further: Iterable[str]) -> str:
    """Return the page of a dialect: every key with what it becomes."""
    choices: list[Choice] = []
    keys: list[Key] = []
    for value in points(kind).values():
        own = load_object(value)
        choices, keys = [*choices, *own.choices], [*keys, *own.keys]
    lines = [
        f"# {title}'s keys",
        "",
        "What becomes of each key. How such files are read, how much of it works, and what differs:",
    ]
    lines += [f"[{package}](../plugins/{package}/README.md).", ""]
    return "\n".join([*lines, *markdown(choices, keys, stated, further), ""])


def llamafactory() -> str:
    """Return docs/llamafactory.md."""
    return dialect(
        "LLaMA-Factory", "gym-llamafactory", "llamafactory_keys", llamafactory_stated.STATED, llamafactory_callbacks()
    )


def axolotl() -> str:
    """Return docs/axolotl.md."""
    further = [*of_datasets(), *axolotl_callbacks()]
    return dialect("Axolotl", "gym-axolotl", "axolotl_keys", axolotl_stated.STATED, further)


def glossary() -> str:
    """Return docs/glossary.md: terms and metrics of docs/glossary.yaml, and all options of the algorithms of the tree."""
    written = yaml.safe_load((ROOT / "docs/glossary.yaml").read_text(encoding="utf-8"))
    no_text = [
        cell for row in (*written["terms"], *written["metrics"].items()) for cell in row if not isinstance(cell, str)
    ]
    if no_text:
        raise ValueError(f"docs/glossary.yaml: {no_text} are no text; quote what holds a colon")
    lines = ["# Glossary", "", "Gym uses the terms of the field. Terms and metrics stand here with what they mean,", ""]
    lines[-2] += " options with what the code says of them."
    lines += ["## Terms", "", "| Term | Meaning | Where |", "|---|---|---|"]
    lines += [f"| {term} | {meaning} | `{where}` |" for term, meaning, where in sorted(written["terms"], key=str)]
    lines += ["", "## Metrics", "", "Of `metrics.jsonl`; those of an evaluation begin with `eval_`.", ""]
    lines += ["| Metric | Meaning |", "|---|---|"]
    lines += [f"| `{name}` | {meaning} |" for name, meaning in sorted(written["metrics"].items())]
    lines += ["", "## Options of algorithms", "", "| Option | Meaning | Algorithms |", "|---|---|---|"]
    options: dict[tuple[str, str], list[str]] = {}
    for name, (_, base) in components("algorithms").items():
        for option, field in base.model_fields.items():
            options.setdefault((option, " ".join((field.description or "").split())), []).append(name)
    for (option, meaning), names in sorted(options.items()):
        shown = [f"[`{name}`](algorithms/{name}.md)" for name in names]
        some = ", ".join(shown if len(shown) < 5 else [*shown[:3], f"and {len(shown) - 3} more"])
        lines += [f"| `{option}` | {meaning} | {some} |"]
    return "\n".join([*lines, ""])


def catalogue() -> str:
    """Return the distribution of every first-party component and flat selector, from the packages' own metadata."""
    lines = []
    for project in projects():
        for group, found in project.get("entry-points", {}).items():
            if group.startswith(PREFIX):
                lines += [f"{group.removeprefix(PREFIX)}/{name} {project['name']}" for name in found]
        lines += [f"absent/{name} {advice}" for name, advice in ABSENT.get(project["name"], {}).items()]
    for kind, said in ELSEWHERE.items():
        lines += [
            f"absent/{kind}/{name} did you mean {ours}?" for ours, names in said.items() for name in names.split()
        ]
    head = "# kind/name distribution: where the first-party components live. Written by `nox -s reference`, held by a test."
    return "\n".join([head, *sorted(lines), ""])


PAGES: dict[Path, Callable[[], str]] = {
    ROOT / "docs/hooks.md": hooks,
    ROOT / "docs/kinds.md": kinds,
    **{ROOT / f"docs/{kind}/README.md": partial(index, kind) for kind in PAGED},
    **{ROOT / f"docs/{kind}/{name}.md": partial(component, kind, name) for kind in PAGED for name in components(kind)},
    ROOT / "docs/options.md": options,
    ROOT / "docs/glossary.md": glossary,
    ROOT / "docs/llamafactory.md": llamafactory,
    ROOT / "docs/axolotl.md": axolotl,
    ROOT / "gym-core/src/gym_core/catalogue.txt": catalogue,
}

if __name__ == "__main__":
    for page, write in PAGES.items():
        page.parent.mkdir(exist_ok=True)
        page.write_text(write(), encoding="utf-8")
