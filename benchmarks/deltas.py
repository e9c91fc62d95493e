"""A batch with a compressed delta for each row, against the base, copied weights, merged models, dense deltas and peft.

The model is the 30M Qwen3 of `peers.shape`. Deltas are random codes with scales of the size of a fine-tune: speed does not
depend on them. A tenant has all linear layers in one bit with rank-1 scales, and norms as they are; its embeddings are those of
the base. Peers compute the same with the same numbers, and logits are compared. Sides take turns; a figure is the ratio of the
medians of their times. A part runs by itself with its name, such as `--peers`.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import peers.passive  # noqa: F401
import torch
from peers.shape import SMALL
from peers.tenants import BASE, RANK, Folder, base, dense, low_rank, matrices, plus_dense
from report import Measure, Report, main
from torch import Tensor
from transformers import AutoModelForCausalLM

from gym_bitdelta.delta import file
from gym_bitdelta.runtime import c_products
from gym_bitdelta.runtime.tenant_model import Lease, TenantModel

TENANTS = 32
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
BOUNDS = {"fp32": 4, "bf16": 6}  #: times the base alone, with a compiled kernel
PAUSE = 0.004  #: seconds between steps whose 99th percentile counts: Linux stops a process of real-time priority that has none
TORCH = 25  #: the same, with operations of torch

Part = Callable[[Report, Folder, bool], None]


def turns(sides: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median milliseconds of each side, after one round that does not count."""
    took: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, side in sides.items():
            began = time.perf_counter()
            side()
            took[name] += [1e3 * (time.perf_counter() - began)] if number else []
    return {name: statistics.median(each) for name, each in took.items()}


def off(found: Tensor, wanted: Tensor) -> float:
    """Return the largest difference, in parts of the largest number."""
    return float((found.float() - wanted.float()).abs().max() / wanted.float().abs().max())


def logits(served: TenantModel, lease: Lease, rows: Sequence[str | None], tokens: Tensor) -> Tensor:
    """Return the logits of a mixed batch."""
    with lease.serving(rows):
        return served.model(tokens).logits


def kernels() -> list[str]:
    """Return the kernels of this machine, fastest first."""
    library = c_products.library()
    return [*(library.names if library else ()), "torch"]


@torch.no_grad()
def against_the_base(report: Report, folder: Folder, quick: bool) -> None:
    """Compare a step of 32 rows, and a prefill of 8 x 64 tokens, with the base alone, for each precision and kernel."""
    names = [f"u{number}" for number in range(TENANTS)]
    draws = torch.Generator().manual_seed(1)
    work = {
        "32 rows of 32 tenants": torch.randint(0, SMALL, (TENANTS, 1), generator=draws),
        "512 tokens of 8 tenants": torch.randint(0, SMALL, (8, 64), generator=draws),
    }
    for precision, dtype in DTYPES.items():
        for kernel in kernels()[:: 3 if quick else 1]:
            served = TenantModel(base(dtype), folder, BASE, kernel=kernel)
            for what, tokens in work.items():
                with served.lease(names) as lease:
                    sides = {
                        "mixed": partial(logits, served, lease, names[: len(tokens)], tokens),
                        "base": partial(served.model, tokens),
                    }
                    took = turns(sides, 5 if quick else 15)
                report.figures[f"{what}, {precision}, {kernel}"] = {key: round(value, 2) for key, value in took.items()}
                bound = TORCH if kernel == "torch" else BOUNDS[precision]
                ratio = round(took["mixed"] / took["base"], 2)
                report.check(f"{what}: times the base alone, {precision}, {kernel}", ratio, at_most=bound)
            served.close()


@torch.no_grad()
def against_peers(report: Report, folder: Folder, quick: bool) -> None:
    """Compare a step in fp32 with copying weights into one model, with merged models, and with dense deltas row by row."""
    count = TENANTS
    names = [f"u{number}" for number in range(count)]
    tokens = torch.randint(0, SMALL, (count, 1), generator=torch.Generator().manual_seed(2))
    served = TenantModel(base(torch.float32), folder, BASE)
    plain = dict(served.model.named_parameters())
    changes = [{key: each.values() for key, each in file.read(folder(name)).records.items()} for name in names]

    def compare(name: str, side: Callable[[], object], bound: float, wanted: Tensor) -> None:
        took = turns({"mixed": mixed, name: side}, 3 if quick else 7)
        report.figures[f"{name}, {count} tenants, fp32, {served.products.name}"] = {
            k: round(v, 2) for k, v in took.items()
        }
        report.check(
            f"times faster than {name}, fp32, {served.products.name}",
            round(took[name] / took["mixed"], 2),
            at_least=bound,
        )
        report.check(f"logits against {name}, of the largest", off(mixed(), wanted), at_most=1e-5)

    with served.lease(names) as lease:
        mixed = partial(logits, served, lease, names, tokens)
        rowwise = partial(plus_dense(base(torch.float32), changes), tokens)
        compare("dense deltas row by row", rowwise, 4, rowwise().logits)
        for change in changes:
            for key, weight in change.items():
                weight += plain[key]
        one = base(torch.float32)
        target = dict(one.named_parameters())

        def copied() -> Tensor:
            found = []
            for row, change in enumerate(changes):
                for key, weight in change.items():
                    target[key].copy_(weight)
                found.append(one(tokens[row : row + 1]).logits)
            return torch.cat(found)

        compare("copying weights into one model", copied, 8, copied())
        several = []
        for change in changes:
            model = AutoModelForCausalLM.from_config(served.model.config, attn_implementation="sdpa").eval()
            model.load_state_dict(dict(one.state_dict()) | change, assign=True)  # embeddings are shared
            several.append(model)

        def merged() -> Tensor:
            return torch.cat([model(tokens[row : row + 1]).logits for row, model in enumerate(several)])

        compare("merged models held in memory", merged, 3, merged())
    served.close()


@torch.no_grad()
def against_peft(report: Report, folder: Folder, quick: bool) -> None:
    """Compare low-rank deltas with a mixed batch of peft's adapters of the same numbers."""
    from peft import LoraConfig, get_peft_model

    count = 8 if quick else TENANTS
    names = [f"l{number}" for number in range(count)]
    served = TenantModel(base(torch.float32), folder, BASE)
    layers = [name.removesuffix(".weight").rpartition(".")[2] for name in matrices(served.model)]
    config = LoraConfig(r=RANK, lora_alpha=RANK, target_modules=sorted(set(layers)))
    peer = get_peft_model(base(torch.float32), config, names[0]).eval()
    for name in names[1:]:
        peer.add_adapter(name, config)
    modules = dict(peer.base_model.model.named_modules())
    for name in names:
        for key, record in file.read(folder(name)).records.items():
            left, right = record.factors()
            layer = modules[key.removesuffix(".weight")]
            layer.lora_B[name].weight.copy_(left[0].T)
            layer.lora_A[name].weight.copy_(right[0])
    for what, length in (("step", 1), ("prefill of 16 tokens", 16)):
        tokens = torch.randint(0, SMALL, (count, length), generator=torch.Generator().manual_seed(3))
        with served.lease(names) as lease:
            mixed = partial(logits, served, lease, names, tokens)
            theirs = partial(peer, input_ids=tokens, adapter_names=names)
            took = turns({"mixed": mixed, "peft": theirs}, 3 if quick else 9)
            report.figures[f"peft, {what}, {count} tenants of rank {RANK}, fp32, {served.products.name}"] = {
                key: round(value, 2) for key, value in took.items()
            }
            report.check(
                f"{what}: times faster than peft's mixed batch", round(took["peft"] / took["mixed"], 2), at_least=1
            )
            report.check(f"{what}: logits against peft, of the largest", off(mixed(), theirs().logits), at_most=1e-5)
    served.close()


@torch.no_grad()
def many(report: Report, folder: Folder, quick: bool) -> None:
    """Serve a thousand tenants in turn within a budget that holds a part of them."""
    count, budget = (100 if quick else 1000), 32 * 2**20 if quick else 128 * 2**20
    made = base(torch.float32)
    for number in range(TENANTS, count):
        folder.write(f"l{number}", low_rank(made, number))
    served = TenantModel(made, folder, BASE, packed_bytes=budget, prepared_bytes=budget)
    began, tokens = time.perf_counter(), torch.randint(0, SMALL, (TENANTS, 1))
    for start in range(0, count - TENANTS + 1, TENANTS):
        with served.serving([f"l{number}" for number in range(start, start + TENANTS)]):
            served.model(tokens)
    seconds = time.perf_counter() - began
    tiers = (served.tiers.packed, served.tiers.prepared)
    each = [tier.bytes / len(tier) for tier in tiers]
    report.figures[f"{count} tenants of rank {RANK}, from the disk, {TENANTS} a batch"] = {
        "milliseconds_a_tenant": round(1e3 * seconds / count, 2), "file_bytes": folder("l0").stat().st_size,
        "packed_bytes": round(each[0]), "prepared_bytes": round(each[1]), "budget_bytes": budget,
        "held": [len(tier) for tier in tiers],
    }  # fmt: skip
    report.check("most bytes held, of the budget", round(max(tier.peak for tier in tiers) / budget, 3), at_most=1)
    served.close()


@torch.no_grad()
def while_loading(report: Report, folder: Folder, quick: bool) -> None:
    """Compare the 99th percentile of steps while tenants are read one after another with that of steps while none is."""
    served = TenantModel(base(torch.float32), folder, BASE, prepared_bytes=2**28)
    names, other = [f"u{number}" for number in range(8)], "u9"
    tokens = torch.randint(0, SMALL, (len(names), 1))
    took: dict[bool, list[float]] = {False: [], True: []}
    loads = 0
    with served.lease(names) as lease:
        for number in range((10 if quick else 40) * 2):
            loading = bool(number % 2)
            for step in range(20):
                if loading and step % 10 == 0:
                    served.forget(other)
                    served.warm(other)
                    loads += 1
                time.sleep(PAUSE)
                began = time.perf_counter()
                logits(served, lease, names, tokens)
                took[loading].append(1e3 * (time.perf_counter() - began))
            served.warm(other).result()
    p99 = {side: sorted(each)[int(len(each) * 0.99)] for side, each in took.items()}
    report.figures["steps of 8 tenants, fp32"] = {
        "p99_quiet": round(p99[False], 2), "p99_loading": round(p99[True], 2), "loads": loads,
        "median_quiet": round(statistics.median(took[False]), 2), "median_loading": round(statistics.median(took[True]), 2),
    }  # fmt: skip
    report.check("p99 of a step while a tenant is read", round(p99[True] / p99[False], 2), at_most=1.5)
    served.close()


def measured(*parts: Part) -> Measure:
    """Return what makes the tenants, then compares in these parts."""

    def measure(report: Report, quick: bool) -> None:
        torch.set_num_threads(2)
        with tempfile.TemporaryDirectory() as path:
            folder, model = Folder(Path(path)), base(torch.float32)
            for number in range(TENANTS):
                folder.write(f"u{number}", dense(model, number))
                folder.write(f"l{number}", low_rank(model, number))
            for part in parts:
                part(report, folder, quick)

    return measure


PARTS = {
    "base": against_the_base,
    "loading": while_loading,
    "many": many,
    "peft": against_peft,
    "peers": against_peers,
}


if __name__ == "__main__":
    main(measured(*PARTS.values()), __doc__ or "", **{name: measured(part) for name, part in PARTS.items()})
