"""Tokens/s of the engine `local` under 64 clients at once, beside the generator called directly and transformers' `generate`.

The model is the 30M Qwen3 of `peers.shape` with random weights, in fp32, greedy; every request has a prompt and a length of its
own, and all sides get the same ones. Replies are compared. A client that has its reply asks the next request of the list, so
that there are 64 until the list ends. The generator has all prompts at once; transformers has them in batches of 64, and goes
on until the longest reply of a batch is done. Clients come over HTTP as well, as streams of the server in this process. With
adapters and with deltas every client is another tenant. Sides take turns; a figure is the median. A quick run counts the
seconds that the processor worked, on one thread, so that it may share the machine.
"""

from __future__ import annotations

import random
import shutil
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import peers.passive  # noqa: F401
import torch
from deltas import logits, turns
from peers.clients import Answers, Clock, engine_of, streamed, submitted
from peers.shape import SMALL
from peers.tenants import Folder, base, dense
from report import Report, main
from transformers import PreTrainedModel

from gym_adapters import LoRA
from gym_bitdelta.delta import file
from gym_bitdelta.runtime.tenant_model import TenantModel
from gym_bitdelta.store import VariantStore
from gym_core import Artifact
from gym_data.location import locate
from gym_serve.contract import ModelSource, Request, Sampling
from gym_torch.checkpoints.base_fingerprint import base_fingerprint
from gym_torch.checkpoints.tokenizer_files import copy_tokenizer
from gym_torch.generation.generator import Generator
from gym_torch.kernels.fused_modules import fuse
from gym_torch.model.adapted import build_adapter

CLIENTS, ROUNDS, RANK = 64, 4, 8
LENGTH = (16, 96)  #: tokens of prompts, uniform
LIMITS, MEDIAN, SPREAD = (16, 256), 45, 0.9  #: tokens of replies, log-normal


def requests(quick: bool) -> list[Request]:
    """Return what the clients ask."""
    draws, found = random.Random(0), []
    low, high = (each // 2 if quick else each for each in LIMITS)
    for _ in range(CLIENTS * (2 if quick else ROUNDS)):
        prompt = tuple(draws.randrange(256) for _ in range(draws.randint(*LENGTH)))
        limit = round(MEDIAN * draws.lognormvariate(0.0, SPREAD)) // (2 if quick else 1)
        sampling = Sampling(max_tokens=min(high, max(low, limit)), temperature=0.0, ignore_eos=True)
        found.append(Request("model", tokens=prompt, sampling=sampling))
    return found


def write(into: Path) -> Path:
    """Write the model with a tokenizer."""
    model = base(torch.float32)
    model.save_pretrained(into)
    copy_tokenizer(locate("tiny"), into)
    (into / "generation_config.json").unlink(missing_ok=True)
    return into


def adapters(model: PreTrainedModel, path: Path, into: Path, count: int) -> dict[str, str]:
    """Write adapters of random values: what they hold makes no step faster."""
    first = into / "0"
    first.mkdir(parents=True)
    made: Artifact = build_adapter(LoRA(rank=RANK), model).save(first, str(path))
    Artifact(first, made.kind, str(path), made.details).record()
    for number in range(1, count):
        shutil.copytree(first, into / str(number))
    return {f"user{number}": str(into / str(number)) for number in range(count)}


def deltas(model: PreTrainedModel, path: Path, into: Path, count: int) -> Path:
    """Write a store of users, each with a compressed delta of one bit."""
    own = base_fingerprint(path)
    with VariantStore(into / "store") as store:
        for number in range(count):
            folder = into / str(number)
            folder.mkdir(parents=True)
            file.write(folder / file.NAME, of_base(dense(model, number), own))
            store.create(f"user{number}", Artifact(folder, "delta", str(path), {"delta": "gym_bitdelta:BitDelta"}))
    return into / "store"


def of_base(delta: file.Delta, own: str) -> file.Delta:
    """Return a delta as one of another base."""
    return file.made(own, delta.records, {}, {})


def direct(model: PreTrainedModel, asked: Sequence[Request]) -> Answers:
    """Call the generator with all prompts."""
    generator = Generator(model, None, CLIENTS)
    clock = Clock()
    made = generator.generate(
        [request.tokens or () for request in asked],
        [request.sampling.max_tokens or 1 for request in asked],
        stop_ids=(),
    )
    took, tokens = clock.read(), [each.tokens for each in made]
    return Answers(took, [], tokens, list(map(len, tokens)))


def transformers(model: PreTrainedModel, asked: Sequence[Request]) -> Answers:
    """Call `generate` with one batch after another; what is past a limit does not count."""
    clock, found = Clock(), list[list[int]]()
    for start in range(0, len(asked), CLIENTS):
        batch = asked[start : start + CLIENTS]
        prompts = [list(request.tokens or ()) for request in batch]
        limits = [request.sampling.max_tokens or 1 for request in batch]
        width, most = max(map(len, prompts)), max(limits)
        tokens = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        made = model.generate(
            input_ids=tokens, attention_mask=mask, max_new_tokens=most, min_new_tokens=most, do_sample=False, pad_token_id=0
        )  # fmt: skip
        found += [row[width : width + limit] for row, limit in zip(made.tolist(), limits, strict=True)]
    return Answers(clock.read(), [], found, list(map(len, found)))


def in_turn(
    sides: Mapping[str, Callable[[], Answers]], rounds: int, quick: bool
) -> tuple[dict[str, float], dict[str, Answers]]:
    """Return the median tokens/s of each side, and what it answered last."""
    speeds: dict[str, list[float]] = {name: [] for name in sides}
    last: dict[str, Answers] = {}
    for _ in range(rounds):
        for name, side in sides.items():
            last[name] = side()
            speeds[name].append(last[name].speed(worked=quick))
    return {name: round(statistics.median(each), 1) for name, each in speeds.items()}, last


def equal(one: Answers, other: Answers) -> int:
    """Return how many replies are the same, token by token."""
    return sum(left == right for left, right in zip(one.tokens, other.tokens, strict=True))


def clients(report: Report, quick: bool) -> None:
    """Compare the engine with the generator and with transformers."""
    torch.set_num_threads(1 if quick else 2)
    asked = requests(quick)
    with tempfile.TemporaryDirectory() as scratch:
        path, model = write(Path(scratch)), base(torch.float32)
        with engine_of(ModelSource("model", str(path)), CLIENTS) as engine:
            warm = [replace(each, sampling=replace(each.sampling, max_tokens=2)) for each in asked[:4]]
            for side in (submitted, streamed):
                side(engine, warm, CLIENTS)
            direct(model, warm)
            sides = {
                "engine": partial(submitted, engine, asked, CLIENTS),
                "generator": partial(direct, model, asked),
                "http": partial(streamed, engine, asked, CLIENTS),
                "transformers": partial(transformers, model, asked),
            }
            speeds, answers = in_turn(sides, 1 if quick else 2, quick)
    report.figures["tokens_per_second"] = speeds
    for name in ("engine", "http"):
        first = sorted(answers[name].first)
        report.figures[f"seconds_to_first_token, {name}"] = {
            "p50": round(first[len(first) // 2], 3), "p99": round(first[int(len(first) * 0.99)], 3)
        }  # fmt: skip
        report.check(
            f"tokens/s of {name} against the generator", round(speeds[name] / speeds["generator"], 2), at_least=0.9
        )
    report.check("tokens/s against transformers", round(speeds["engine"] / speeds["transformers"], 2), at_least=3)
    report.check(
        "replies equal to the generator's", equal(answers["engine"], answers["generator"]), at_least=len(asked)
    )
    report.check(
        "replies equal to transformers'", equal(answers["engine"], answers["transformers"]), at_least=len(asked)
    )
    whole = sum(request.sampling.max_tokens or 0 for request in asked)
    report.check("tokens of all replies over HTTP", sum(answers["http"].counts), at_least=whole)


def low_rank(report: Report, quick: bool) -> None:
    """Compare 64 adapters with one adapter."""
    torch.set_num_threads(1 if quick else 2)
    asked = requests(quick)
    with tempfile.TemporaryDirectory() as scratch:
        path = write(Path(scratch) / "model")
        users = adapters(base(torch.float32), path, Path(scratch) / "users", CLIENTS)
        mixed = [replace(each, tenant=f"user{at % CLIENTS}") for at, each in enumerate(asked)]
        one = [replace(each, tenant="user0") for each in asked]
        with engine_of(ModelSource("model", str(path), adapters=users), CLIENTS) as engine:
            submitted(
                engine, [replace(each, sampling=replace(each.sampling, max_tokens=2)) for each in mixed[:4]], CLIENTS
            )
            sides = {
                "base": partial(submitted, engine, asked, CLIENTS),
                "one adapter": partial(submitted, engine, one, CLIENTS),
                f"{CLIENTS} adapters": partial(submitted, engine, mixed, CLIENTS),
            }
            speeds, _ = in_turn(sides, 1 if quick else 2, quick)
    report.figures[f"tokens_per_second, rank {RANK}"] = speeds
    ratio = round(speeds["one adapter"] / speeds[f"{CLIENTS} adapters"], 2)
    report.check(f"time of {CLIENTS} adapters against one", ratio, at_most=1.3)


@torch.no_grad()
def compressed(report: Report, quick: bool) -> None:
    """Compare 64 deltas with the base, served and as single passes of `benchmarks/deltas.py`."""
    torch.set_num_threads(1 if quick else 2)
    asked, names = requests(quick), [f"user{number}" for number in range(CLIENTS)]
    with tempfile.TemporaryDirectory() as scratch:
        path, model = write(Path(scratch) / "model"), base(torch.float32)
        store = deltas(model, path, Path(scratch) / "users", CLIENTS)
        mixed = [replace(each, tenant=names[at % CLIENTS]) for at, each in enumerate(asked)]
        with engine_of(ModelSource("model", str(path), tenants=store), CLIENTS) as engine:
            submitted(engine, [replace(each, sampling=replace(each.sampling, max_tokens=1)) for each in mixed], CLIENTS)
            sides = {
                "base": partial(submitted, engine, asked, CLIENTS),
                f"{CLIENTS} deltas": partial(submitted, engine, mixed, CLIENTS),
            }
            speeds, _ = in_turn(sides, 1 if quick else 2, quick)
        fuse(model)  # as the engine does
        folder = Folder(Path(scratch))
        for number, name in enumerate(names):
            folder.write(name, dense(model, number))
        served = TenantModel(model, folder, "0" * 64, prepared_bytes=2**31)
        steps = {}
        draws = torch.Generator().manual_seed(1)
        with served.lease(names) as lease:
            for rows, length in ((CLIENTS, 1), (CLIENTS // 4, 1), (16, sum(LENGTH) // 2)):
                tokens = torch.randint(0, SMALL, (rows, length), generator=draws)
                one = {"mixed": partial(logits, served, lease, names[:rows], tokens), "base": partial(model, tokens)}
                took = turns(one, 3 if quick else 9)
                steps[f"{rows} x {length}"] = round(took["mixed"] / took["base"], 2)
        served.close()
    report.figures["tokens_per_second, deltas of one bit"] = speeds
    report.figures["times the base alone, single passes"] = steps
    ratio = round(speeds["base"] / speeds[f"{CLIENTS} deltas"], 2)
    report.check(
        "time of 64 deltas against the base, of that of single passes", round(ratio / max(steps.values()), 2), at_most=1
    )


def measure(report: Report, quick: bool) -> None:
    """Measure everything; a quick run has replies of half the length, and one thread."""
    for part in (clients, low_rank, compressed):
        part(report, quick)


if __name__ == "__main__":
    main(measure, __doc__ or "", clients=clients, adapters=low_rank, deltas=compressed)
