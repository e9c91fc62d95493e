"""Compares the losses of files of a LLaMA-Factory checkout with transformers' own on LLaMA-Factory's ids and labels.

    python benchmarks/llamafactory_losses.py CHECKOUT

Its processors make ids and labels of a few rows of its demo data. A plain loop over them, with a model of transformers and
torch's AdamW, is the reference. Of files that train an adapter the first loss counts, since what an adapter draws is drawn
anew; of the others, three. Everything is computed in fp32, and the learning rate stays as it is.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import logsigmoid
from transformers import AutoModelForCausalLM, AutoTokenizer

from gym_core import execute, load_recipe
from gym_testkit import tiny

sys.path.insert(0, str(Path(__file__).parents[1] / "plugins/gym-llamafactory/tests"))
from llamafactory_checkout import processors

ROWS, STEPS, RATE, CUTOFF = 4, 3, 1e-3, 256
FILES = (
    "train_full/qwen3_full_sft",
    "train_lora/qwen3_lora_sft",
    "train_lora/qwen3_lora_sft_ds3",
    "train_lora/qwen3_lora_pretrain",
    "train_lora/qwen3_lora_dpo",
    "train_lora/qwen3_lora_reward",
    "extras/dft/qwen2_full_sft",
    "extras/eaft/qwen25_05b_eaft_full",
    "extras/loraplus/llama3_lora_sft",
    "extras/oft/llama3_oft_sft",
    "extras/pissa/llama3_lora_sft",
    "megatron_bridge/llama3_sft",
)
#: Keys of a file that are replaced: what is computed stays, and fits a comparison.
FIXED: dict[str, Any] = {
    "per_device_train_batch_size": ROWS, "gradient_accumulation_steps": 1, "learning_rate": RATE, "num_train_epochs": STEPS,
    "max_steps": STEPS, "lr_scheduler_type": "constant", "warmup_ratio": 0.0, "warmup_steps": 0, "bf16": False,
    "logging_steps": 1, "cutoff_len": CUTOFF, "disable_shuffling": True, "plot_loss": False, "val_size": 0.0,
}  # fmt: skip
Sample = tuple[list[int], list[int]]
Reference = Callable[[torch.nn.Module, torch.nn.Module, Sequence[Any]], Tensor]


def encoded(theirs: tuple[Any, ...], stage: str, name: str, rows: Sequence[Any], model: Path) -> list[Any]:
    """Return what LLaMA-Factory makes of rows: ids and labels, of pairs both."""
    template, supervised, pairwise, pretrain = theirs
    tokenizer = AutoTokenizer.from_pretrained(model)
    options = SimpleNamespace(
        template=name, tool_format=None, default_system=None, enable_thinking=True, preserve_thinking=False,
        train_on_prompt=False, mask_history=False, cutoff_len=CUTOFF, packing=stage == "pt",
    )  # fmt: skip
    form = template.get_template_and_fix_tokenizer(tokenizer, options)
    form.mm_plugin = template.get_mm_plugin("base")
    if stage == "pt":
        texts = {"_prompt": [[{"role": "user", "content": row["text"]}] for row in rows]}
        blocks = pretrain.PretrainDatasetProcessor(form, tokenizer, None, options).preprocess_dataset(texts)
        return [(ids, [-100, *ids[1:]]) for ids in blocks["input_ids"]]
    if stage in ("dpo", "rm"):
        processor = pairwise.PairwiseDatasetProcessor(form, tokenizer, None, options)
        roles = {"human": "user", "gpt": "assistant"}
        made = []
        for row in rows:
            system = "".join(each["value"] for each in row["conversations"] if each["from"] == "system")
            asked = [each for each in row["conversations"] if each["from"] != "system"]
            prompt = [{"role": roles[each["from"]], "content": each["value"]} for each in asked]
            answers = [{"role": "assistant", "content": row[side]["value"]} for side in ("chosen", "rejected")]
            ids = processor._encode_data_example(prompt, answers, system, "", [], [], [])
            made.append(((ids[0], ids[1]), (ids[2], ids[3])))
        return made
    processor = supervised.SupervisedDatasetProcessor(form, tokenizer, None, options)
    found = []
    for row in rows:
        asked = "\n".join(part for part in (row["instruction"], row["input"]) if part)
        prompt, answer = [{"role": "user", "content": asked}], [{"role": "assistant", "content": row["output"]}]
        found.append(processor._encode_data_example(prompt, answer, "", "", [], [], []))
    return found


def log_probs(model: torch.nn.Module, sample: Sample) -> Tensor:
    """Return the log-probabilities of the labels of a sample."""
    ids, labels = torch.tensor([sample[0]]), torch.tensor(sample[1][1:])
    logits = model(input_ids=ids).logits[0, :-1]
    return logits.log_softmax(1).gather(1, labels.clamp(min=0)[:, None])[:, 0][labels != -100]


def supervised_loss(weigh: Callable[[Tensor, Tensor], Tensor]) -> Reference:
    """Return the mean over all labels of a step, weighted."""

    def loss(model: torch.nn.Module, reference: torch.nn.Module, batch: Sequence[Sample]) -> Tensor:
        total, count = torch.zeros(()), 0
        for ids, labels in batch:
            out = model(input_ids=torch.tensor([ids])).logits[0, :-1]
            wanted = torch.tensor(labels[1:])
            kept = out[wanted != -100]
            surprise = torch.nn.functional.cross_entropy(kept, wanted[wanted != -100], reduction="none")
            total, count = total + (weigh(kept.detach(), surprise.detach()) * surprise).sum(), count + len(kept)
        return total / count

    return loss


def entropy(logits: Tensor, surprise: Tensor) -> Tensor:
    """Return a third of the entropy of the twenty most probable tokens."""
    top = logits.topk(20).values.softmax(1)
    return -(top * top.log()).sum(1) / 3


def preferred(model: torch.nn.Module, reference: torch.nn.Module, batch: Sequence[tuple[Sample, Sample]]) -> Tensor:
    """Return the mean of DPO's loss, with a beta of 0.1."""
    losses = []
    for pair in batch:
        with torch.no_grad():
            known = [log_probs(reference, side).sum() for side in pair]
        chosen, rejected = (log_probs(model, side).sum() - was for side, was in zip(pair, known, strict=True))
        losses.append(-logsigmoid(0.1 * (chosen - rejected)))
    return torch.stack(losses).mean()


class Rewarded:
    """The loss of a reward model, whose value at the last token of a side is its reward; its head begins as zeros."""

    def __init__(self, head: Path) -> None:
        """Take the shapes of a head that a run wrote."""
        found = load_file(head)
        self.weights = [torch.zeros_like(each, dtype=torch.float32).requires_grad_() for each in found.values()]

    def __call__(
        self, model: torch.nn.Module, reference: torch.nn.Module, batch: Sequence[tuple[Sample, Sample]]
    ) -> Tensor:
        """Return the mean over the pairs."""
        matrix = next(each for each in self.weights if each.dim() == 2)
        bias = next((each for each in self.weights if each.dim() == 1), torch.zeros(1))

        def value(sample: Sample) -> Tensor:
            states = model(input_ids=torch.tensor([sample[0]]), output_hidden_states=True).hidden_states[-1]
            return (states[0, -1] @ matrix.T + bias).squeeze()

        return torch.stack([-logsigmoid(value(chosen) - value(rejected)) for chosen, rejected in batch]).mean()


def expected(model: Path, batch: Sequence[Any], loss: Reference, steps: int, beside: Sequence[Tensor]) -> list[float]:
    """Return the losses of a plain loop that trains the model, and what is `beside` it."""
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    reference = copy.deepcopy(policy)
    optimizer = torch.optim.AdamW([*policy.parameters(), *beside], lr=RATE, weight_decay=0.0)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        found = loss(policy, reference, batch)
        found.backward()
        torch.nn.utils.clip_grad_norm_([*policy.parameters(), *beside], 1.0)
        optimizer.step()
        losses.append(found.item())
    return losses


def measured(keys: dict[str, Any], output: Path) -> list[float]:
    """Return the losses that a run of a file logs."""
    done = execute(load_recipe(keys | {"output_dir": str(output)})).output
    return [json.loads(line)["loss"] for line in (done / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def main() -> None:
    """Print the largest difference of each file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    checkout = parser.parse_args().checkout.resolve()
    theirs = processors(checkout)
    os.chdir(checkout)
    info = json.loads((checkout / "data" / "dataset_info.json").read_text(encoding="utf-8"))
    print("| File | Steps | Loss | Largest difference |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        model = tiny.write_model(place / "model", extra=("bos_token", "<|eot_id|>", "<|eom_id|>"))
        for name in FILES:
            keys = yaml.safe_load((checkout / "examples" / f"{name}.yaml").read_text(encoding="utf-8")) | FIXED
            stage = keys["stage"]
            source = {"pt": "c4_demo", "dpo": "dpo_en_demo", "rm": "dpo_en_demo"}.get(stage, "alpaca_en_demo")
            text = (checkout / "data" / info[source]["file_name"]).read_text(encoding="utf-8")
            rows = [json.loads(line) for line in text.splitlines()[:ROWS]] if stage == "pt" else json.loads(text)[:ROWS]
            (place / "rows.json").write_text(json.dumps(rows))
            (place / "dataset_info.json").write_text(json.dumps({"rows": info[source] | {"file_name": "rows.json"}}))
            keys.pop("mixed_precision", None)  # says what `bf16` says
            keys |= {"model_name_or_path": str(model), "dataset": "rows", "dataset_dir": folder}
            batch = encoded(theirs, stage, keys.get("template", "default"), rows, model)
            keys["per_device_train_batch_size"] = len(batch)
            if stage in ("dpo", "rm"):  # the first loss says nothing of the ids
                keys = {key: value for key, value in keys.items() if not key.startswith("lora_")} | {
                    "finetuning_type": "full"
                }
            output = place / name.replace("/", "-")
            found = measured(keys, output)
            loss: Reference = supervised_loss(lambda logits, surprise: torch.ones_like(surprise))
            if keys.get("use_dft_loss"):
                loss = supervised_loss(lambda logits, surprise: (-surprise).exp())
            elif keys.get("use_eaft_loss"):
                loss = supervised_loss(entropy)
            elif stage == "dpo":
                loss = preferred
            elif stage == "rm":
                loss = Rewarded(output / "model" / "value_head.safetensors")
            steps = STEPS if keys["finetuning_type"] == "full" else 1
            wanted = expected(model, batch, loss, steps, loss.weights if isinstance(loss, Rewarded) else ())
            largest = max(abs(a - b) for a, b in zip(found[:steps], wanted, strict=True))
            print(f"| `{name}` | {steps} | {wanted[0]:.4f} to {wanted[-1]:.4f} | {largest:.1e} |", flush=True)


if __name__ == "__main__":
    main()
