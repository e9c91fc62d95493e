"""GPTQ beside its library, gptqmodel: the KL divergence of what each makes of the same model with the same rows and options.

The library needs an environment of its own, whose Python `GYM_GPTQ` names: `nox -s gptq` makes it and runs this. Both round the
packaged model in fp32, with scales in the precision that the library has them in; Gym reads what the library saved.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

import torch
from report import Report, main
from transformers import AutoModelForCausalLM, PreTrainedModel

from gym_core import Artifact, Run, load_recipe
from gym_core.record import RunRecord
from gym_data.location import locate
from gym_quant import GPTQ
from gym_quant.post_training import calibration
from gym_quant.post_training.calibration import Rows
from gym_torch.checkpoints.tokenizer_files import copy_tokenizer
from gym_torch.model import mapped_weights

WORKER = Path(__file__).parent / "peers" / "gptq_library.py"
#: Bits, columns of a group (0: all), and whether columns are rounded in the order of their inputs.
CASES = [(4, 64, True), (4, 64, False), (4, 0, True), (2, 32, True)]
SAMPLES = {"calibration_samples": 128, "holdout_samples": 400}
NEAR = 1.05  #: times the library's divergence


def measure(out: Report, quick: bool) -> None:
    """Quantize in every case, by Gym and by the library, and compare the answers."""
    library = os.environ["GYM_GPTQ"]
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        model = plain(root / "model")
        data = {"sources": [{"name": "tiny-tasks", "count": 3000}]}
        recipe = {"model": str(model), "data": data, "algorithm": "sft", "output": scratch}
        run = Run(load_recipe(recipe), root, RunRecord(root / "run.json"))
        drawn = calibration.draw(GPTQ(**SAMPLES), run, model)
        assert drawn is not None
        (root / "rows.json").write_text(json.dumps(lists(drawn.calibration)), encoding="utf-8")
        before = AutoModelForCausalLM.from_pretrained(model)
        for bits, group, ordered in CASES[: 1 if quick else None]:
            case = (
                f"{bits} bits, groups of {group}, {'columns by their inputs' if ordered else 'columns as they stand'}"
            )
            options = {"bits": bits, "group_size": group, "desc_act": ordered, "sym": True, "damp_percent": 0.01}
            said = options | {"group_size": group or -1}
            spec = {"model": str(model), "rows": str(root / "rows.json"), "dtype": "float32", "options": said}
            theirs = root / f"library-{bits}-{group}-{ordered}"
            subprocess.run(
                [library, str(WORKER), json.dumps(spec | {"output": str(theirs)})], check=True, stdout=2, cwd=root
            )
            ours = root / f"gym-{bits}-{group}-{ordered}"
            GPTQ(**SAMPLES, **options).build().quantize(run, Artifact(model), ours)
            found = {
                name: divergence(before, mapped_weights.load(path, dtype=torch.float32), drawn.holdout)
                for name, path in (("gym", ours), ("library", theirs))
            }
            out.figures[case] = found
            out.check(f"{case}: KL divergence over the library's", found["gym"] / found["library"], at_most=NEAR)


def plain(into: Path) -> Path:
    """Write the packaged model in fp32."""
    AutoModelForCausalLM.from_pretrained(locate("tiny"), dtype=torch.float32).save_pretrained(into)
    copy_tokenizer(locate("tiny"), into)
    return into


def lists(rows: Rows) -> list[list[int]]:
    """Return the tokens of each row without padding."""
    return [tokens[real].tolist() for tokens, real in zip(rows.tokens, rows.real, strict=True) if real.any()]


@torch.no_grad()
def divergence(before: PreTrainedModel, after: PreTrainedModel, rows: Rows) -> float:
    """Return the mean KL divergence of what the second model predicts from what the first one does, nats per token."""
    found = torch.zeros((), dtype=torch.float64)
    for part in rows.batches():
        was, now = (
            model(rows.tokens[part], use_cache=False).logits[rows.predicts[part]].double().log_softmax(-1)
            for model in (before, after)
        )
        found += (was.exp() * (was - now)).sum()
    return float(found / rows.predicts.sum())


if __name__ == "__main__":
    main(measure, __doc__ or "")
