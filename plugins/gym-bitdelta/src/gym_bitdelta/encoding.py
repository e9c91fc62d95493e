"""What a fine-tune changed in each weight of a model, coded: which weights are matrices of layers, and how each is coded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from gym_bitdelta.config.base import DeltaOptions
from gym_bitdelta.delta import records
from gym_bitdelta.delta.header import LowRank, data_bytes
from gym_bitdelta.delta.records import Record
from gym_bitdelta.fit import low_rank_factors
from gym_bitdelta.fit.encode_weight import Calibrated, changed_rows, encode, least_bytes, squared_error
from gym_bitdelta.fit.low_rank_factors import Ranked
from gym_bitdelta.fit.quant_scheme import EMBEDDINGS, Coding
from gym_bitdelta.mixed import Choice, within
from gym_core import GymError
from gym_quant.post_training.calibration import Rows
from gym_quant.post_training.walk import Walk, raised
from gym_torch.checkpoints import weight_shards
from gym_torch.model.decoder_layers import layers_of
from gym_torch.model.mapped_weights import release
from gym_torch.quantization.expert_layer import runs_beside
from gym_torch.quantization.quantizable_weights import routing


class Role(NamedTuple):
    """What a weight is in its model."""

    matrix: bool = False  #: of a layer, or a stack of them: it is coded as the options say
    end: bool = False  #: an embedding, or the head
    transposed: bool = False  #: `[..., in, out]`


def roles(model: PreTrainedModel) -> dict[str, Role]:
    """Return what each weight is, by name: known from the modules, not from names."""
    head, routers = model.get_output_embeddings(), routing(model)
    found = {}
    for path, module in model.named_modules():
        end = isinstance(module, nn.Embedding) or module is head
        for own, weight in module.named_parameters(recurse=False):
            turned = isinstance(module, Conv1D) or (weight.dim() == 3 and runs_beside(module) and module.is_transposed)
            matrix = weight.dim() in (2, 3) and not end and id(weight) not in routers
            found[f"{path}.{own}" if path else own] = Role(matrix, end, bool(turned))
    return found


@dataclass
class Encoder:
    """Codes what a fine-tuned model has in other numbers than its base."""

    config: DeltaOptions
    base: PreTrainedModel
    tuned: PreTrainedModel
    ranked: Ranked | None = None  #: how a change of low rank is coded; None: as any other
    errors: dict[str, float] = field(default_factory=dict)  #: relative squared error of each weight that changed
    choices: dict[str, list[Choice]] = field(default_factory=dict)  #: of weights for which a budget decides
    _apart: frozenset[str] = frozenset()  #: names that are tied to others in the base

    def records(self, samples: Rows | None) -> dict[str, Record]:
        """Return the records of all weights; with samples, codes are chosen for the outputs that these make.

        Raises GymError where the two models are not of one architecture, or an option names matrices that they do not have.
        """
        self._check()
        self._check_patterns()
        self._apart = frozenset(self.base.state_dict()) - weight_shards.own_weights(self.base).keys()
        own, every = self._weights(), roles(self.tuned)
        names = [name for name in own if own[name].is_floating_point()]
        found: dict[str, Record] = {}
        for inputs in self._inputs(samples):
            for name, known in inputs.items():
                found[name] = self._record(name, every[name], known)
        for name in names:
            if name not in found:
                found[name] = self._record(name, every.get(name, Role()), None)
        if self.choices:
            found |= within(self.config, found, self.choices, changed_config(self.base.config, self.tuned.config))
            self.errors |= {name: squared_error(self.change(name), found[name]) for name in self.choices}
        return {name: found[name] for name in names}

    def measure(self, records: Mapping[str, Record]) -> None:
        """Measure the errors of other records of the same change, such as scaled ones."""
        self.errors = {name: squared_error(self.change(name), records[name]) for name in self.errors}

    def change(self, name: str) -> Tensor:
        """Return what a weight changed by, in fp32; rows that the base does not have changed from zero."""
        before, after = self.base.state_dict()[name], self.tuned.state_dict()[name]
        change = after.detach().float().clone()
        change[: len(before)] -= before[: len(after)].float()
        for weight in (before, after):
            release(weight)
        return change

    def _weights(self) -> dict[str, Tensor]:
        """Return the weights that either model has: what only the fine-tune ties is a weight of its own in the base."""
        whole = self.tuned.state_dict()
        kept = [name for name in weight_shards.own_weights(self.base) if name in whole]
        return weight_shards.own_weights(self.tuned) | {name: whole[name] for name in kept}

    def _record(self, name: str, role: Role, known: Calibrated | None) -> Record:
        change = self.change(name)
        if not change.isfinite().all():
            raise GymError(f"{name} is not finite", where=self.tuned.name_or_path)
        if not change.any() and name in self._apart:  # it is tied in the base, and its other end may have changed
            return records.raw(change, torch.empty(0, dtype=torch.int64))
        record = self.coded(change, role, self.config.coding(name), known, self.config.fixed_bits(name) is not None)
        if role.matrix and change.any() and (ways := self.config.choices(name)):
            coded = [self._way(change, role, bits, way, known) for bits, way in ways.items()]
            coded += [record] if isinstance(record.entry, LowRank) else []
            self.choices[name] = [_choice(change, each, known) for each in coded]
        if change.any():
            self.errors[name] = squared_error(change, record)
        return record

    def coded(
        self, change: Tensor, role: Role, coding: Coding | None, known: Calibrated | None = None, fixed: bool = False
    ) -> Record:
        """Return a change as the record that is the smallest of those that may be: no factors where its bits are `fixed`."""
        if not change.any():
            return records.zero(tuple(change.shape))
        tried: list[Record] = []
        if self.ranked and not fixed and change.dim() in (2, 3) and (role.matrix or role.end):
            factors = low_rank_factors.factored(records.matrices(change, role.transposed)[1], self.ranked.most_rank)
            if factors is not None:
                found = low_rank_factors.encode(factors, tuple(change.shape), self.ranked, role.transposed)
                if (
                    role.matrix
                    and coding
                    and data_bytes({"": found.entry}) <= least_bytes(change, coding, role.transposed)
                ):
                    return found  # as nearly always: what is larger anyway is not fitted
                tried.append(found)
        if role.matrix and coding:
            tried.append(encode(change, coding, role.transposed, known))
        elif role.end and change.dim() == 2:
            tried.append(_end(change))
        else:
            tried.append(records.raw(change, changed_rows(change)))
        return min(tried, key=lambda record: data_bytes({"": record.entry}))

    def _way(self, change: Tensor, role: Role, bits: int, coding: Coding | None, known: Calibrated | None) -> Record:
        if not bits:
            return records.zero(tuple(change.shape))
        return encode(change, coding, role.transposed, known) if coding else records.raw(change, changed_rows(change))

    def _inputs(self, samples: Rows | None) -> Iterator[dict[str, Calibrated]]:
        """Yield what is known of the inputs of the linear layers, decoder layer by decoder layer."""
        if samples is None:
            return
        every, layers = roles(self.tuned), layers_of(self.tuned)[2]
        prefix = next(name for name, module in self.tuned.named_modules() if module is layers)
        with torch.no_grad():
            walk = Walk(self.tuned, samples)
            for number, original in enumerate(layers):
                layer = raised(original)
                linears = {
                    f"{prefix}.{number}.{name}.weight": module
                    for name, module in layer.named_modules()
                    if isinstance(module, nn.Linear) and every[f"{prefix}.{number}.{name}.weight"].matrix
                }
                found = walk.inputs(number, layer, linears)
                yield {name: Calibrated(known.moments.diagonal(), known.moments) for name, known in found.items()}
                walk.forward(number, layer)

    def _check_patterns(self) -> None:
        names = [name for name, role in roles(self.tuned).items() if role.matrix]
        for pattern, option in self.config.patterns().items():
            if not any(fnmatchcase(name, pattern) for name in names):
                raise GymError(
                    f"`{pattern}` is the pattern of no matrix in a layer",
                    where=self.tuned.name_or_path,
                    key=f"quantization.{option}",
                    fix=f"name such as {', '.join(f'`*.{name}`' for name in _ends(names))}",
                )

    def _check(self) -> None:
        before, after = self.base.state_dict(), self._weights()
        ends = {name for name, role in roles(self.tuned).items() if role.end}
        for name, weight in after.items():
            had = before.get(name)
            if had is None or had.dim() != weight.dim() or had.shape[1:] != weight.shape[1:]:
                wrong = "has no such weight" if had is None else f"has one of shape {list(had.shape)}"
            elif had.shape != weight.shape and name not in ends:
                wrong = f"has one of shape {list(had.shape)}"
            else:
                continue
            raise GymError(
                f"{name} is of shape {list(weight.shape)}, and the base {wrong}",
                where=self.base.name_or_path,
                fix="name the base that the fine-tune began with",
            )


def _ends(names: Sequence[str]) -> list[str]:
    """Return the last parts of names, each once."""
    return list(dict.fromkeys(".".join(name.split(".")[-2:]) for name in names))


def _choice(change: Tensor, record: Record, known: Calibrated | None) -> Choice:
    apart = change - record.values()
    if known is not None:
        apart = apart * known.importance.sqrt()
    return Choice(record, float(apart.square().sum(dtype=torch.float64)))


def _end(change: Tensor) -> Record:
    """Return the record of embeddings or a head: the rows that changed in fp16 where that is smaller than all in 4 bits."""
    plain = records.raw(change, changed_rows(change))
    whole = EMBEDDINGS.largest(tuple(change.shape))
    return plain if data_bytes({"": plain.entry}) <= data_bytes({"": whole}) else encode(change, EMBEDDINGS)


def ranked_of(config: DeltaOptions, adapter: bool) -> Ranked | None:
    """Return how changes of low rank are coded: of adapters alone, for others are hardly ever of one."""
    return Ranked(config.rank_energy, config.rank_bits) if adapter and config.low_rank else None


def changed_config(base: Any, tuned: Any) -> Mapping[str, Any]:
    """Return what the configuration of the fine-tune says in other words, as far as it decides what is computed."""
    before, after = base.get_text_config().to_dict(), tuned.get_text_config().to_dict()
    return {key: value for key, value in after.items() if key not in TOLD_ELSEWHERE and before.get(key) != value}


#: What follows from the weights, or says nothing of what is computed.
TOLD_ELSEWHERE = {
    "_name_or_path", "architectures", "dtype", "torch_dtype", "tie_word_embeddings", "transformers_version", "use_cache",
    "vocab_size",
}  # fmt: skip
