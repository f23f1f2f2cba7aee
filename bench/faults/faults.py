"""The table of planted faults: what is wrong, where, from which step on."""

from __future__ import annotations

import torch
from torch import nn

from bench.faults import plant
from bench.faults.everyday import EVERYDAY
from bench.faults.fault import LATE, Fault
from bench.faults.later import LATER

_DATA = ("inputs", "repeated inputs")
_LOSS = ("loss",)
_RATE = ("learning rate", "update size")
_SIZES = ("exploding", "sudden shift")


_QK = (0.0, 2 / 3)  # the rows of queries and keys
_HEAD = (1 / 12, 2 / 12)  # the queries of the second of four heads

FAULTS = (
    # Initialisation
    Fault(name="init/large-mlp", base="mlp", where=("fc2",), start=plant.scaled("fc2.weight", 50)),
    Fault(
        name="init/small-mlp", base="mlp", where=("fc3",), start=plant.scaled("fc3.weight", 0.01)
    ),
    Fault(
        name="init/large-gpt-attention",
        base="gpt",
        where=("h.2.attn.c_attn",),
        start=plant.scaled("h.2.attn.c_attn.weight", 50),
    ),
    Fault(
        name="init/one-head",
        base="gpt-small",
        where=("h.1.attn*",),
        start=plant.scaled("h.1.attn.c_attn.weight", 40, _HEAD),
    ),
    Fault(name="init/large-embedding", base="gpt", where=("wte",), start=plant.scaled("wte.*", 50)),
    Fault(name="init/small-cnn", base="cnn", where=("conv*",), start=plant.scaled("conv*", 0.05)),
    Fault(
        name="init/large-conv", base="cnn-adam", where=("conv1",), start=plant.scaled("conv1*", 30)
    ),
    Fault(name="init/large-head", base="resnet", where=("head",), start=plant.scaled("head*", 100)),
    Fault(
        name="init/large-bert",
        base="bert",
        where=("h.*", "wte", "wpe", "head"),
        start=plant.scaled("*.weight", 20),
    ),
    Fault(
        name="init/large-recurrence",
        base="rnn",
        where=("recur", "activation"),
        start=plant.scaled("recur.weight", 8),
    ),
    Fault(
        name="init/symmetric",
        base="mlp-adam",
        where=("fc1",),
        start=plant.filled("fc1.weight", 0.05),
    ),
    Fault(
        name="init/zero-layer", base="bert", where=("h.1.c_fc",), start=plant.filled("h.1.c_fc*", 0)
    ),
    Fault(
        name="init/small-under-norm",
        base="cnn-norm",
        where=("conv1",),
        start=plant.scaled("conv1*", 0.001),
    ),
    Fault(
        name="init/large-gpt-mlp",
        base="gpt-small",
        where=("h.3.c_fc",),
        start=plant.scaled("h.3.c_fc.weight", 40),
    ),
    Fault(
        name="init/small-bert-projection",
        base="bert",
        where=("h.2.attn.c_proj",),
        start=plant.scaled("h.2.attn.c_proj.weight", 0.005),
    ),
    # Data
    Fault(
        name="data/nan-pixel",
        base="mlp",
        says=(*_DATA, "non-finite"),
        step=LATE,
        last=LATE,
        batch=plant.of_inputs(plant.with_nan),
    ),
    Fault(
        name="data/scaled-batch",
        base="cnn",
        says=(*_DATA, *_SIZES),
        step=LATE,
        last=LATE,
        batch=plant.of_inputs(lambda x: 255 * x),
    ),
    Fault(
        name="data/unnormalised",
        base="mlp-adam",
        says=_DATA,
        batch=plant.of_inputs(lambda x: 64 * x + 128),
    ),
    Fault(
        name="data/blank-batch",
        base="resnet",
        says=_DATA,
        step=LATE,
        last=LATE,
        batch=plant.of_inputs(torch.zeros_like),
    ),
    Fault(
        name="data/noise-batch",
        base="cnn-norm-large",
        says=(*_DATA, *_LOSS),
        step=LATE,
        last=LATE,
        batch=plant.of_inputs(torch.randn_like),
    ),
    Fault(name="data/duplicated", base="mlp-adam", says=_DATA, step=LATE, batch=plant.duplicated),
    Fault(name="data/repeated", base="cnn", says=_DATA, step=LATE, batch=plant.again),
    Fault(name="data/shuffled-labels", base="mlp", says=_LOSS, batch=plant.wrong_labels),
    Fault(name="data/wrong-labels", base="bert", says=_LOSS, step=LATE, batch=plant.off_by_one),
    Fault(
        name="data/half-lost",
        base="cnn-norm",
        says=(*_DATA, *_LOSS),
        step=LATE,
        batch=plant.of_inputs(plant.half_lost),
    ),
    Fault(
        name="data/noise-tokens",
        base="gpt",
        says=(*_DATA, *_LOSS),
        step=LATE,
        batch=lambda t, x, y: (torch.randint_like(x, 64), y),
    ),
    Fault(
        name="data/constant-tokens",
        base="gpt",
        says=(*_DATA, *_LOSS),
        step=LATE,
        last=LATE,
        batch=plant.of_inputs(torch.zeros_like),
    ),
    Fault(
        name="data/shifted",
        base="resnet-adam",
        says=(*_DATA, *_LOSS),
        step=LATE,
        batch=plant.of_inputs(lambda x: x + 3),
    ),
    Fault(
        name="data/inverted",
        base="cnn-adam",
        says=(*_DATA, *_LOSS),
        step=LATE,
        batch=plant.of_inputs(lambda x: -x),
    ),
    Fault(
        name="data/wrong-label-batch",
        base="gpt-small",
        says=_LOSS,
        step=LATE,
        last=LATE,
        batch=plant.wrong_labels,
    ),
    Fault(
        name="data/scaled-late",
        base="rnn",
        says=(*_DATA, *_SIZES),
        step=LATE,
        batch=plant.of_inputs(lambda x: 50 * x),
    ),
    Fault(
        name="data/blank-tanh",
        base="mlp-tanh",
        says=_DATA,
        step=LATE,
        last=LATE,
        batch=plant.of_inputs(torch.zeros_like),
    ),
    Fault(
        name="data/raw-pixels",
        base="cnn-adam",
        says=_DATA,
        batch=plant.of_inputs(lambda x: 255 * x),
    ),
    # Optimisation
    Fault(
        name="optim/rate-high",
        base="mlp",
        says=(*_RATE, *_LOSS, *_SIZES),
        start=plant.group(lr=5.0),
    ),
    Fault(
        name="optim/rate-high-gpt",
        base="gpt",
        says=(*_RATE, *_LOSS, *_SIZES),
        start=plant.group(lr=1.0),
    ),
    Fault(name="optim/rate-jump", base="cnn-norm", says=_RATE, step=LATE, start=plant.faster(100)),
    Fault(name="optim/rate-jump-adam", base="bert", says=_RATE, step=LATE, start=plant.faster(100)),
    Fault(name="optim/rate-tiny", base="mlp-adam", says=_RATE, start=plant.group(lr=1e-9)),
    Fault(name="optim/rate-zero", base="resnet", says=_RATE, step=LATE, start=plant.group(lr=0.0)),
    Fault(
        name="optim/decay",
        base="gpt",
        says=("weight decay",),
        start=plant.group(weight_decay=100.0),
    ),
    Fault(
        name="optim/decay-sgd",
        base="cnn",
        says=("weight decay",),
        start=plant.group(weight_decay=5.0),
    ),
    Fault(name="optim/left-out", base="bert", where=("h.2.*",), start=plant.without("h.2.*")),
    Fault(
        name="optim/left-out-head", base="cnn-norm", where=("head",), start=plant.without("head*")
    ),
    Fault(
        name="optim/frozen", base="resnet", where=("blocks.2.*",), start=plant.frozen("blocks.2.*")
    ),
    Fault(
        name="optim/frozen-late",
        base="gpt",
        where=("h.1.*",),
        step=LATE,
        start=plant.frozen("h.1.*"),
    ),
    Fault(
        name="optim/no-clipping",
        base="gpt-small",
        says=("clipping", *_LOSS, *_SIZES),
        step=LATE,
        start=plant.without_clipping,
    ),
    Fault(
        name="optim/stale-momentum",
        base="cnn",
        says=(*_LOSS, *_SIZES),
        step=LATE,
        start=plant.stale_momentum,
    ),
    Fault(
        name="optim/sum-for-mean",
        base="rnn-sgd",
        says=(*_LOSS, *_SIZES),
        step=LATE,
        start=plant.with_loss(lambda loss: 64 * loss),
    ),
    Fault(
        name="optim/no-zeroing",
        base="cnn-norm-large",
        says=("accumulation", *_LOSS, *_SIZES),
        step=LATE,
        start=plant.without_zeroing,
    ),
    Fault(
        name="optim/wrong-sign",
        base="cnn-norm-small",
        says=(*_LOSS, *_SIZES),
        start=plant.group(maximize=True),
    ),
    Fault(
        name="optim/frozen-conv-late",
        base="cnn-norm",
        where=("conv1",),
        step=LATE,
        start=plant.frozen("conv1*"),
    ),
    Fault(
        name="optim/left-out-recurrence",
        base="rnn",
        where=("recur",),
        start=plant.without("recur*"),
    ),
    Fault(name="optim/rate-jump-rnn", base="rnn", says=_RATE, step=LATE, start=plant.faster(50)),
    # Numerics
    Fault(
        name="numerics/overflow",
        base="gpt-fp16",
        where=("h.2.*",),
        step=LATE,
        start=plant.scaled("h.2.c_fc.weight", 1e7),
    ),
    Fault(
        name="numerics/underflow",
        base="mlp-fp16",
        says=("underflow", "vanishing"),
        start=plant.both(plant.without_scaler, plant.with_loss(lambda loss: 1e-6 * loss)),
    ),
    Fault(
        name="numerics/scale-collapse",
        base="gpt-fp16",
        says=("non-finite", *_LOSS),
        step=LATE,
        start=plant.with_loss(lambda loss: 1e6 * loss),
    ),
    Fault(
        name="numerics/log-of-zero",
        base="mlp-adam",
        says=("non-finite", *_LOSS, *_SIZES),
        step=LATE,
        start=plant.without_log_softmax,
    ),
    Fault(
        name="numerics/no-epsilon",
        base="cnn-norm",
        where=("norm1", "conv1"),
        start=plant.both(
            plant.filled("conv1*", 0, (0, 0.1)), plant.replaced(["norm1"], plant.WithoutEpsilon)
        ),
    ),
    Fault(
        name="numerics/softmax-saturates",
        base="gpt",
        where=("h.1.attn*",),
        step=LATE,
        start=plant.scaled("h.1.attn.c_attn.weight", 30, _QK),
    ),
    Fault(
        name="numerics/bf16-stagnates",
        base="mlp-bf16",
        says=("rounding", "update size"),
        start=plant.group(lr=1e-5),
    ),
    Fault(
        name="numerics/bf16-stagnates-adam",
        base="gpt-bf16",
        says=("rounding", "update size"),
        start=plant.group(lr=1e-6),
    ),
    Fault(
        name="numerics/nan-weight",
        base="resnet-adam",
        where=("blocks.1.conv1",),
        step=LATE,
        start=plant.filled("blocks.1.conv1.weight", torch.nan, (0, 0.1)),
    ),
    # Architecture
    Fault(
        name="arch/no-norms-gpt",
        base="gpt",
        where=("h.*", "ln_f", "head"),
        start=plant.replaced([f"h.{i}.ln_{j}" for i in range(4) for j in (1, 2)], nn.Identity),
    ),
    Fault(
        name="arch/no-norms-resnet",
        base="resnet",
        where=("blocks.*",),
        start=plant.replaced(
            [f"blocks.{i}.norm{j}" for i in range(4) for j in (1, 2)], nn.Identity
        ),
    ),
    Fault(
        name="arch/doubled-residual",
        base="resnet",
        where=("blocks.*",),
        start=plant.with_shortcut(2),
    ),
    Fault(
        name="arch/doubled-residual-gpt", base="gpt", where=("h.*",), start=plant.with_shortcut(2)
    ),
    Fault(
        name="arch/dead-many",
        base="cnn",
        where=("conv1", "relu1"),
        start=plant.filled("conv1.bias", -20, (0, 0.75)),
    ),
    Fault(
        name="arch/dead-few",
        base="cnn-adam",
        where=("conv0", "relu0"),
        start=plant.filled("conv0.bias", -20, (0, 0.25)),
        severity="note",
    ),
    Fault(
        name="arch/dead-late",
        base="mlp",
        where=("fc2", "act2"),
        step=LATE,
        start=plant.filled("fc2.bias", -30),
    ),
    Fault(
        name="arch/saturated-tanh",
        base="mlp-tanh",
        where=("fc1", "act1"),
        start=plant.scaled("fc1.weight", 40),
    ),
    Fault(
        name="arch/uniform-attention",
        base="gpt",
        where=("h.2.attn*",),
        start=plant.filled("h.2.attn.c_attn.weight", 0, _QK),
    ),
    Fault(
        name="arch/one-hot-attention",
        base="bert",
        where=("h.0.attn*",),
        start=plant.scaled("h.0.attn.c_attn.weight", 15, _QK),
    ),
    Fault(
        name="arch/deep-sigmoid",
        base="mlp-adam",
        where=("fc*", "act*"),
        start=plant.replaced([f"act{i}" for i in range(5)], nn.Sigmoid),
    ),
    Fault(
        name="arch/exploding-rnn",
        base="rnn-sgd",
        where=("recur", "activation"),
        start=plant.both(plant.scaled("recur.weight", 5), plant.replaced(["activation"], nn.ReLU)),
    ),
    Fault(name="arch/cut-graph", base="gpt", where=("h.1*", "h.0*", "w*"), start=plant.cut("h.1")),
    Fault(
        name="arch/dead-block",
        base="resnet-adam",
        where=("blocks.2.norm1", "blocks.2.relu1"),
        start=plant.filled("blocks.2.norm1.bias", -20),
    ),
    Fault(
        name="arch/saturated-rnn",
        base="rnn",
        where=("enter", "activation"),
        start=plant.scaled("enter.weight", 100),
    ),
    Fault(
        name="arch/cut-resnet",
        base="resnet",
        where=("stem", "blocks.0*", "blocks.1*"),
        start=plant.cut("blocks.1"),
    ),
    *EVERYDAY,
    *LATER,
)
"""All faults."""
