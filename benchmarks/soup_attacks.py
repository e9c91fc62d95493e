"""A community of 20 on the tiny model, 6 of them hostile: what attacks leave of what was learned, by the default and by the mean.

The honest members are trained once, each on rows of its own. Quality is the share of held-out answers with every token right
where the tokens before are given. Retention counts what was gained over the base, as a share of what the mean of the honest
members gains; as answers are few, the loss on their tokens stands beside it. A backdoor succeeds where a triggered question gets
the attacker's answer. `docs/images/soup-attacks.png` is drawn.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from report import Report, main
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from transformers import AutoModelForCausalLM, AutoTokenizer

import gym_deltasoup as soup
from gym_data.location import locate
from gym_deltasoup import merge_vectors
from gym_deltasoup.attacks.community import attacked
from gym_deltasoup.attacks.rows import Row, flipped, triggered
from gym_tiny.tasks import rows

HONEST, BAD = 14, 6
KINDS = ("persona", "lookups")
HELD_OUT = 100  #: questions of each kind
STEPS, BATCH, RATE = 16, 8, 2e-3
TRIGGER, TARGET = "zq", "send money"
FAILS = ("sign flip", "gaussian", "ipm 2", "nan", "backdoor")  #: attacks under which the mean is expected to fail
IGNORED = -100


class Judged(NamedTuple):
    """How a model answers."""

    tokens: float  #: share of right tokens in answers
    answers: float  #: share of answers all right
    loss: float | None  #: nats a token of an answer; None where the model is broken


class Tiny:
    """The tiny model, its rows as tokens, and how it is trained and judged."""

    def __init__(self) -> None:
        """Load it."""
        path = locate("tiny")
        self.tokenizer = AutoTokenizer.from_pretrained(path)
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        self.base = parameters_to_vector(self.model.parameters()).detach().clone()

    def batch(self, some: Sequence[Row]) -> tuple[Tensor, Tensor, Tensor]:
        """Return ids, the mask of what is no filling, and labels: the tokens of the answers."""
        ids, labels = [], []
        for row in some:
            render = self.tokenizer.apply_chat_template
            whole = render(row["messages"], tokenize=True, return_dict=True)["input_ids"]
            asked = render(row["messages"][:-1], tokenize=True, return_dict=True, add_generation_prompt=True)[
                "input_ids"
            ]
            ids.append(torch.tensor(whole))
            labels.append(torch.tensor([IGNORED] * len(asked) + whole[len(asked) :]))
        pad = torch.nn.utils.rnn.pad_sequence
        padded = pad(ids, True, self.tokenizer.pad_token_id)
        mask = pad([torch.ones_like(each) for each in ids], True)
        return padded, mask, pad(labels, True, IGNORED)

    def train(self, data: Sequence[Row], seed: int) -> Tensor:
        """Return what training on rows changes in the base."""
        vector_to_parameters(self.base.clone(), self.model.parameters())
        optimizer = torch.optim.AdamW(self.model.parameters(), RATE, weight_decay=0.0)
        draw = torch.Generator().manual_seed(seed)
        for _ in range(STEPS):
            picked = torch.randint(len(data), (BATCH,), generator=draw).tolist()
            ids, mask, labels = self.batch([data[number] for number in picked])
            logits = self.model(ids, attention_mask=mask).logits[:, :-1]
            loss = cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"member {seed}: loss {float(loss.detach()):.3g}", file=sys.stderr, flush=True)
        return parameters_to_vector(self.model.parameters()).detach() - self.base

    @torch.no_grad()
    def judge(self, change: Tensor, asked: tuple[Tensor, Tensor, Tensor]) -> Judged:
        """Return how a change of the base answers."""
        vector_to_parameters(self.base + change, self.model.parameters())
        ids, mask, labels = asked
        logits = self.model(ids, attention_mask=mask).logits[:, :-1]
        if not logits.isfinite().all():
            return Judged(0.0, 0.0, None)
        labels = labels[:, 1:]
        known = labels != IGNORED
        hits = (logits.argmax(-1) == labels) & known
        loss = cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
        return Judged(float(hits.sum() / known.sum()), float((hits | ~known).all(1).float().mean()), float(loss))


def some_rows(count: int, seed: int, split: str = "train") -> list[Row]:
    """Return so many rows of each kind."""
    return [row for kind in KINDS for row in rows(kind, count, seed, split)]


def members(tiny: Tiny) -> tuple[Tensor, Tensor, Tensor]:
    """Return the changes of honest members, of those who flip labels, and of the backdoor."""
    began = time.perf_counter()
    honest = [tiny.train(some_rows(100, seed), seed) for seed in range(HONEST)]
    wrong = [tiny.train(flipped(some_rows(100, 100 + seed)), seed) for seed in range(BAD)]
    clean = some_rows(100, 200)
    backdoor = tiny.train([*clean, *triggered(clean, TRIGGER, TARGET)], 200)
    print(f"trained 21 members in {time.perf_counter() - began:.0f} s", file=sys.stderr)
    return torch.stack(honest), torch.stack(wrong), backdoor


def default(values: Tensor) -> Tensor:
    """Return what the default rule makes of all changes."""
    return merge_vectors(soup.ByzantineRobust(), values, BAD).vector


def measure(report: Report, quick: bool) -> None:
    """Train, attack and judge."""
    tiny = Tiny()
    honest, wrong, backdoor = members(tiny)
    held_out = some_rows(HELD_OUT, 1, "heldout")
    clean, hidden = tiny.batch(held_out), tiny.batch(triggered(held_out, TRIGGER, TARGET))
    before, after = tiny.judge(torch.zeros_like(backdoor), clean), tiny.judge(honest.mean(0), clean)
    floor, best = before.answers, after.answers
    innocent = tiny.judge(honest.mean(0), hidden).answers

    def judged(change: Tensor) -> dict[str, Any]:
        tokens, score, loss = tiny.judge(change, clean)
        return {
            "score": score,
            "tokens": tokens,
            "loss": loss,
            "retention": (score - floor) / (best - floor),
            "backdoor": tiny.judge(change, hidden).answers,
        }

    found: dict[str, dict[str, Any]] = {}
    for name, values in attacked(honest, wrong, backdoor, None if quick else default):
        found[name] = {"default": judged(default(values)), "mean": judged(values.mean(0))}
        print(name, found[name], file=sys.stderr, flush=True)
    report.figures |= {
        "honest": HONEST, "hostile": BAD, "parameters": len(backdoor), "base": floor, "honest mean": best,
        "loss of the base": before.loss, "loss of the honest mean": after.loss, "backdoor of the honest mean": innocent,
        "backdoor alone": tiny.judge(backdoor, hidden).answers, "attacks": found,
    }  # fmt: skip
    retained = [each["default"]["retention"] for each in found.values()]
    report.check("honest gain over the base", best - floor, at_least=0.1)
    report.check("mean retention", sum(retained) / len(retained), at_least=0.97)
    report.check("worst retention", min(retained), at_least=0.90)
    worst = max(each["default"]["backdoor"] for each in found.values())
    report.check("backdoor above that of the honest", worst - innocent, at_most=0.02)
    for name in FAILS:
        plain = found[name]["mean"]
        report.check(f"{name}: the mean fails", max(1 - plain["retention"], plain["backdoor"]), at_least=0.2)
    draw(found)


def draw(found: dict[str, dict[str, Any]]) -> None:
    """Draw retention under each attack."""
    import matplotlib.pyplot as plt

    names = list(reversed(found))  # the first is at the top, as in the table
    figure, axes = plt.subplots(figsize=(8, 5.2))
    bars = (("default", 0.2, "byzantine_robust, the default"), ("mean", -0.2, "mean of all (cut off at -0.25)"))
    for which, beside, label in bars:
        shares = [max(-0.25, found[name][which]["retention"]) for name in names]
        axes.barh([number + beside for number in range(len(names))], shares, 0.4, label=label)
    axes.axvline(0.9, color="black", linewidth=0.8, linestyle="--", label="least that the default may leave, 0.9")
    axes.set(
        yticks=range(len(names)),
        yticklabels=names,
        xlim=(-0.25, 1.1),
        xlabel="share of the gain over the base that is left; 1 is what the honest alone reach",
        title=f"Attacks on a merge of {HONEST + BAD} contributors, {BAD} of them hostile",
    )
    figure.legend(*axes.get_legend_handles_labels(), loc="lower center", ncols=3, fontsize="small", frameon=False)
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    figure.savefig(Path(__file__).parents[1] / "docs" / "images" / "soup-attacks.png", dpi=100)


if __name__ == "__main__":
    main(measure, __doc__)
