"""What a layer adds for the tenants of its rows: beside its own result, so the base may be quantized in any way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers.pytorch_utils import Conv1D

from gym_bitdelta.runtime.row_tenants import Mixture, Names, active, computing
from gym_bitdelta.runtime.tenant import Tenant, few_rows
from gym_bitdelta.runtime.with_weights import with_weights
from gym_core import GymError
from gym_torch.quantization.weights import Stored


class Layer:
    """Stands in the place of the `forward` of a module of the base, and adds what the tenants of the batch have changed.

    Where the others do not apply: for each tenant on its own rows, with its own weights.
    """

    shared = False  #: whether its input may be one row for all rows of a batch

    def __init__(self, module: nn.Module, place: str, names: Mapping[str, Names]) -> None:
        """Take a module, its place in the model, and the names in the model of each weight that it computes with itself."""
        self.module, self.place, self.names = module, place, names
        self.in_rows = True  #: whether its inputs are those of one row of a batch after another, and can be told apart
        self.together = True  #: the same, also with a cache: whether rows of several tenants are decoded together
        self.own: Callable[..., Any] = module.forward
        self._before = {key: value for key, value in vars(module).items() if key == "forward"}
        module.forward = self

    def remove(self) -> None:
        """Give the module its own `forward` back."""
        vars(self.module).pop("forward", None)
        vars(self.module).update(self._before)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of its weights, by each of their names."""
        stored = self.module.shapes() if isinstance(self.module, Stored) else {}
        shapes = {key: stored.get(key) or self.module.get_parameter(key).shape for key in self.names}
        return {name: tuple(shapes[key]) for key, names in self.names.items() for name in names}

    def __call__(self, *given: Any, **more: Any) -> Any:
        """Compute what the base does, and for the active mixture what its tenants changed."""
        mixture = active(self)
        if mixture is None or not mixture.members or not mixture.concerns(self.place, self.changed_by):
            return self.own(*given, **more)
        if self.in_rows:
            return self.mixed(mixture, *given, **more)
        if mixture.alone:
            return self._as(mixture, mixture.members[0][0], mixture.size, given, more)
        return self._refuse(mixture)

    def changed_by(self, tenant: Tenant) -> bool:
        """Whether a tenant changed one of its weights."""
        return any(tenant.changes(tenant.own(names)) for names in self.names.values())

    def splits(self, given: Sequence[Any], more: Mapping[str, Any], made: Any) -> bool:
        """Whether inputs like these, and what is made of them, are rows that can be computed apart and joined."""
        rows = _rows(given, more)
        found = made if isinstance(made, tuple) else (made,)
        return rows > 0 and all(isinstance(each, Tensor) and each.dim() and len(each) == rows for each in found)

    def mixed(self, mixture: Mixture, *given: Any, **more: Any) -> Any:
        """Compute for a mixture of which some tenant changed a weight of this module."""
        if mixture.alone:
            return self._as(mixture, mixture.members[0][0], mixture.size, given, more)
        rows = _rows(given, more)
        if rows == 0 or rows % mixture.size:
            self._refuse(mixture)
        per = rows // mixture.size

        def part(value: Any, chosen: Tensor) -> Any:
            mine = isinstance(value, Tensor) and value.dim() and len(value) == rows
            return value.unflatten(0, (mixture.size, per))[chosen.to(value.device)].flatten(0, 1) if mine else value

        found, places = [], []
        for tenant, chosen in [*mixture.members, (None, mixture.base)]:
            if len(chosen):
                args, named = (
                    [part(each, chosen) for each in given],
                    {key: part(each, chosen) for key, each in more.items()},
                )
                made = self._as(mixture, tenant, len(chosen), args, named)
                found.append(made if isinstance(made, tuple) else (made,))
                places.append((chosen[:, None] * per + torch.arange(per)).flatten())
        order = torch.cat(places).argsort()
        if any(
            not isinstance(each, Tensor) or len(each) != len(at)
            for all_, at in zip(found, places, strict=True)
            for each in all_
        ):
            self._refuse(mixture)
        joined = tuple(torch.cat(parts)[order.to(parts[0].device)] for parts in zip(*found, strict=True))
        return joined if isinstance(made, tuple) else joined[0]

    def _as(self, mixture: Mixture, tenant: Tenant | None, rows: int, given: Any, more: Mapping[str, Any]) -> Any:
        """Compute some rows with the weights of one tenant, or None for the base; the modules inside do the same."""
        if tenant is None:
            with computing(None):
                return self.own(*given, **more)
        weights, module = {}, self.module
        for key, names in self.names.items():
            name = tenant.own(names)
            change = tenant.change(name, mixture.products) if tenant.changes(name) else None
            if change is not None and isinstance(module, Stored) and key in module.shapes():
                module = module.with_change(key, change.contiguous())
                continue
            base = self.module.get_parameter(key)
            if change is not None and (change.shape != base.shape or not base.is_floating_point()):
                raise GymError(
                    f"{self.place}.{key} of the base has shape {tuple(base.shape)} in {base.dtype}, and no change of "
                    f"shape {tuple(change.shape)} can be added to it",
                    key="tenants",
                )
            if change is not None:
                weights[key] = (base.float() + change.to(base.device)).to(base.dtype)
        with computing(mixture.part(tenant, rows), self):
            return with_weights(module, weights, self.own if module is self.module else None)(*given, **more)

    def _refuse(self, mixture: Mixture) -> NoReturn:
        raise GymError(
            f"{self.place} ({type(self.module).__name__}) was changed by tenants, and how its inputs belong to "
            f"{mixture.size} rows is not known",
            key="tenants",
            fix="give the model batches of one tenant each",
        )


def _rows(given: Sequence[Any], more: Mapping[str, Any]) -> int:
    """Return the length of the first tensor among inputs; 0 where something else than tensors and numbers is among them."""
    inputs = [each for each in [*given, *more.values()] if each is not None]
    first = next((each for each in inputs if isinstance(each, Tensor)), None)
    plain = all(isinstance(each, Tensor | int | float | str) for each in inputs)
    return len(first) if plain and first is not None and first.dim() else 0


class Linear(Layer):
    """A matrix and perhaps a bias: whatever holds the base's weight, products of the change are added to its result."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes that the weights have when they are not quantized."""
        if isinstance(self.module, Conv1D):
            sizes = {"weight": (self.module.nx, self.module.nf), "bias": (self.module.nf,)}
        else:
            sizes = {"weight": (self.module.out_features, self.module.in_features), "bias": (self.module.out_features,)}
        return {name: sizes[key] for key, names in self.names.items() if key in sizes for name in names}

    def splits(self, given: Sequence[Any], more: Mapping[str, Any], made: Any) -> bool:
        """Return True: nothing is computed apart."""
        return True

    def mixed(self, mixture: Mixture, *given: Any, **more: Any) -> Tensor:
        """Add products to the result of the base. Tenants of other vocabularies see theirs alone: the others are -inf."""
        x, result = given[0], self.own(*given, **more)
        per = mixture.per(x.numel() // x.shape[-1], self.place)
        width = mixture.width(self.names["weight"], result.shape[-1])
        shape = (*result.shape[:-1], width)
        y = (pad(result, (0, width - result.shape[-1])) if width > result.shape[-1] else result).contiguous()
        rows, inputs = y.view(mixture.size, per, width), x.contiguous().view(mixture.size, per, -1)
        segments = mixture.segments(self.names["weight"])
        if segments is not None:
            mixture.products.add(rows, inputs, segments.arenas, segments.records, segments.starts, segments.rows)
        for record, chosen in mixture.rest(self.names["weight"]):
            turned = isinstance(self.module, Conv1D)
            outputs, change = (None, record.values()) if turned else few_rows(record)  # whose rows are inputs
            change = (change if turned else change.T).to(x.device)
            outputs = torch.arange(change.shape[1]) if outputs is None else outputs
            place = (chosen[:, None, None], torch.arange(per)[:, None], outputs)
            rows[place] += (inputs[chosen].float() @ change).to(rows.dtype)
        for record, chosen in mixture.rest(self.names.get("bias", ())):
            rows[chosen, :, : record.entry.shape[0]] += record.values().to(rows)
        for chosen, end in mixture.ends(self.names["weight"], result.shape[-1], width):
            rows[chosen, :, end:] = -torch.inf
        return rows.view(shape)


class Lookup(Layer):
    """Rows of a matrix, by number. Numbers that the base does not know give what the tenant's change is there."""

    shared = True  # as positions

    def __init__(self, module: nn.Module, place: str, names: Mapping[str, Names], empty: nn.Module) -> None:
        """Take also a module like it that has no rows."""
        super().__init__(module, place, names)
        self.empty = empty

    def splits(self, given: Sequence[Any], more: Mapping[str, Any], made: Any) -> bool:
        """Return True: nothing is computed apart."""
        return True

    def mixed(self, mixture: Mixture, *given: Any, **more: Any) -> Tensor:
        """Add the changes of the rows that are looked up to the result of the base."""
        (ids,) = (*given, *more.values())
        if ids.shape[0] == 1 and mixture.size > 1:  # positions, which all rows share
            ids = ids.expand(mixture.size, *ids.shape[1:])
        known = self.module.num_embeddings
        result = self.own(ids.clamp(max=known - 1))
        per = mixture.per(ids.numel(), self.place)
        y, places = result.reshape(mixture.size, per, -1), ids.reshape(mixture.size, per)
        y = torch.where(places[..., None] < known, y, 0)
        for chosen, change in self._changes(mixture, places):
            # What the module does with a row of its weight, such as a factor, it does with a change of it.
            with computing(None):
                weight = {"weight": change.to(y.dtype)}
                found = with_weights(self.empty, weight)(torch.arange(len(change), device=ids.device))
            y[chosen] += found.view(len(chosen), per, -1)
        return y.view(*ids.shape, -1)

    def _changes(self, mixture: Mixture, places: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        segments = mixture.segments(self.names["weight"])
        if segments is not None:
            for (tenant, chosen), record in zip(segments.members, segments.records.tolist(), strict=True):
                yield chosen, mixture.products.rows_of(tenant.arena, record, places[chosen].flatten())
        for record, chosen in mixture.rest(self.names["weight"]):
            ids, (held, change) = places[chosen].flatten(), few_rows(record)
            if held is None:
                held = torch.arange(len(change))
            held, change = held.to(ids.device), change.to(ids.device)
            place = torch.searchsorted(held, ids).clamp(max=len(held) - 1)
            yield chosen, change[place] * (held[place] == ids)[:, None]


class Norm(Layer):
    """Something of each row times a weight, and perhaps a bias: both may be a row's own."""

    def __init__(self, module: nn.Module, place: str, names: Mapping[str, Names], plain: nn.Module) -> None:
        """Take also a module like it whose weight is ones."""
        super().__init__(module, place, names)
        self.plain = plain

    def splits(self, given: Sequence[Any], more: Mapping[str, Any], made: Any) -> bool:
        """Whether there is one input, of which nothing is computed apart, or several that can be."""
        return len(given) + len(more) == 1 or super().splits(given, more, made)

    def mixed(self, mixture: Mixture, *given: Any, **more: Any) -> Any:
        """Add what the changes of weight and bias come to."""
        if len(given) + len(more) > 1:  # such as a gate: whether the weight comes after it was not tried
            return super().mixed(mixture, *given, **more)
        (x,) = (*given, *more.values())
        result, width = self.own(x), x.shape[-1]
        per = mixture.per(x.numel() // width, self.place)
        shape = (mixture.size, per, width)
        weight = mixture.added(self.names["weight"], width, result)
        if weight is not None:
            result = (result.reshape(shape) + self.plain(x).reshape(shape) * weight).view(result.shape)
        bias = mixture.added(self.names.get("bias", ()), width, result)
        return result if bias is None else (result.reshape(shape) + bias).view(result.shape)
