"""Laws of the kinds that need torch: each fails for the fault it is about."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from gym_core import GymError
from gym_optim import LISA, InBackward, ScheduleFreeAdamW
from gym_optim.kinds import Optimizer
from gym_testkit.distribution import Brought
from gym_testkit.laws import adapters, optimizers
from gym_torch.kinds import Adapter
from gym_torch.model.adapted import Full

FAULTY = Path(__file__).parent / "faulty"


class Moves(torch.optim.SGD):
    """Moves a little further than its learning rate says."""

    def step(self, closure=None):
        super().step()
        for group in self.param_groups:
            for point in group["params"]:
                point.data.add_(1e-3)


class Forgets(torch.optim.SGD):
    """Keeps its momentum where `state_dict` does not look."""

    def step(self, closure=None):
        self.kept = getattr(self, "kept", {})
        for group in self.param_groups:
            for point in group["params"]:
                self.kept[point] = 0.9 * self.kept.get(point, 0) + point.grad
                point.data.add_(self.kept[point], alpha=-group["lr"])


class Climbs(torch.optim.SGD):
    """Goes up."""

    def step(self, closure=None):
        for group in self.param_groups:
            for point in group["params"]:
                point.data.add_(point.grad, alpha=group["lr"])


class Stubborn(torch.optim.SGD):
    """Goes on at the rate it began with."""

    def step(self, closure=None):
        for group in self.param_groups:
            for point in group["params"]:
                point.data.add_(point.grad, alpha=-0.01)


class Credulous(torch.optim.Optimizer):
    """Takes any rate."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})


@pytest.mark.parametrize(
    ("kind", "law"),
    [
        (torch.optim.AdamW, optimizers.halves),
        (torch.optim.Adafactor, optimizers.stacks),
        (Stubborn, optimizers.schedules),
        (Credulous, optimizers.ranges),
        (Moves, optimizers.zero_rate),
        (Forgets, optimizers.round_trips),
        (Climbs, optimizers.parabola),
        (Climbs, optimizers.rosenbrock),
        (torch.optim.Adam, optimizers.state_bytes),
    ],
)
def test_optimizer(bench, kind, law):
    class Faulty(Optimizer):
        """Declares the state of plain gradient descent."""

        def declared_bytes(self, parameters):
            return 0

        def build(self, parameters, learning_rate):
            return kind(parameters, lr=learning_rate)

    with pytest.raises(AssertionError):
        law(Brought("optimizers", "faulty", Faulty), bench)


class FollowsTheMean(torch.optim.SGD):
    """Divides by the size of the whole gradient."""

    def step(self, closure=None):
        for group in self.param_groups:
            for point in group["params"]:
                point.data.add_(point.grad / point.grad.norm(), alpha=-group["lr"])


class LetsGo(torch.optim.SGD):
    """Clears gradients in its step."""

    def step(self, closure=None):
        super().step()
        self.zero_grad()


class Scales(torch.optim.SGD):
    """Takes the weights to use from elsewhere, and leaves them."""

    @contextmanager
    def averaged(self):
        for group in self.param_groups:
            for point in group["params"]:
                point.data.mul_(1.01)
        yield


def in_backward(parameters, lr):
    return InBackward(torch.optim.SGD(parameters, lr=lr))


@pytest.mark.parametrize(
    ("build", "law", "declared"),
    [
        (FollowsTheMean, optimizers.elementwise, {}),
        (LetsGo, optimizers.gradients_stay, {}),
        (in_backward, optimizers.gradients_stay, {}),
        (LISA, optimizers.gradients_stay, {"keeps_gradients": False, "gradient_bytes": 120}),
        (torch.optim.SGD, optimizers.gradients_stay, {"keeps_gradients": False}),
        (in_backward, optimizers.in_backward, {}),
        (torch.optim.SGD, optimizers.in_backward, {"updates_in_backward": True}),
        (Scales, optimizers.evaluation, {"averages": True}),
        (ScheduleFreeAdamW, optimizers.evaluation, {}),
        (torch.optim.SGD, optimizers.evaluation, {"averages": True}),
    ],
)
def test_what_an_optimizer_declares(bench, build, law, declared):
    class Liar(Optimizer):
        """Says what plain gradient descent would say, unless told otherwise."""

        def build(self, parameters, learning_rate):
            return build(parameters, lr=learning_rate)

        def elementwise(self):
            return True

        def keeps_gradients(self):
            return declared.get("keeps_gradients", True)

        def updates_in_backward(self):
            return declared.get("updates_in_backward", False)

        def gradient_bytes(self, parameters):
            return declared.get("gradient_bytes", 0)

        def averages(self):
            return declared.get("averages", False)

        def evaluation_weights(self, optimizer):
            return optimizer.averaged() if hasattr(optimizer, "averaged") else nullcontext()

    with pytest.raises(AssertionError):
        law(Brought("optimizers", "liar", Liar), bench)


def test_what_an_optimizer_does_not_declare_is_refused(bench):
    class Silent(Optimizer):
        """Declares nothing."""

        def build(self, parameters, learning_rate):
            return torch.optim.SGD(parameters, lr=learning_rate)

    for law, method in (
        (optimizers.elementwise, "elementwise"),
        (optimizers.gradients_stay, "keeps_gradients"),
        (optimizers.in_backward, "updates_in_backward"),
    ):
        with pytest.raises(GymError, match=rf"Silent does not declare `{method}`") as caught:
            law(Brought("optimizers", "silent", Silent), bench)
        assert f"write `def {method}(self) -> bool: return ...` in Silent" in str(caught.value)


class WrongMerge(Full):
    """Merges into something else."""

    def merged(self):
        self.model.get_input_embeddings().weight.data.mul_(1.01)
        return self.model


class HalfState(Full):
    """Leaves half of what trains out of its state."""

    def state(self):
        whole = super().state()
        return dict(list(whole.items())[::2])


class Drifts(Full):
    """Changes what it calls frozen."""

    def save(self, path, base, exact=False):
        for weight in self.model.parameters():
            weight.data.mul_(1.001)
        return super().save(path, base, exact)


class Nudges(Full):
    """Does not begin where the base is."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.model.get_input_embeddings().weight.data.mul_(1.1)


class Stays(Full):
    """Says that it can be left out, and is not."""

    disable_adapter = nullcontext


class Refuses(Full):
    """Does not merge, and says something else."""

    def merged(self):
        raise GymError("there is no memory left")


class Peeks(Full):
    """Looks at the gradients of a step, which it does not declare."""

    def after_step(self, step, total):
        for weight in self.model.parameters():
            if weight.grad is not None:
                weight.data.sub_(0.01 * weight.grad)


class Shares(Full):
    """Shares out its work over all steps, which it does not declare."""

    def after_step(self, step, total):
        self.model.model.norm.weight.data.mul_(1 - step / total)


class Whole(Full):
    """Looks at a sample as a whole, which it does not declare."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.model.model.register_forward_hook(self._scale, with_kwargs=True)

    def _scale(self, backbone, arguments, options, output):
        if backbone.training and "spans" in options:
            output.last_hidden_state = output.last_hidden_state * len(options["spans"].lengths)
        return output


class Claims(Full):
    """Says that it makes an adapter, and makes a model."""

    artifact_kind = "adapter"


@pytest.mark.parametrize(
    ("kind", "law"),
    [
        (WrongMerge, adapters.merges),
        (Peeks, adapters.needs),
        (Shares, adapters.needs),
        (Whole, adapters.shares_prefixes),
        (Claims, adapters.saves),
        (Full, adapters.refuses_to_merge),
        (Refuses, adapters.refuses_to_merge),
        (HalfState, adapters.learns),
        (Drifts, adapters.base_untouched),
        (Nudges, adapters.unchanged),
        (Stays, adapters.leaves_out),
    ],
)
def test_adapter(bench, kind, law):
    class Faulty(Adapter):
        """Trains the norms."""

        starts_unchanged: ClassVar[bool] = True

        def build(self, model, seed):
            return kind(self, model, seed, trained=lambda name: "norm" in name)

    with pytest.raises(AssertionError):
        law(Brought("adapters", "faulty", Faulty), bench)


def test_algorithm(installed, tmp_path):
    """One package with an algorithm for each fault; what must fail, fails, and nothing else.

    Two processes are tried with the faults that can show there.
    """
    package = tmp_path / "gym-faulty"
    for path in FAULTY.glob("*.txt"):
        (package / "src/gym_faulty").mkdir(parents=True, exist_ok=True)
        name = path.name.removesuffix(".txt")
        target = package / name if name == "pyproject.toml" else package / "src/gym_faulty" / name
        target.write_text(path.read_text())
    run = installed(package)
    asked = "algorithm and not kill and not (processes and (still or flipped or segments))"
    done = run("pytest", "--gym-dist", "gym-faulty", "-k", asked, "-p", "no:cacheprovider", "-q", "-rf")
    failed = {
        line.split("algorithm law: ")[1].split(" - ")[0]
        for line in done.stdout.splitlines()
        if line.startswith("FAILED")
    }
    assert failed == {
        "8 x 1 = 4 x 2 accumulation [mean]",
        "packing, padding and shared prefixes change nothing [mean]",
        "agrees with its float64 oracle in value and gradient [mean]",
        "same seed = same trajectory [random]",
        "8 x 1 = 4 x 2 accumulation [random]",
        "packing, padding and shared prefixes change nothing [random]",
        "one process = two processes [random]",
        "packing, padding and shared prefixes change nothing [segments]",
        "learns a tiny task [still]",
        "what its rows show as good becomes likelier [still]",
        "what its rows show as good becomes likelier [flipped]",
    }, done.stdout
