"""The experience of one round: completions, their rewards, and what training needs to know of each token.

Columns hold a value for each token, by name. Each stage of a round adds its own; `sampling_log_probs` and `advantages` are always
there in the end.

| Column | Holds, `[n]` fp32 |
|---|---|
| `sampling_log_probs` | log-probability under the rollout engine, where the token was sampled |
| `old_log_probs` | log-probability under the policy at the beginning of the round; absent where that is the policy itself |
| `ref_log_probs` | log-probability under the reference model, where `beta` is above 0 |
| `values`, `returns` | of a critic |
| `high_entropy` | bool: with `top_entropy_quantile`, whether the token counts in the policy loss |
| `advantages` | without a gradient |
| `entropy_coef` | weight of the entropy bonus in the round; absent where there is none |
| `nucleus_size` | int64: number of tokens that could be drawn at the token, where not all could; see `Experience.nucleus` |
| `observation_size` | int64, with an environment: number of its tokens before the token; see `Experience.observations` |
| `experts` | with routing replay, int16 `[n, layers, k]`: the experts of the token (`gym_torch.model.expert_routing`) |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gym_torch.batch import Example
from gym_torch.inputs_beside import Inputs, inputs_of
from gym_torch.source import Examples

ENTROPY_COEF = "entropy_coef"  #: column


@dataclass(frozen=True)
class Rollout:
    """One completion, an `Example` of which every token is trained on that the model wrote."""

    id: str  #: row of the prompt, and number of the completion
    group: int  #: completions of one group have one prompt
    prompt: Example
    tokens: npt.NDArray[np.int32]
    """Of the completion alone, `[length]`, the one that ends it and an environment's included."""
    trained: npt.NDArray[np.bool_]  #: those that the model wrote, `[length]`
    columns: Mapping[str, npt.NDArray[Any]]
    """By name, what is known of each token that the model wrote, `[written, ...]`."""
    prompt_experts: npt.NDArray[np.int16] | None = None  #: those of the prompt, `[prompt, layers, k]`
    nucleus: npt.NDArray[np.int32] | None = None
    """Tokens that could be drawn, one token of the completion after another."""
    number: int = 0  #: of the completion in its round
    fresh: bool = True  #: whether the policy that learns from it is still the one that gave it
    share: float = 1.0  #: of the completions of its step: itself, and its part in those that are not trained on

    @property
    def inputs_key(self) -> str:
        """Return that of the prompt, whose images it answers."""
        return inputs_of(self.prompt)[1]

    def model_inputs(self, tokens: npt.NDArray[np.int32] | None = None) -> Inputs:
        """Return what the model is given beside the tokens of prompt and completion: what the prompt has, such as images."""
        whole = np.concatenate([self.prompt.tokens, self.tokens]) if tokens is None else tokens
        return inputs_of(self.prompt)[0](whole)


@dataclass(frozen=True)
class Experience:
    """All completions to the prompts of one round, group after group; what a checkpoint keeps of them is tensors."""

    number: Tensor  #: [] int64, of the round, from 0
    groups: Tensor  #: [completions] int64, number of the group, from 0
    prompts: Tensor  #: [completions] int64, index of the prompt of each completion
    lengths: Tensor  #: [completions] int64, in tokens that the model wrote
    tokens: Tensor  #: [sum of lengths] int32, those
    finished: Tensor  #: [completions] bool, whether the model ended it, or a stop string
    rewards: Tensor  #: [completions] fp64, weighted sums; NaN where it was not scored
    stopped: Tensor | None = None
    """[completions] bool, whether a stop string ended it, so that its last token is part of its text; None where none can."""
    compared: Tensor | None = None
    """[completions] fp64, what completions to one prompt are told apart by, NaN where it was not scored; None: by the rewards.
    Where there are `baselines`, how far it is from that of the greedy completion."""
    baselines: Tensor | None = None
    """[completions] fp64, the reward of the greedy completion to the same prompt, NaN where there is none; None: nobody asked."""
    scores: Mapping[str, Tensor] = field(default_factory=dict)
    """By reward, [completions] fp64; NaN where it says nothing."""
    failed: Mapping[str, Tensor] = field(default_factory=dict)  #: by reward, [completions] bool, whether it failed
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    """By `reward/metric`, [completions] fp64, what rewards had logged when they scored each completion; NaN for nothing."""
    environment: Mapping[str, Tensor] = field(default_factory=dict)
    """By name, [completions] fp64, what an environment had logged of each completion; NaN for nothing."""
    columns: Mapping[str, Tensor] = field(default_factory=dict)  #: by name, [sum of lengths, ...]
    nucleus: Tensor | None = None
    """[sum of the column `nucleus_size`] int32, the tokens that could be drawn at each token, where not all could."""
    observations: Tensor | None = None
    """[sum of the column `observation_size`] int32, the tokens of an environment before each token; None where there is none."""
    prompt_experts: Tensor | None = None  #: [groups, longest prompt, layers, k] int16, with routing replay

    @property
    def owner(self) -> Tensor:
        """Number of the completion of each token, `[sum of lengths]` int64."""
        return torch.repeat_interleave(torch.arange(len(self.lengths)), self.lengths)

    @property
    def nonzero_std(self) -> Tensor:
        """Whether the completions of each group earned different rewards, `[groups]` bool; only then can they be compared."""
        return self._apart(self.rewards)

    @property
    def informative(self) -> Tensor:
        """Whether the completions of each group differ in what dynamic sampling looks at, from one another or from the greedy one
        where there is one, `[groups]` bool.
        """
        if self.baselines is None:
            return self._apart(self.rewards if self.compared is None else self.compared)
        return self._apart(self.rewards - self.baselines if self.compared is None else self.compared, bound=0.0)

    def _apart(self, values: Tensor, bound: float = torch.inf) -> Tensor:
        known = ~values.isnan()
        some, groups = values[known], self.groups[known]
        count = int(self.groups.max()) + 1 if len(self.groups) else 0
        nothing = torch.full((count,), bound, dtype=values.dtype)
        least = nothing.scatter_reduce(0, groups, some, "amin")
        return least < (-nothing).scatter_reduce(0, groups, some, "amax")

    def with_columns(self, columns: Mapping[str, Tensor]) -> Experience:
        """Return the round with more columns."""
        return replace(self, columns={**self.columns, **columns})

    def tensors(self) -> dict[str, Tensor]:
        """Return all of it by name."""
        plain = {each.name: value for each in fields(self) if isinstance(value := getattr(self, each.name), Tensor)}
        tables = {f"{table}/{name}": value for table in _TABLES for name, value in getattr(self, table).items()}
        return plain | tables

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Experience:
        """Return the round that `tensors` told."""
        plain = {name: value for name, value in tensors.items() if "/" not in name}
        tables: dict[str, dict[str, Tensor]] = {table: {} for table in _TABLES}
        for name in sorted(tensors.keys() - plain.keys()):
            table, _, column = name.partition("/")
            tables[table][column] = tensors[name]
        return cls(**plain, **tables)  # type: ignore[arg-type]  # names of fields, each with its type

    def rollouts(self, prompts: Examples, fresh: bool = True) -> list[Rollout]:
        """Return the completions as examples; `prompts` are those of the whole data set, `fresh` holds for all of them."""
        bounds = [0, *torch.cumsum(self.lengths, 0).tolist()]
        tokens, columns = self.tokens.numpy(), {name: column.numpy() for name, column in self.columns.items()}
        experts = None if self.prompt_experts is None else self.prompt_experts.numpy()
        kept = self._split(self.nucleus, "nucleus_size")
        shown = self._split(self.observations, "observation_size")
        made = []
        for number, index in enumerate(self.prompts.tolist()):
            part = slice(bounds[number], bounds[number + 1])
            prompt = prompts[index]
            group = int(self.groups[number])
            own, trained = tokens[part], np.ones(part.stop - part.start, dtype=np.bool_)
            if shown is not None:
                before = np.repeat(np.arange(len(own)), columns["observation_size"][part])
                own, trained = np.insert(own, before, shown[number]), np.insert(trained, before, False)
            made.append(
                Rollout(
                    f"{prompt.id}/{number}",
                    group,
                    prompt,
                    own,
                    trained,
                    {name: column[part] for name, column in columns.items()},
                    None if experts is None else experts[group, : len(prompt.tokens)],
                    None if kept is None else kept[number],
                    number,
                    fresh,
                )
            )
        return made

    def _split(self, ragged: Tensor | None, size: str) -> list[npt.NDArray[np.int32]] | None:
        """Return the parts of each completion, which has as many of them before or at each token as column `size` says."""
        if ragged is None:
            return None
        counts = torch.zeros_like(self.lengths).index_add(0, self.owner, self.columns[size])
        return [part.numpy() for part in ragged.split(counts.tolist())]


RAGGED = {
    "nucleus": "nucleus_size",
    "observations": "observation_size",
}  #: by field, the column that counts it for each token
OF_ANSWERS = ("scores", "failed", "metrics", "environment")  #: tables with a value for each completion
_TABLES = (*OF_ANSWERS, "columns")
