"""Prints a plan as tables."""

from __future__ import annotations

from datetime import timedelta

from rich.console import Console
from rich.table import Table

from gym_plan.plan import Plan


def show(plan: Plan) -> None:
    """Print a plan as tables of a few lines."""
    console, memory = Console(highlight=False), plan.memory
    share = plan.trainable / plan.parameters
    rows = [
        ("parameters", f"{plan.parameters:,}", ""),
        ("trained", f"{plan.trainable:,}", f"{share:.2%} of them, in fp32"),
        *([("adapter", "", plan.adapter)] if plan.adapter else []),
        ("", "", ""),
        ("weights", size(memory.weights), ""),
        ("gradients", size(memory.gradients), "held at once"),
        ("optimizer state", size(memory.optimizer), ""),
        ("activations", size(memory.activations), _rows(plan)),
        ("head", size(memory.head), "one chunk of logits, forward and backward"),
        ("predicted peak", size(memory.peak), _verdict(plan)),
        ("", "", ""),
        ("checkpoints", size(plan.checkpoints * plan.checkpoint_bytes), _checkpoints(plan)),
        ("final model", size(plan.model_bytes), ""),
        ("", "", ""),
        ("steps", "unknown" if plan.steps is None else f"{plan.steps:,}", ""),
        ("tokens", "unknown" if plan.tokens is None else f"{plan.tokens:,}", "padding not counted"),
        ("time", "unknown" if plan.seconds is None else f"{timedelta(seconds=round(plan.seconds))}", _speed(plan)),
    ]
    table = Table.grid(padding=(0, 2))
    for justify in ("left", "right", "left"):
        table.add_column(justify=justify)  # type: ignore[arg-type]
    for name, value, remark in rows:
        table.add_row(name, value, remark, style="bold" if name == "predicted peak" else None)
    console.print(table)
    console.print(f"planned for {plan.based_on}", markup=False, soft_wrap=True)
    if memory.peak > plan.room:
        console.print(advice(plan), markup=False, soft_wrap=True)


def size(count: float) -> str:
    """Return bytes as people read them."""
    unit, name = next(
        ((2**power, name) for power, name in ((40, "TiB"), (30, "GiB")) if count >= 2**power), (2**20, "MiB")
    )
    return f"{count / unit:,.1f} {name}"


def _rows(plan: Plan) -> str:
    shared = f", shared by {plan.context_parallel_size} processes" if plan.context_parallel_size > 1 else ""
    return f"{plan.rows} x {plan.length:,} tokens{shared}, {plan.precision}"


def _verdict(plan: Plan) -> str:
    at_hand = size(plan.available)
    each = f" in each of {plan.processes} processes" if plan.processes > 1 else ""
    if plan.memory.peak <= plan.room:
        return f"fits{each}: this machine has {at_hand}"
    return f"does not fit: tensors may take {size(plan.room)} of the {at_hand} of this machine{each}"


def advice(plan: Plan) -> str:
    """Return what to change in the recipe so that the largest part of the memory becomes smaller."""
    memory = plan.memory
    if memory.activations + memory.head > memory.weights + memory.gradients + memory.optimizer:
        again = "" if plan.gradient_checkpointing else " train.gradient_checkpointing: true, or"
        return f"activations take the most: set{again} train.batch_tokens: auto"
    if memory.gradients + memory.optimizer > memory.weights / 4:
        return "what trains takes the most: set adapter: lora, or optimizer: adamw_8bit"
    return "weights take the most: set model.quantization: bnb_4bit, or take a smaller model"


def _checkpoints(plan: Plan) -> str:
    return f"at most {plan.checkpoints} at once, {size(plan.checkpoint_bytes)} each"


def _speed(plan: Plan) -> str:
    rate = plan.flops_per_second
    return (
        f"at least, on this machine ({plan.device}): {plan.flops_per_token:.3g} FLOP a token, {rate / 1e9:,.0f} GFLOP/s"
    )
