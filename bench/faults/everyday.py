"""Faults of the kinds that people ask about in public: in the loss and the loop, from step 0 on."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.faults import plant
from bench.faults.fault import LATE, Fault

_GRAPH = ("loss graph", "logits")
_LOOP = ("loop", "accumulation", "untrained")


def _detached(loss: Tensor) -> Tensor:
    """The number of a loss, as a tensor that wants a gradient."""
    return torch.tensor(loss.item(), requires_grad=True)


def _regression(out: Tensor, y: Tensor) -> Tensor:
    """The squared error of outputs [N, 1] against targets [N]."""
    return functional.mse_loss(out[:, :1], y.float() / 10)


def _difference(out: Tensor, y: Tensor) -> Tensor:
    """The same by hand, of outputs [N] against targets [N, 1]."""
    return (out[:, 0] - y[:, None].float() / 10).abs().mean()


def _of_probabilities(out: Tensor, y: Tensor) -> Tensor:
    """The likelihood of probabilities where logarithms belong."""
    return functional.nll_loss(out.softmax(-1), y)


def _over_the_batch(out: Tensor, y: Tensor) -> Tensor:
    """The likelihood of a softmax over the samples."""
    return functional.nll_loss(out.log_softmax(0), y)


def _sigmoid_twice(out: Tensor, y: Tensor) -> Tensor:
    """A binary cross-entropy of logits, given probabilities."""
    wanted = functional.one_hot(y, out.shape[-1]).float()
    return functional.binary_cross_entropy_with_logits(out.sigmoid(), wanted)


EVERYDAY = (
    Fault(
        name="loss/softmax-before",
        base="mlp",
        says=_GRAPH,
        start=plant.with_outputs(lambda out: out.softmax(-1)),
    ),
    Fault(
        name="loss/softmax-before-gpt",
        base="gpt",
        says=_GRAPH,
        start=plant.with_outputs(lambda out: functional.softmax(out, -1)),
    ),
    Fault(
        name="loss/sigmoid-before",
        base="rnn",
        says=_GRAPH,
        start=plant.with_outputs(torch.sigmoid),
    ),
    Fault(name="loss/relu-before", base="cnn", says=_GRAPH, start=plant.with_outputs(torch.relu)),
    Fault(
        name="loss/sigmoid-twice",
        base="mlp-adam",
        says=_GRAPH,
        start=plant.with_loss_of(_sigmoid_twice),
    ),
    Fault(
        name="loss/of-probabilities",
        base="resnet",
        says=_GRAPH,
        start=plant.with_loss_of(_of_probabilities),
    ),
    Fault(
        name="loss/over-the-batch",
        base="bert",
        says=_GRAPH,
        start=plant.with_loss_of(_over_the_batch),
    ),
    Fault(name="loss/broadcast", base="rnn", says=_GRAPH, start=plant.with_loss_of(_regression)),
    Fault(
        name="loss/broadcast-by-hand",
        base="cnn-adam",
        says=_GRAPH,
        start=plant.with_loss_of(_difference),
    ),
    Fault(
        name="loss/made-anew",
        base="cnn-norm",
        says=_GRAPH,
        start=plant.with_loss(_detached),
    ),
    Fault(
        name="loss/cut-from-model",
        base="mlp-tanh",
        says=_GRAPH,
        start=plant.with_outputs(lambda out: out.detach().requires_grad_(True)),
    ),
    Fault(
        name="loss/layers-in-a-list",
        base="mlp-adam",
        says=_GRAPH,
        start=plant.in_a_list(["fc1", "fc2", "fc3"]),
    ),
    Fault(
        name="loss/no-activations",
        base="mlp",
        says=_GRAPH,
        start=plant.replaced([f"act{i}" for i in range(5)], nn.Identity),
    ),
    Fault(
        name="loss/attention-over-heads",
        base="bert-small",
        says=_GRAPH,
        start=plant.replaced([f"h.{i}.attn.softmax" for i in range(4)], lambda: nn.Softmax(1)),
    ),
    Fault(
        name="loss/attention-over-queries",
        base="gpt-small",
        says=_GRAPH,
        start=plant.replaced([f"h.{i}.attn.softmax" for i in range(4)], lambda: nn.Softmax(2)),
    ),
    Fault(
        name="loop/no-zeroing",
        base="gpt-small",
        says=_LOOP,
        start=plant.both(plant.without_biases, plant.without_zeroing),
    ),
    Fault(
        name="loop/no-zeroing-cnn",
        base="cnn",
        says=_LOOP,
        start=plant.both(plant.without_biases, plant.without_zeroing),
    ),
    Fault(name="loop/zeroed-before-step", base="cnn", says=_LOOP, start=plant.zeroed_too_late),
    Fault(name="loop/two-steps", base="bert", says=_LOOP, start=plant.stepping_twice),
    Fault(name="loop/other-model", base="resnet", says=_LOOP, start=plant.of_another_model),
    Fault(
        name="data/one-column",
        base="cnn-colours",
        says=("inputs",),
        batch=plant.of_inputs(plant.with_large_channel),
    ),
    Fault(
        name="data/column-grows",
        base="cnn-colours",
        says=("inputs",),
        step=LATE,
        batch=plant.of_inputs(plant.with_other_units),
    ),
    Fault(
        name="data/scaled-twice",
        base="cnn",
        says=("inputs",),
        batch=plant.of_inputs(lambda x: x / 255),
    ),
    Fault(
        name="init/all-zero",
        base="mlp-tanh",
        where=("fc0",),
        start=plant.filled("*", 0.0),
    ),
    Fault(
        name="optim/schedule-per-batch",
        base="mlp-adam",
        says=("learning rate",),
        start=plant.with_decay(0.4),
    ),
    Fault(
        name="optim/decay-in-adam",
        base="mlp-adam",
        says=("weight decay",),
        start=plant.group(weight_decay=1.0),
    ),
    Fault(
        name="optim/decay-in-adam-rnn",
        base="rnn",
        says=("weight decay",),
        start=plant.group(weight_decay=0.5),
    ),
    Fault(
        name="data/padding-counts",
        base="gpt",
        says=("targets",),
        batch=plant.with_padding,
        severity="note",
    ),
    Fault(
        name="arch/posterior-collapse",
        base="vae",
        where=("mu", "logvar"),
        start=plant.with_divergence(64.0),
        slow=60,
    ),
    Fault(
        name="arch/idle-experts",
        base="mlp",
        where=("fc2.experts.*",),
        start=plant.with_experts("fc2"),
        slow=20,
    ),
    Fault(
        name="mode/eval-dropout",
        base="mlp",
        where=("act1", "act3"),
        start=plant.both(
            plant.replaced(["act1", "act3"], partial(nn.Dropout, 0.2)), plant.in_eval_mode
        ),
    ),
    Fault(
        name="mode/eval-batch-norm",
        base="cnn-norm",
        where=("norm*",),
        start=plant.in_eval_mode,
    ),
    Fault(
        name="mode/eval-left-on",
        base="resnet-adam",
        where=("blocks.*.norm?",),
        step=LATE,
        start=plant.in_eval_mode,
    ),
    Fault(
        name="mode/batch-norm-of-two",
        base="mlp-adam",
        where=("act2",),
        start=plant.batch_normed("act2"),
        batch=lambda t, x, y: (x[:2], y[:2]),
    ),
)
"""All of them."""
