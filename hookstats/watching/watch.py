"""watch(): records what a model's layers do while the model trains."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from hookstats.hooks.attach import MODULE_KINDS, make_reachable, select
from hookstats.hooks.channels import ChannelDim
from hookstats.hooks.masks import place_of_argument
from hookstats.hooks.selection import Selector
from hookstats.hooks.sharding import Sharding
from hookstats.rules import Monitor, RuleError, Rules, as_rules
from hookstats.rules.defaults import actions_of
from hookstats.runs.headers import wider_limit
from hookstats.runs.remote import directory_for, is_url
from hookstats.runs.world import current_rank, current_world, world_size
from hookstats.runs.writer import RunWriter
from hookstats.stats.bins import LinearBins, LogBins
from hookstats.watching.arguments import named
from hookstats.watching.handle import Watch
from hookstats.watching.out import NUMBER, is_nowhere, is_taken, numbered
from hookstats.watching.recorder import Recorder
from hookstats.watching.reduce import Exchange, Reduce
from hookstats.watching.settings import (
    Settings,
    as_models,
    as_optimizers,
    check_others,
    models_with_inputs,
    together,
    with_default,
)
from hookstats.watching.setup import setup_of
from hookstats.watching.sinks import Sink

MAX_BYTES = 10 << 30
"""What a run may have on the disk by default."""
_LOG_BINS = LogBins()
_open: WeakValueDictionary[Path, Watch] = WeakValueDictionary()
"""The watch of this process that wrote last into a directory."""


@named
def watch(
    model: nn.Module | Sequence[nn.Module] | Mapping[str, nn.Module],
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    *,
    kinds: Collection[str] | None = None,
    include: Selector | None = None,
    exclude: Selector | None = None,
    bins: LinearBins | LogBins | None = _LOG_BINS,
    channel_bins: LinearBins | LogBins | None = None,
    channel_dim: ChannelDim = "auto",
    every: int | str = "auto",
    budget: float = 0.03,
    out: str | os.PathLike[str] | None = None,
    append: bool = False,
    overwrite: bool = False,
    max_bytes: int | None = MAX_BYTES,
    sinks: Sequence[Sink] = (),
    rules: Rules = "default",
    mesh: DeviceMesh | None = None,
    reduce: Reduce | None = None,
    channels: str = "incidents",
    mask: str | None = None,
) -> Watch:
    """Record the statistics of a model's layers, step by step, while the model trains.

    The results of the training stay the same, bit for bit; the model gets only forward hooks. A
    site's name is the qualified name of its module or parameter ("" is the root module). A site's
    kind includes the path of the tensor: "output" for the only or first tensor, "output[1]",
    "output.logits", "input.mask", "grad_output[1]".

    Args:
        model: the model to record, not compiled yet; or several models, whose sites' names begin
            with the place or key of their model, such as "0.encoder" or "generator.conv1".
        optimizer: its step ends a step of the recording, numbered from 0. With several optimizers,
            the last one that has not stepped yet ends the step; a warning names an optimizer that
            stops or never begins. Without an optimizer, `Watch.step` ends the step. A wrapper, such
            as Accelerate's or SAM, stands for the optimizer in it. An optimizer that gets a closure
            ends the step when it returns, any other when it begins.
        kinds: which tensors to record. "input", "output": floating-point tensors of a module's
            calls. "grad_output": the gradients of its outputs. "grad_input": the gradients of its
            inputs, each the total over all uses of the tensor. "param", "param_grad": a parameter
            and its gradient as the optimizer is about to use them, or, with a closure, as the
            optimizer left them. "update": the change of a parameter by the optimizer; in recorded
            steps this needs memory for a copy of the watched parameters of one optimizer.
            "optimizer_state": the optimizer's tensors for a parameter after its step, each a kind,
            such as "optimizer_state.exp_avg". "update" and "optimizer_state" end the step when the
            last optimizer is done. "attention": how heads attend in calls of
            `torch.nn.functional.scaled_dot_product_attention`, see `attention`, by the names of the
            modules that make the calls. "checksum": that of each parameter's bits as the step ends,
            see `insight.unequal_replicas`. "noise_scale": the gradient noise scale of each
            parameter group, a number that `Run.scalars` has of steps with several micro-batches.
            The default is "output", "grad_output" and "param_grad", and, unless `include` is given,
            the "input" of the model as a whole, so that a bad batch is seen; integers in it, such
            as token ids, count, too, as whole tensors. "default" stands for it:
            ``kinds=("default", "attention")``.
        include: what to watch: a glob or a compiled regular expression for names of modules and
            parameters, a module type, a callable (name, module) -> bool, or several of these. The
            default is every module without children, every module that owns parameters, such as
            `nn.MultiheadAttention`, and every parameter. A chosen module's parameters are chosen
            with it. A name without wildcards must exist.
        exclude: what not to watch, in the same terms.
        bins: the bins of one histogram per tensor; None for no such histograms. Bins with a
            `sample` count some of each tensor's values, which costs less; see `LogBins`.
        channel_bins: the bins of one histogram per channel; None for no such histograms.
        channel_dim: the channel dimension of modules' tensors: "auto" (see
            `channels.channel_rule`), a dimension, None for the whole tensor, or a mapping of module
            types to these. The channels of parameters are in dimension 0.
        every: "auto" records the first 64 steps and not the next 32, and measures the cost of
            recording by the difference. After these it records every 2^k-th step, with the least k
            that keeps to the `budget`. At the multiples of 8192 it measures again, and k may change
            by one. It also records the ten steps after an incident, a leap of a logged loss, what a
            rule suspects, a new step number, or a change of a learning rate by more than 2.
            `coverage` lists each choice. A number n records the steps 0, n, 2 * n, ..., and ten
            after an incident, a leap or a suspicion. Logged numbers are kept at all steps.
        budget: with "auto", the share of the training's time that recording may take.
        out: a new or empty directory for the run, which `open_run` reads; None for no directory.
            A URL that fsspec takes, such as "s3://bucket/runs/a": the run is written below
            ~/.cache/hookstats, or HOOKSTATS_CACHE, and uploaded part by part, on another thread.
            "{n}" in it stands for the first free number: "runs/a-{n}" is "runs/a-1", and the next
            time "runs/a-2"; several ranks need a process group for that. `Watch.path` is the
            absolute path.
        append: whether `out` may hold a run of the same model and settings, which is continued:
            steps are numbered from the last recorded step, or from that of
            `Watch.load_state_dict`.
        overwrite: whether to delete a run in `out`. An open watch of this process that writes it is
            closed first, so that a notebook's cell can run again. A directory that holds anything
            else is refused, and so is a run that another process is writing.
        max_bytes: the most bytes that the run may take in `out`, by default 10 GiB; None for no
            limit. The ranks have equal shares. Old steps are thinned to stay below the limit: the
            newest quarter stays whole; every second older block of steps is deleted, then every
            second of the remaining ones, and so on, the same blocks on all ranks. Ten recorded
            steps before and after each incident worse than a note stay, too, in up to half of the
            limit. `Run.thinned` counts the deleted steps. By default a continued run keeps a wider
            limit, None included. A line on stderr estimates the size after the first part, and
            another one announces the first deletion.
        sinks: callables that get each StepRecord, on another thread; see `hookstats.sinks`.
        rules: "default" for `rules.default_rules()`, or some of `hookstats.rules`, by name, class
            or as a Rule; False or () for none. They check each recorded step on the thread of the
            sinks, and warn once when a problem starts; `Watch.incidents` and the run have all
            findings. Callables among them, such as `hookstats.actions.Slack(url)`, are called with
            each incident. Rules read the parameters here, once, before the first step.
        mesh: over which ranks plain tensors are spread, where DDP, FSDP and DTensors do not say so:
            a DeviceMesh with names. Ranks along "pp" have different stages, ranks along "cp" and
            "sp" parts of sequences, ranks along all others parts of the batch. How ranks share
            plain tensors along "tp..." (tensor parallelism), and parameters along "ep..."
            (experts), is unknown.
        reduce: how to merge the ranks' tensors during the training, for `Watch.latest`, sinks and
            rules; None to merge them when the run is read. All ranks must then begin and end their
            watches together.
        channels: which recorded steps keep their channels in `out`: "incidents" for the first 8,
            one of 16, and 4 before and 10 after each finding worse than a note; "always" or
            "never". All recorded steps keep whole tensors. `Watch.latest`, sinks and rules get all
            channels in any case.
        mask: the name of an argument of the model's forward, or of each model's, that is 0 where a
            batch has padding, such as "attention_mask" [batch, time]: padding is left out of the
            statistics of the calls' tensors and of their gradients. `Watch.mask` describes which
            tensors, and takes masks that are no argument. A call without the argument has no mask.

    Where an optimizer ends the steps, calls with gradients off and the model in eval mode (each
    model, if there are several) are an evaluation; they are skipped, and `coverage` counts them. So
    are calls without gradients in training mode, and calls with gradients in eval mode if the last
    step was trained in training mode; one line says so. If all calls of the first step are like
    that, they are the training. ``with w.phase("evaluation"):`` records an evaluation separately.
    Without an optimizer all calls count.

    If a module is called several times in a step, its calls are merged. Calls with other numbers of
    channels are separate sites: `relu`, then `relu[64ch]`, and from the fifth number of channels on
    `relu[whole]`, which takes the whole tensor as one channel. Calls during a backward, which
    recompute a checkpoint's activations, are skipped; `coverage` counts them, as it counts
    everything without statistics. A gradient counts each time a backward brings it.

    Raises:
        ValueError: a bad argument, a mask that the model's forward does not take, a selection that
            matches nothing, a compiled model; or the run in `out` that `append` continues has other
            settings, such as other `bins`.
        OSError: `out` cannot be written, holds another run and neither `append` nor `overwrite` is
            given, or another watch of this rank writes to `out`.
        RuntimeError: `reduce` is given, and another rank does not watch with it.
        ImportError: `out` is given and pyarrow is not installed.
        TypeError: there is no such argument; the message has the right call.
    """
    models = as_models(model)
    optimizers = as_optimizers(optimizer)
    max_bytes = check_others(max_bytes, append, overwrite, mesh, sinks)
    if NUMBER in str(out):  # whose run is always new
        append = overwrite = False
    kinds, has_default = with_default(kinds)
    by_default = has_default and include is None
    settings = Settings(
        kinds, bins, channel_bins, channel_dim, every, budget, channels, mask
    ).checked()
    for one in models.values():
        if settings.mask is not None and not isinstance(one, torch.jit.ScriptModule):
            place_of_argument(one, settings.mask)
    if not (reduce is None or isinstance(reduce, Reduce)):
        raise ValueError(f"reduce = {reduce!r}: expected a hookstats.Reduce or None")
    exchange = None if reduce is None else Exchange(reduce)
    chosen = as_rules(rules)
    selection = select(together(models), kinds, include, exclude, "watch")
    with_inputs = models_with_inputs(models, selection) if by_default else {}
    make_reachable({} if set(kinds).isdisjoint(MODULE_KINDS) else selection.modules | with_inputs)
    sharding = Sharding(models.values(), mesh)
    header = settings.header(models, selection)
    if (parts := sharding.batches) is not None:
        header["grad_scale"] = 1 / parts
    setup = setup_of(selection, optimizers) if chosen else None
    monitor = Monitor(chosen, setup)
    if exchange is not None:
        exchange.notify = monitor.notify
    of_run = dict(header)
    if setup is not None:
        of_run |= {"setup": setup.to_dict(), "rules": [rule.name for rule in chosen]}
    writer, place = None, None
    if out is not None and not is_nowhere():
        writer, place = _writer(out, of_run, append, overwrite, max_bytes)
    try:
        recorder = Recorder(writer, sinks, monitor if monitor.has_rules else None, exchange)
        monitor.keep = recorder.write_alerts
        if (actions := actions_of(rules)) and current_rank() == 0:
            recorder.notify_of_incidents(actions)
        last = None if writer is None else writer.last_step
        made = Watch(
            *(models.values(), with_inputs, selection, optimizers, settings, header),
            *(recorder, monitor, 0 if last is None else last + 1, sharding),
        )
    except BaseException:  # the lock of the run is to be free
        if writer is not None:
            with suppress(Exception):
                writer.close()
        raise
    made.path = None if writer is None else writer.path
    if made.path is not None:
        _open[made.path] = made
    if is_url(place):
        recorder.upload(place, append=append, overwrite=overwrite)
    return made


def _writer(
    out: str | os.PathLike[str],
    header: dict[str, Any],
    append: bool,
    overwrite: bool,
    max_bytes: int | None,
) -> tuple[RunWriter, str]:
    """The writer, and the path or URL of its run."""
    rank, ranks, place = current_rank(), world_size(), numbered(out)
    path = Path(place)
    if is_url(place):
        path = directory_for(place, rank, append=append, overwrite=overwrite)
    share = None if max_bytes is None else max(1, max_bytes // ranks)
    if append and share is not None and max_bytes == MAX_BYTES:
        share = wider_limit(path, rank, share)
    if overwrite and (former := _open.get(path.resolve())) is not None:
        with suppress(RuleError):  # of the training that is replaced
            former.close()
    try:
        writer = RunWriter(
            path,
            header,
            rank=rank,
            append=append,
            overwrite=overwrite,
            max_bytes=share,
            locked=True,
            says=rank == 0,
            world=current_world(),
            ranks=ranks,
        )
    except FileExistsError:
        # A job that started at the same time was faster to take the number.
        if NUMBER in str(out) and is_taken(place):
            return _writer(out, header, append, overwrite, max_bytes)
        raise
    return writer, place
