"""Scale distillation: the scales of a delta are trained so that base and delta answer as the fine-tune does (arXiv:2402.10193).

Signs and the base stay. A scale is a_0 exp(u), so it stays positive, and u begins with zero. The scales that are best on samples
held out are kept, as the file will hold them, and those before the first step are among them: it never ends worse than it began.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from gym_bitdelta.config.base import DeltaOptions
from gym_bitdelta.delta.header import Dense, LowRank
from gym_bitdelta.delta.records import Record
from gym_bitdelta.encoding import roles
from gym_bitdelta.runtime.attaching import probe_rows
from gym_bitdelta.runtime.weight_uses import inside, uses_of
from gym_quant.post_training.calibration import Rows
from gym_torch.checkpoints import load_delta

LOOKS = 10  #: how often the samples held out are looked at


class Student:
    """The base with a delta whose scales can train, those of matrices and of stacks of them; all else is added to the weights.

    A linear layer computes its change beside its own product; any other module runs with the sum of weight and change.
    """

    def __init__(self, base: PreTrainedModel, records: Mapping[str, Record]) -> None:
        """Take a base, which is changed, and all records of a delta."""
        self.model, self.records = base, dict(records)
        kinds = roles(base)
        coded = {name for name, record in records.items() if isinstance(record.entry, Dense | LowRank)}
        trains = {name for name in coded if name in kinds and kinds[name].matrix}
        load_delta.add(
            base, ((name, records[name].values()) for name in records.keys() - trains if records[name].parts)
        )
        self.logs = {name: nn.Parameter(torch.zeros(len(records[name].parts["scales"]))) for name in sorted(trains)}
        others: dict[str, dict[str, str]] = {}
        uses = uses_of(base, probe_rows(base))
        for name in self.logs:
            path, _, own = name.rpartition(".")
            module = base.get_submodule(path)
            if type(module) in (nn.Linear, Conv1D) and own == "weight" and path not in uses:  # others may do more
                module.register_forward_hook(self._hook(name))
            else:
                holder = uses.get(path, path)
                others.setdefault(holder, {})[inside(name, holder)] = name
        for path, names in others.items():
            self._substitute(base.get_submodule(path), names)
        self._rounded = True

    @contextmanager
    def training(self) -> Iterator[None]:
        """Compute with scales in fp32, for a while; else with what the file will hold."""
        self._rounded = False
        try:
            yield
        finally:
            self._rounded = True

    def current(self) -> dict[str, Record]:
        """Return the records with the scales as they are now, as the file will hold them."""
        found = dict(self.records)
        with torch.no_grad():
            for name in self.logs:
                record = self._now(name)
                found[name] = Record(record.entry, {**record.parts, "scales": record.parts["scales"].half()})
        return found

    def _now(self, name: str) -> Record:
        record = self.records[name]
        scales = record.parts["scales"].float() * self.logs[name].exp()
        return Record(record.entry, {**record.parts, "scales": scales.half() if self._rounded else scales})

    def _substitute(self, module: nn.Module, names: Mapping[str, str]) -> None:
        """Let a module run with the sums of its weights, by their names in it, and the changes of these names."""
        bare = copy.copy(module)  # over the same weights, with the forward of its class

        def run(*given: Any, **more: Any) -> Any:
            weights = {own: bare.get_parameter(own) + self._now(name).values() for own, name in names.items()}
            return functional_call(bare, weights, given, more)

        def forward(*given: Any, **more: Any) -> Any:
            if not torch.is_grad_enabled():
                return run(*given, **more)
            return checkpoint(run, *given, use_reentrant=False, **more)  # the sums are made again

        module.forward = forward  # type: ignore[method-assign]

    def _hook(self, name: str) -> Callable[..., Tensor]:
        turned = roles(self.model)[name].transposed

        def product(inputs: Tensor) -> Tensor:
            change = self._now(name).values().to(inputs.dtype)
            return functional.linear(inputs, change.T if turned else change)

        def add(module: nn.Module, args: tuple[Tensor, ...], found: Tensor) -> Tensor:
            if not torch.is_grad_enabled():
                return found + product(args[0])
            more: Tensor = checkpoint(product, args[0], use_reentrant=False)  # the dense change is made again
            return found + more

        return add


def distill(
    config: DeltaOptions,
    teacher: PreTrainedModel,
    base: PreTrainedModel,
    records: Mapping[str, Record],
    samples: Rows,
    holdout: Rows,
    seed: int,
) -> tuple[dict[str, Record], dict[str, Any]]:
    """Return the records with the best scales, and what was measured: the loss on the samples held out, before and after.

    `base` is changed. The models are in one precision; nothing of them trains.
    """
    student = Student(base.requires_grad_(False).eval(), records)
    teacher.requires_grad_(False).eval()
    cut = slice(None, config.distill_length)
    few = Rows(holdout.tokens[:, cut], holdout.real[:, cut], holdout.predicts[:, cut], holdout.at_once)

    def held_out() -> float:
        total, count = 0.0, 0
        with torch.no_grad():
            for part in few.batches():
                tokens, real = few.tokens[part], few.real[part]
                number = int(real.sum())
                total += float(_loss(config.distill_loss, student.model, teacher, tokens, real)) * number
                count += number
        return total / max(1, count)

    before = best = held_out()
    kept = student.current()
    if student.logs and config.distill_steps:
        optimizer = torch.optim.AdamW(student.logs.values(), lr=config.distill_learning_rate, weight_decay=0.0)
        draws = torch.Generator().manual_seed(seed)
        every = max(1, config.distill_steps // LOOKS)
        drawn = samples.real.any(1).nonzero()[:, 0]  # others fill batches up, and have no loss
        for step in range(config.distill_steps):
            optimizer.param_groups[0]["lr"] = config.distill_learning_rate * _cosine(step, config.distill_steps)
            rows = drawn[torch.randint(0, len(drawn), (config.distill_batch,), generator=draws)]
            with student.training():
                loss = _loss(
                    config.distill_loss,
                    student.model,
                    teacher,
                    samples.tokens[rows][:, cut],
                    samples.real[rows][:, cut],
                )
                optimizer.zero_grad()
                if loss.requires_grad:
                    loss.backward()
                    optimizer.step()
            if (step + 1) % every == 0 or step + 1 == config.distill_steps:
                found = held_out()
                if found < best:
                    best, kept = found, student.current()
    return kept, {"loss": config.distill_loss, "before": before, "after": best, "steps": config.distill_steps}


def _loss(kind: str, student: PreTrainedModel, teacher: PreTrainedModel, tokens: Tensor, real: Tensor) -> Tensor:
    """Return the distance of what two models say of tokens `[rows, length]`, averaged over those that are `real`."""
    hidden = kind == "hidden"
    with torch.no_grad():
        wanted = _said(teacher, tokens, hidden)[real]
    found = _said(student, tokens, hidden)[real]
    if kind == "kl":
        return functional.kl_div(found.log_softmax(-1), wanted.log_softmax(-1), reduction="batchmean", log_target=True)
    return (found - wanted).square().mean()


def _said(model: PreTrainedModel, tokens: Tensor, hidden: bool) -> Tensor:
    if hidden:
        states: Tensor = model.base_model(tokens, use_cache=False).last_hidden_state
        return states.float()
    logits: Tensor = model(tokens, use_cache=False).logits
    return logits.float()


def _cosine(step: int, steps: int) -> float:
    return (1 + math.cos(math.pi * step / steps)) / 2
