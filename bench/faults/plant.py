"""What faults do to a training run: each function here makes one that `faults.py` plants."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ExponentialLR

from bench.faults.models import Batch, Training, evidence_bound

Start = Callable[[Training], None]
"""Changes a training run once, before its first step, or before the step of the fault."""
Changed = Callable[[Training, Tensor, Tensor], Batch]
"""Changes the inputs and targets of a step."""


def both(first: Start, second: Start) -> Start:
    """One change and then another."""

    def plant(t: Training) -> None:
        first(t)
        second(t)

    return plant


def scaled(pattern: str, factor: float, rows: tuple[float, float] = (0.0, 1.0)) -> Start:
    """Multiply parameters by `factor`; of each, the rows between two fractions of them."""

    def plant(t: Training) -> None:
        with torch.no_grad():
            for name, parameter in t.model.named_parameters():
                if fnmatch(name, pattern):
                    first, end = (round(part * len(parameter)) for part in rows)
                    parameter[first:end] *= factor

    return plant


def filled(pattern: str, value: float, rows: tuple[float, float] = (0.0, 1.0)) -> Start:
    """Set parameters to `value`; of each, the rows between two fractions of them."""

    def plant(t: Training) -> None:
        with torch.no_grad():
            for name, parameter in t.model.named_parameters():
                if fnmatch(name, pattern):
                    first, end = (round(part * len(parameter)) for part in rows)
                    parameter[first:end] = value

    return plant


def group(**values: float | bool) -> Start:
    """Set what all groups of the optimizer have: `lr`, `weight_decay`, `maximize`."""

    def plant(t: Training) -> None:
        for one in t.optimizer.param_groups:
            one.update(values)

    return plant


def faster(factor: float) -> Start:
    """Multiply the learning rate."""

    def plant(t: Training) -> None:
        for one in t.optimizer.param_groups:
            one["lr"] *= factor

    return plant


def without(pattern: str) -> Start:
    """Leave parameters out of the optimizer."""

    def plant(t: Training) -> None:
        out = {id(p) for name, p in t.model.named_parameters() if fnmatch(name, pattern)}
        for one in t.optimizer.param_groups:
            one["params"] = [p for p in one["params"] if id(p) not in out]

    return plant


def frozen(pattern: str) -> Start:
    """Have parameters require no gradient, and drop the gradients that they have."""

    def plant(t: Training) -> None:
        for name, parameter in t.model.named_parameters():
            if fnmatch(name, pattern):
                parameter.requires_grad_(False)
                parameter.grad = None

    return plant


def replaced(names: Sequence[str], make: Callable[[], nn.Module]) -> Start:
    """Put other modules in the places of some."""

    def plant(t: Training) -> None:
        for name in names:
            owner, _, key = name.rpartition(".")
            setattr(t.model.get_submodule(owner), key, make())

    return plant


def with_shortcut(factor: float) -> Start:
    """Multiply the shortcuts of residual blocks."""

    def plant(t: Training) -> None:
        for module in t.model.modules():
            if hasattr(module, "shortcut"):
                module.shortcut = factor

    return plant


class WithoutEpsilon(nn.Module):
    """A batch norm that divides by the deviation, whatever it is."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalised channels, of images [batch, channels, height, width]."""
        deviation, mean = torch.std_mean(x, (0, 2, 3), keepdim=True)
        return (x - mean) / deviation


def cut(name: str) -> Start:
    """Detach the output of a module, so that no gradient passes."""

    def plant(t: Training) -> None:
        module = t.model.get_submodule(name)
        forward = module.forward
        module.forward = lambda *x: forward(*x).detach()

    return plant


def with_loss(change: Callable[[Tensor], Tensor]) -> Start:
    """Change the loss."""

    def plant(t: Training) -> None:
        loss = t.loss
        t.loss = lambda model, x, y: change(loss(model, x, y))

    return plant


def with_temperature(temperature: float) -> Start:
    """Divide logits before the softmax."""

    def plant(t: Training) -> None:
        def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            logits: Tensor = model(x) / temperature
            return nn.functional.cross_entropy(logits, y)

        t.loss = loss

    return plant


def with_outputs(change: Callable[[Tensor], Tensor]) -> Start:
    """Change what the model gives before the loss takes it."""

    def plant(t: Training) -> None:
        t.loss = lambda model, x, y: nn.functional.cross_entropy(
            change(model(x)).flatten(0, -2), y.flatten()
        )

    return plant


def with_loss_of(loss: Callable[[Tensor, Tensor], Tensor]) -> Start:
    """Take another loss, of the model's outputs and the targets."""

    def plant(t: Training) -> None:
        t.loss = lambda model, x, y: loss(model(x), y)

    return plant


def with_divergence(weight: float) -> Start:
    """Weigh the divergence of a VAE, as where the other part of the loss is a mean."""

    def plant(t: Training) -> None:
        t.loss = partial(evidence_bound, weight=weight)

    return plant


def with_large_channel(x: Tensor) -> Tensor:
    """One channel is in other units."""
    x[:, 1] *= 60
    return x


def with_other_units(x: Tensor) -> Tensor:
    """A quarter of the samples has one channel in other units."""
    x[: len(x) // 4, 1] *= 30
    return x


def with_decay(factor: float) -> Start:
    """Step a schedule that is meant for epochs with each batch."""

    def plant(t: Training) -> None:
        t.scheduler = ExponentialLR(t.optimizer, factor)

    return plant


def without_biases(t: Training) -> None:
    """Have no layer add a bias, as in models of the kind of Llama."""
    for module in t.model.modules():
        if getattr(module, "bias", None) is not None:
            module.bias = None
    known = {id(p) for p in t.model.parameters()}
    for one in t.optimizer.param_groups:
        one["params"] = [p for p in one["params"] if id(p) in known]


def stepping_twice(t: Training) -> None:
    """Call the optimizer's step twice for each backward."""
    step = t.optimizer.step

    def twice() -> None:
        step()
        step()

    t.optimizer.step = twice  # type: ignore[method-assign, assignment]


def of_another_model(t: Training) -> None:
    """Give the optimizer the parameters of a copy of the model."""
    other = copy.deepcopy(t.model)
    places = {id(p): q for p, q in zip(t.model.parameters(), other.parameters(), strict=True)}
    t.kept["other"] = other
    for one in t.optimizer.param_groups:
        one["params"] = [places[id(p)] for p in one["params"]]


def in_eval_mode(t: Training) -> None:
    """Leave the model in eval mode, as after a validation."""
    t.model.eval()


def batch_normed(name: str) -> Start:
    """Put a batch norm in the place of an activation behind a linear layer."""

    def plant(t: Training) -> None:
        width = t.model.get_submodule(name.replace("act", "fc")).out_features
        setattr(t.model, name, nn.BatchNorm1d(width))
        t.optimizer.add_param_group({"params": t.model.get_submodule(name).parameters()})

    return plant


class Routed(nn.Module):
    """A mixture of experts whose router has collapsed: it chooses the first for all samples."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, 4)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        nn.init.constant_(self.router.bias, -5.0)
        nn.init.constant_(self.router.bias[:1], 5.0)

    def forward(self, x: Tensor) -> Tensor:
        """What the best expert gives, by its probability; of inputs [batch, width]."""
        share, best = self.router(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            chosen = (best == i).nonzero().flatten()
            if len(chosen):
                out = out.index_copy(0, chosen, expert(x[chosen]) * share[chosen, None])
        return out


def with_experts(name: str) -> Start:
    """Put experts in the place of a layer."""

    def plant(t: Training) -> None:
        routed = Routed(t.model.get_submodule(name).out_features)  # type: ignore[arg-type]
        setattr(t.model, name, routed)
        t.optimizer.add_param_group({"params": routed.parameters()})

    return plant


def in_a_list(names: Sequence[str]) -> Start:
    """Have modules work that are in a Python list: no model and no optimizer has them."""

    def plant(t: Training) -> None:
        for name in names:
            unregistered = [copy.deepcopy(t.model.get_submodule(name))]
            module = t.model.get_submodule(name)
            for parameter in list(module._parameters):
                delattr(module, parameter)
            module.forward = lambda x, hidden=unregistered: hidden[0](x)
        known = {id(p) for p in t.model.parameters()}
        for one in t.optimizer.param_groups:
            one["params"] = [p for p in one["params"] if id(p) in known]

    return plant


def without_log_softmax(t: Training) -> None:
    """Take the logarithm of probabilities, which may be zero."""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        probabilities = (100 * model(x)).softmax(-1)
        return -probabilities.gather(-1, y[:, None]).log().mean()

    t.loss = loss


def without_clipping(t: Training) -> None:
    """Clip no gradients."""
    t.clip = None


def without_scaler(t: Training) -> None:
    """Scale no loss."""
    t.scaler = None


def without_zeroing(t: Training) -> None:
    """Have gradients add up from step to step."""
    t.optimizer.zero_grad = lambda set_to_none=True: None  # type: ignore[method-assign]


def without_warm_up(t: Training) -> None:
    """Begin with the whole learning rate."""
    t.scheduler = None
    for one in t.optimizer.param_groups:
        one["lr"] = one["initial_lr"]


def without_channel(x: Tensor) -> Tensor:
    """The second of three channels is zero."""
    x[:, 1] = 0
    return x


def stale_momentum(t: Training) -> None:
    """Go on with the momentum of another run: the same sizes in another order, 30 times larger."""
    for state in t.optimizer.state.values():
        for name in ("momentum_buffer", "exp_avg"):
            if name in state:
                state[name].copy_(30 * state[name].flatten().roll(1).view_as(state[name]))


def own_group(pattern: str, factor: float) -> Start:
    """Give parameters a group of their own, with another learning rate."""

    def plant(t: Training) -> None:
        (group,) = t.optimizer.param_groups
        chosen = {id(p) for name, p in t.model.named_parameters() if fnmatch(name, pattern)}
        moved = [p for p in group["params"] if id(p) in chosen]
        group["params"] = [p for p in group["params"] if id(p) not in chosen]
        t.optimizer.add_param_group({"params": moved, "lr": factor * group["lr"]})

    return plant


def with_epsilon(name: str, epsilon: float) -> Start:
    """Change what a norm adds to the variance."""

    def plant(t: Training) -> None:
        setattr(t.model.get_submodule(name), "eps", epsilon)  # noqa: B010

    return plant


def clipped(norm: float) -> Start:
    """Clip gradients to this norm."""

    def plant(t: Training) -> None:
        t.clip = norm

    return plant


def followed_by(make: Callable[[], nn.Module]) -> Start:
    """Put a module behind the last one of a sequence."""

    def plant(t: Training) -> None:
        t.model.add_module("out", make())

    return plant


def zeroed_too_late(t: Training) -> None:
    """Drop gradients after the backward, before the step."""
    step = t.optimizer.step

    def late() -> None:
        t.optimizer.zero_grad()
        step()

    t.optimizer.step = late  # type: ignore[method-assign, assignment]


def of_inputs(change: Callable[[Tensor], Tensor]) -> Changed:
    """Change the inputs."""

    def plant(t: Training, x: Tensor, y: Tensor) -> Batch:
        return change(x.clone()), y

    return plant


def with_nan(x: Tensor) -> Tensor:
    """One pixel is NaN."""
    x[0, 0, 3, 3] = torch.nan
    return x


def half_lost(x: Tensor) -> Tensor:
    """The right half of each image is zero."""
    x[..., x.shape[-1] // 2 :] = 0.0
    return x


def duplicated(t: Training, x: Tensor, y: Tensor) -> Batch:
    """The whole batch is one sample."""
    return x[:1].expand_as(x), y[:1].expand_as(y)


def again(t: Training, x: Tensor, y: Tensor) -> Batch:
    """The loader gives the same batch in each step."""
    batch: Batch = t.kept.setdefault("batch", (x, y))
    return batch


def wrong_labels(t: Training, x: Tensor, y: Tensor) -> Batch:
    """The targets belong to other inputs."""
    return x, y.flatten()[torch.randperm(y.numel())].view_as(y)


def off_by_one(t: Training, x: Tensor, y: Tensor) -> Batch:
    """The targets are those of another list of classes."""
    return x, (y + 1) % (int(y.max()) + 1)


def one_class(t: Training, x: Tensor, y: Tensor) -> Batch:
    """A loader that is sorted by classes: all samples are of the first that the batch has."""
    chosen = (y == y[0]).nonzero().flatten()
    chosen = chosen[torch.arange(len(y)) % len(chosen)]
    return x[chosen], y[chosen]


def one_label(t: Training, x: Tensor, y: Tensor) -> Batch:
    """A reader of labels that gives the first class to all."""
    return x, torch.zeros_like(y)


def with_padding(t: Training, x: Tensor, y: Tensor) -> Batch:
    """Seven of eight tokens are padding, and the loss counts them."""
    first = x.shape[1] // 8
    x, y = x.clone(), y.clone()
    x[:, first:] = y[:, first:] = 0
    return x, y


def shuffled_pixels(x: Tensor) -> Tensor:
    """Pixels in another order, the same in all images."""
    order = torch.randperm(x[0].numel(), generator=torch.Generator().manual_seed(0))
    return x.flatten(1)[:, order].view_as(x)


def mostly_padding(x: Tensor) -> Tensor:
    """Seven of eight tokens are zero."""
    x[:, x.shape[1] // 8 :] = 0
    return x
