"""Faults that were planted after the rules had been tuned: what rules find of the unseen."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from torch import nn

from bench.faults import plant
from bench.faults.fault import LATE, Fault

_DATA = ("inputs", "repeated inputs")
_SIZES = ("exploding", "sudden shift")

_FAULTS = (
    Fault(
        name="init/large-norm-gain",
        base="bert",
        where=("h.1.ln_2", "h.1.c_fc"),
        start=plant.scaled("h.1.ln_2.weight", 40),
    ),
    Fault(
        name="init/zero-norm-gain",
        base="resnet-adam",
        where=("blocks.1.norm1", "blocks.1.relu1", "blocks.1.conv1", "blocks.1.conv2"),
        start=plant.filled("blocks.1.norm1.weight", 0),
    ),
    Fault(
        name="init/large-bias",
        base="mlp-tanh",
        where=("fc3", "act3"),
        start=plant.filled("fc3.bias", 30),
    ),
    Fault(
        name="data/shuffled-pixels",
        base="mlp",
        says=(*_DATA, "loss"),
        step=LATE,
        batch=plant.of_inputs(plant.shuffled_pixels),
    ),
    Fault(
        name="data/one-class",
        base="cnn-norm-large",
        says=(*_DATA, "targets", "loss"),
        step=LATE,
        batch=plant.one_class,
    ),
    Fault(
        name="data/one-label",
        base="mlp-adam",
        says=(*_DATA, "targets", "loss"),
        batch=plant.one_label,
    ),
    Fault(
        name="data/mostly-padding",
        base="bert-small",
        says=(*_DATA, "loss"),
        step=LATE,
        batch=plant.of_inputs(plant.mostly_padding),
    ),
    Fault(
        name="data/channel-lost",
        base="cnn-colours",
        says=(*_DATA, "loss"),
        step=LATE,
        batch=plant.of_inputs(plant.without_channel),
    ),
    Fault(
        name="optim/no-warm-up",
        base="bert-warm-up",
        says=("update size", "learning rate", "loss", "collapse", "vanishing", *_SIZES),
        start=plant.without_warm_up,
    ),
    Fault(
        name="optim/tiny-clip",
        base="cnn-norm",
        says=("clipping", "update size", "loss"),
        start=plant.clipped(1e-5),
    ),
    Fault(
        name="optim/large-epsilon",
        base="mlp-adam",
        says=("update size", "loss"),
        start=plant.group(eps=1e3),
    ),
    Fault(
        name="optim/group-rate",
        base="bert",
        says=("update size", "learning rate", "loss", *_SIZES),
        start=plant.own_group("head*", 1000),
    ),
    Fault(
        name="optim/zeroed-too-late",
        base="rnn",
        says=("loop", "untrained", "update size", "loss"),
        start=plant.zeroed_too_late,
    ),
    Fault(
        name="numerics/norm-epsilon",
        base="gpt",
        where=("h.1.ln_1", "h.1.attn*"),
        start=plant.with_epsilon("h.1.ln_1", 1e6),
    ),
    Fault(
        name="numerics/temperature",
        base="rnn-sgd",
        says=("update size", "loss", "vanishing"),
        start=plant.with_temperature(1e4),
    ),
    Fault(
        name="arch/dropout",
        base="mlp-adam",
        where=("act2", "fc3", "act3"),
        start=plant.replaced(["act2"], partial(nn.Dropout, 0.99)),
    ),
    Fault(
        name="arch/rectified-logits",
        base="mlp-fp16",
        says=("logits", "loss graph"),
        start=plant.followed_by(nn.ReLU),
    ),
    Fault(
        name="arch/softmax-twice",
        base="mlp",
        says=("logits", "loss graph"),
        start=plant.followed_by(partial(nn.Softmax, -1)),
    ),
)

LATER = tuple(replace(fault, later=True) for fault in _FAULTS)
"""All of them."""
