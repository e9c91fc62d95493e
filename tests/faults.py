"""Faults that the suite must catch, planted one at a time: `nox -s faults`, or `python tests/faults.py [PACKAGE ...]`.

A fault is a small edit of one package. It is found by its code, wherever that stands in the package, so that a module may move;
code that is not found exactly once is an error. In a copy of the tree the tests that are named must then fail; without the
fault they must pass.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
#: What no package of the tree is and most tests import: it is imported once, and each fault has a process forked from this one.
SHARED = ("torch", "transformers", "peft", "pyarrow.parquet", "hypothesis")


class Fault(NamedTuple):
    """An edit, and the tests that must turn red: a file, from the tests of the package, and words of `pytest -k`."""

    package: str
    old: str
    new: str
    tests: str
    only: str = ""


FAULTS = [
    Fault(
        "gym-core", "fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)", "pass", "test_outputlock.py", "second_process"
    ),
    Fault("gym-core", "elif not _holds(needed, found):", "elif False:", "test_requirements.py"),
    Fault(
        "gym-core",
        'if entry.kind != "kinds" and found.choices.disabled(entry.dist, entry.name):',
        "if False:",
        "../../plugins/gym-manage/tests/test_choosing.py",
        "disabled",
    ),
    Fault(
        "gym-core",
        'artifact = hook.quantize(run=run, artifact=artifact, into=run.output / "quantized")',
        "pass",
        "test_run.py",
        "four_seams",
    ),
    Fault("gym-quant", "left[:, end:] -= errors @ factor[begin:end, end:]", "pass", "test_gptq.py", "formula"),
    Fault("gym-quant", "if error < best:", "if error > best:", "test_awq.py", "scale"),
    Fault(
        "gym-quant",
        'check_kl(found, self.config.max_kl, "the quantized model"',
        'check_kl(0.0, self.config.max_kl, "the quantized model"',
        "test_refusals.py",
        "bad_result",
    ),
    Fault(
        "gym-bitdelta", "delta.check_base(base_fingerprint(base), str(base))", "pass", "test_artifacts.py", "one_base"
    ),
    Fault("gym-bitdelta", "if found < best:", "if True:", "test_distillation.py", "never_ends_worse"),
    Fault("gym-bitdelta", "if totals != found:", "if False:", "test_delta_file.py", "lies"),
    Fault(
        "gym-bitdelta",
        "found = found.abs().sort(1, descending=True)",
        "found = scales.sort(1, descending=True)",
        "test_levels.py",
        "together",
    ),
    Fault("gym-bitdelta", "verdict.check()", "pass", "safety/test_enforce.py", "refusal"),
    Fault(
        "gym-bitdelta",
        "delivered = _scaled(records, verdict.scale)",
        "delivered = records",
        "safety/test_enforce.py",
        "says",
    ),
    Fault(
        "gym-bitdelta",
        "            break\n        found = scale",
        "            continue\n        found = scale",
        "safety/test_gate.py",
        "upwards",
    ),
    Fault("gym-bitdelta", "sides[0].scales * gains.float()", "sides[0].scales", "test_low_rank.py", "least_squares"),
    Fault(
        "gym-deltasoup", "kept = ordered[cut : len(ordered) - cut]", "kept = ordered[cut:]", "test_rules.py", "scipy"
    ),
    Fault("gym-deltasoup", "agree = pushed * pushed.sum(0).sign() > 0", "agree = pushed != 0", "test_rules.py", "TIES"),
    Fault(
        "gym-deltasoup",
        "middle = middle_of(sorted_columns(work))",
        "middle = work.mean(0)",
        "test_robustness.py",
        "common",
    ),
    Fault(
        "gym-deltasoup",
        "if copies and len(found) > 2",
        "if False and len(found) > 2",
        "test_robustness.py",
        "copies_of",
    ),
    Fault("gym-deltasoup", "if not length <= LARGEST]", "if length > LARGEST]", "test_robustness.py", "broken"),
    Fault(
        "gym-deltasoup",
        "scalings.get(name, lora.scaling)",
        "scalings.get(name, 1.0)",
        "test_artifacts.py",
        "as_products",
    ),
    Fault("gym-deltasoup", "if said != print_of:", "if False:", "test_artifacts.py", "belong_together"),
    Fault("gym-data", "depth -= 1\n", "depth -= 2\n", "test_loss_masks.py", "learn_the_same or closing_token"),
    Fault("gym-data", "chosen.add(group)", "pass", "test_mixing.py", "held_out"),
    Fault("gym-data", "self._rest = iter(source)", "self._rest = iter([*source][:1])", "test_mixing.py", "strictly"),
    Fault("gym-tiny", "(total, part, total - part)", "(total, part, part)", "test_tasks.py", "right"),
    Fault("gym-tiny", "reverse=skill ==", "reverse=skill !=", "test_tasks.py", "right"),
    Fault(
        "gym-torch",
        "return torch.cat([logits.log_softmax(1).gather(1, targets[rows, None]), said.T], 1)",
        "return torch.cat([logits.gather(1, targets[rows, None]), said.T], 1)",
        "test_logprobs.py",
        "value_and_gradient or every_family",
    ),
    Fault("gym-torch", "self.softcap * torch.tanh(logits", "torch.tanh(logits", "test_logprobs.py", "every_family"),
    Fault("gym-torch", 'return f"{name} is not what was written (SHA-256 differs)"', "pass", "test_checkpoint.py"),
    Fault(
        "gym-torch",
        "reseed(job.train.seed, job.progress.step, whole.seeds[number])",
        "pass",
        "../../../tests/test_processes.py",
        "any_number_of_processes and lora and ddp",
    ),
    Fault("gym-torch", "share = 1 / whole.weight if", "share = 1 / (whole.weight + 1) if", "test_loop.py"),
    Fault("gym-sft", "return -log_probs.sum(), metrics", "return -log_probs.mean(), metrics", "test_sft.py", "float64"),
    Fault(
        "gym-optim", 'state["exp_avg"].lerp_(gradient, 1 - beta2)', "pass", "test_sgd_lion_adafactor_lomo.py", "lion"
    ),
    Fault("gym-optim", "return not self.in_backward", "return True", "test_recipes.py", "plan_knows"),
    Fault("gym-optim", "(step + 1) / warmup if", "step / warmup if", "test_schedules.py"),
    Fault("gym-optim", "points[1:] + points[:-1]) / 2", "points[1:] + points[:-1]) / 3", "test_adam.py", "eight_bit"),
    Fault("gym-optim", "STEPS = 5", "STEPS = 2", "test_muon.py"),
    Fault(
        "gym-adapters",
        "return self.alpha or 2 * self.rank",
        "return self.alpha or self.rank",
        "test_lora.py",
        "alpha",
    ),
    Fault("gym-adapters", "scale = blocks.abs().amax(1)", "scale = blocks.amax(1)", "test_loftq.py", "rounding"),
    Fault(
        "gym-preference",
        "return -logsigmoid(beta * (chosen - rejected))",
        "return -logsigmoid(beta * chosen)",
        "test_losses.py",
    ),
    Fault(
        "gym-preference",
        "(chosen - rejected - 1 / (2 * beta)) ** 2",
        "(chosen - rejected - 1 / beta) ** 2",
        "test_losses.py",
    ),
    Fault(
        "gym-preference",
        "- alpha * (rejected_kl - chosen_kl.detach())",
        "- alpha * (rejected_kl - chosen_kl)",
        "test_token_losses.py",
    ),
    Fault(
        "gym-preference",
        "gain = torch.where(desirable, ratios - reference_point, reference_point - ratios)",
        "gain = ratios - reference_point",
        "test_label_losses.py",
        "kto",
    ),
    Fault("gym-rl", "ratio.clamp(1 - low, 1 + high)", "ratio.clamp(1 - high, 1 + low)", "test_losses.py", "geometry"),
    Fault("gym-rl", "return (-apart).exp() + apart - 1", "return apart.exp() - apart - 1", "test_kl.py"),
    Fault(
        "gym-rl",
        "(judged.sizes - 1).clamp(min=1)\n    return",
        "judged.sizes.clamp(min=1)\n    return",
        "test_advantages.py",
        "by_hand or five_answers",
    ),
    Fault(
        "gym-rl",
        "deviation = judged.values.std() if",
        "deviation = (judged.values - judged.mean()).std() if",
        "test_advantages.py",
        "by_hand",
    ),
    Fault(
        "gym-rl",
        "after = delta + gamma * gae_lambda * after",
        "after = delta + gamma * after",
        "test_advantages.py",
        "gae",
    ),
    Fault(
        "gym-rl",
        "return torch.where(whole <= cap, whole, 0.0)[owner]",
        "return whole[owner]",
        "test_losses.py",
        "corrections",
    ),
    Fault(
        "gym-grpo",
        'ClippedTokens"\n\n    loss_agg_mode: LossAggMode = "seq-mean-token-mean"',
        'ClippedTokens"\n\n    loss_agg_mode: LossAggMode = "token-mean"',
        "test_grpo.py",
        "float64",
    ),
    Fault(
        "gym-rl",
        "AGGREGATIONS[config.loss_agg_mode](config.max_new_tokens)",
        "AGGREGATIONS[config.loss_agg_mode](1)",
        "test_rollouts.py",
        "constant",
    ),
    Fault(
        "gym-gspo",
        "policy_losses.gspo_token(log_probs, batch.old_log_probs, each",
        "policy_losses.gspo_token(log_probs, batch.old_log_probs, -each",
        "test_gspo.py",
    ),
    Fault(
        "gym-rewards",
        "tokens - self.config.maximum, 0)",
        "self.config.maximum - tokens, 0)",
        "test_rewards.py",
        "length",
    ),
    Fault("gym-rewards", "text = text.casefold()", "pass", "test_rewards.py", "exact"),
    Fault(
        "gym-rewards",
        "max(0, item.tokens - free) / self.config.buffer",
        "max(0, item.tokens - free) / free",
        "test_rewards.py",
        "overlong",
    ),
    Fault(
        "gym-personalization",
        "by_second.add_(_product(pulled.mT, hidden), alpha=layer.scaling)",
        "pass",
        "test_grouped_lora.py",
    ),
    Fault(
        "gym-personalization",
        "first + prefix for prefix in",
        "prefix for prefix in",
        "test_grouped_lora.py",
        "prefixes",
    ),
    Fault("gym-personalization", "share = 1 / turn.whole.weight", "share = 1 / 100", "test_together.py", "alone"),
    Fault(
        "gym-personalization",
        "for weight, gradient in self._gradients:\n            weight.grad = gradient.zero_()",
        "for weight, gradient in self._gradients:\n            weight.grad = gradient",
        "test_together.py",
        "alone",
    ),
    Fault("gym-personalization", "optimizer_state.put(job", "id(job", "test_together.py", "exact"),
    Fault(
        "gym-drill", "yield from _bytes(data, other[tensor][1], where)", "pass", "test_drill.py", "difference_is_named"
    ),
    Fault(
        "gym-manage", "lacking = [item for item in unmet(dist) if item.owner == dist]", "lacking = []", "test_doctor.py"
    ),
    Fault(
        "gym-llamafactory",
        'Key("kto_rejected_weight", "algorithm.undesirable_weight", "kto")',
        'Key("kto_rejected_weight", "algorithm.desirable_weight", "kto")',
        "test_runs.py",
    ),
    Fault("gym-llamafactory", '"orpo": "orpo",', '"orpo": "cpo",', "test_preference.py"),
    Fault(
        "gym-axolotl",
        "int(micro_batch_size or 1) * int(sequence_len or LENGTH)",
        "int(micro_batch_size or 1)",
        "test_axolotl_files.py",
    ),
    Fault(
        "gym-dialect", "found.problems.append(Problem(stated.why,", "None and (Problem(stated.why,", "test_placing.py"
    ),
    Fault(
        "gym-plan",
        "peak=weights + state + peak + (held or 0),",
        "peak=weights + peak + (held or 0),",
        "test_plan.py",
        "largest_batch or seventy",
    ),
    Fault(
        "gym-accel",
        "share * (1 + held * (1 - share) * slope)",
        "share * (1 + held * (1 - share))",
        "test_triton.py",
        "definition",
    ),
    Fault(
        "gym-vllm",
        "int(uniform(self.request.seed, stream, 0) * (1 << 53))",
        "int(uniform(self.request.seed, 0, 0) * (1 << 53))",
        "test_server.py",
        "seed_of_its_own",
    ),
    Fault(
        "gym-vllm", "        self._verify()\n        return made", "        return made", "test_server.py", "noticed"
    ),
    Fault("gym-training-free", "elif reservation.lost:", "elif False:", "test_endpoint.py", "again"),
    Fault("gym-training-free", "self.spent + self._flying + most", "self.spent + most", "test_endpoint.py", "cap"),
    Fault("gym-training-free", "text = text.replace(written, CROSSED_OUT)", "pass", "test_endpoint.py", "stands_in_no"),
    Fault(
        "gym-training-free",
        "self.lost += sum(flying.values(), Charge())",
        "pass",
        "test_resume.py",
        "killed_at_any_line",
    ),
    Fault("gym-training-free", "self._sync(number)", "pass", "test_resume.py", "acknowledged"),
    Fault("gym-training-free", " + len(lost)", "", "test_learning.py", "cannot_be_asked_with"),
    Fault("gym-training-free", "if found and found[0] == digest", "if found", "test_resume.py", "another_request"),
    Fault("gym-training-free", "if identity in self.deleted:", "if False:", "test_operations.py", "each_operation"),
    Fault("gym-training-free", "and _holds(said, part):", "and False:", "test_operations.py", "lessons"),
    Fault("gym-training-free", "min(rewards) > DIFFERENT", "min(rewards) > 0.5", "test_learning.py", "graded"),
    Fault(
        "gym-training-free",
        "compared is not None and compared.p_harm >= self.asking.config.gate_level",
        "True",
        "test_learning.py",
        "poisoned",
    ),
    Fault(
        "gym-training-free",
        'hashlib.sha256(f"{name}\\0{text}".encode("utf-8", "replace")).hexdigest()[:12]',
        '"0123456789ab"',
        "test_learning.py",
        "trajectory",
    ),
    Fault(
        "gym-unlearn",
        "-2 / beta * logsigmoid(-beta * (log_probs - reference))",
        "-2 / beta * logsigmoid(beta * (log_probs - reference))",
        "test_losses.py",
        "definition",
    ),
    Fault(
        "gym-unlearn", "(log_probs / lengths + delta)", "(log_probs / lengths - delta)", "test_losses.py", "definition"
    ),
    Fault("gym-unlearn", "return log_probs / lengths", "return log_probs", "test_losses.py", "formulas_say"),
    Fault(
        "gym-embedding",
        "logits.logsumexp(1) - own[:, 0] / config.temperature",
        "logits.logsumexp(1) - own[:, 0]",
        "test_losses.py",
        "value_and_gradient",
    ),
    Fault("gym-embedding", "out = related\n", "out = related & False\n", "test_losses.py", "no_negative"),
    Fault(
        "gym-embedding",
        "parts.rank + parts.world * at",
        "0",
        "test_steps.py",
        "embedded_before",
    ),
    Fault(
        "gym-rl",
        "return coefficient if entropy <= target else 0.0",
        "return coefficient",
        "test_entropy.py",
        "coefficient_is_that",
    ),
    Fault(
        "gym-rl",
        "delta if entropy <= target else -delta",
        "delta if entropy > target else -delta",
        "test_entropy.py",
        "coefficient_is_that",
    ),
    Fault(
        "gym-rl",
        'self.beta, self.entropy_coef = state["beta"], state["entropy_coef"]',
        'self.beta = state["beta"]',
        "test_heldout.py",
        "a_killed_run",
    ),
    Fault(
        "gym-preference",
        "media=asked.media, reader=asked.reader",
        "media=said.media, reader=said.reader",
        "../../gym-vision/tests/test_judged_training.py",
        "behind_the_image",
    ),
    Fault("gym-tune", "else seed_of(seed, trial)", "else seed_of(seed, 0)", "test_studies.py", "made_longer"),
    Fault("gym-tune", "not self.at_the_end and trial.should_prune()", "False", "test_studies.py", "ended_early"),
    Fault("gym-tune", "{} if seed is None else", "{} if seed else", "test_studies.py", "finds_better"),
    Fault("gym-tune", "if each.step and math", "if math", "test_metric.py", "best_model"),
    Fault("gym-eval", "whole[-(longest + 1) :][:-1]", "whole[-longest:][:-1]", "test_harness.py", "every_answer"),
    Fault(
        "gym-testkit",
        "rel_tol=2e-3, abs_tol=1e-5",
        "rel_tol=2e3, abs_tol=1e-5",
        "../../../tests/third_party/test_laws_catch_faults.py",
        "test_algorithm",
    ),
]


def folder(tree: Path, package: str) -> Path:
    """Return the folder of a package."""
    return tree / package if package == "gym-core" else tree / "plugins" / package


def place(tree: Path, fault: Fault) -> Path:
    """Return the file in which a fault is planted. Raises ValueError where its code is not exactly once in the package."""
    sources = [*(folder(tree, fault.package) / "src").glob("**/*.py")]
    places = [path for path in sources for _ in range(path.read_text(encoding="utf-8").count(fault.old))]
    if len(places) != 1:
        raise ValueError(f"{fault.package} has not exactly one `{fault.old}`, but {[path.name for path in places]}")
    return places[0]


@contextmanager
def planted(tree: Path, fault: Fault) -> Iterator[None]:
    """Have the fault in a tree. Raises what `place` raises."""
    path = place(tree, fault)
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(fault.old, fault.new), encoding="utf-8")
    try:
        yield
    finally:
        path.write_text(text, encoding="utf-8")


def tested(tree: Path, fault: Fault, said: Path) -> int:
    """Run the tests of a fault in a process forked from this one, its output in a file; return what pytest does."""
    pid = os.fork()
    if pid == 0:
        file = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.chdir(tree)
        only = ["-k", fault.only] if fault.only else []
        quiet = ["-x", "-q", "-p", "no:cacheprovider", "--no-header", "--disable-warnings"]
        os._exit(pytest.main([str((folder(tree, fault.package) / "tests" / fault.tests).resolve()), *only, *quiet]))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main() -> int:
    """Plant each fault of these packages, or of all, and print whether it was caught."""
    asked = sys.argv[1:]
    faults = [fault for fault in FAULTS if not asked or fault.package in asked]
    escaped, healthy = 0, {}
    with tempfile.TemporaryDirectory(prefix="gym-faults-") as place:
        tree, said = Path(place, "tree"), Path(place, "said")
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".*", "__pycache__", "runs", "dist", "*.egg-info"))
        sources = [str(path) for path in [tree / "gym-core/src", *sorted(tree.glob("plugins/*/src"))]]
        sys.path[:0] = sources
        sys.dont_write_bytecode = True  # an edit of the same second and length would not be seen
        os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", PYTHONDONTWRITEBYTECODE="1")
        os.environ["PYTHONPATH"] = os.pathsep.join([*sources, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        os.environ.setdefault("GYM_DATA", str(ROOT.parent / "shared" / "data"))
        for name in SHARED:
            with suppress(ImportError):
                importlib.import_module(name)
        for number, fault in enumerate(faults, start=1):
            began, tests = time.monotonic(), (fault.package, fault.tests, fault.only)
            if tests not in healthy:
                healthy[tests] = tested(tree, fault, said)
            with planted(tree, fault):
                code = tested(tree, fault, said)
            caught = (healthy[tests], code) == (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
            escaped += not caught
            verdict = "caught" if caught else f"NOT CAUGHT (pytest says {healthy[tests]} without it, {code} with it)"
            seconds = time.monotonic() - began
            print(f"{number:3d} {fault.package:16s} {verdict}  {fault.old.strip()[:60]!r}  {seconds:.0f} s", flush=True)
            if not caught:
                print(said.read_text(errors="replace")[-1500:], flush=True)
    print(f"{len(faults) - escaped} of {len(faults)} planted faults are caught")
    return min(escaped, 1)


if __name__ == "__main__":
    sys.exit(main())
