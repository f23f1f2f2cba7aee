"""watch(): records what a model's layers do while it trains; Watch: the handle of that."""

from __future__ import annotations

import copy
import os
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from hookstats.arena.arena import Arena
from hookstats.hooks.attach import MODULE_KINDS, check_kinds, check_model, make_reachable, select
from hookstats.hooks.channels import ChannelDim, channel_rule, check_channel_dim
from hookstats.hooks.coverage import Coverage
from hookstats.hooks.dynamo import tidy
from hookstats.hooks.modules import InputHook, OutputHook, fastest
from hookstats.hooks.parameters import Parameters, StepHook, parameter_rule
from hookstats.hooks.selection import Selection, Selector
from hookstats.hooks.sites import Site, Sites
from hookstats.records.record import StepRecord
from hookstats.rules import Alert, Monitor, Rule, RuleError
from hookstats.runs.headers import check_settings
from hookstats.runs.writer import RunWriter
from hookstats.stats.bins import Bins, LinearBins, LogBins
from hookstats.watching.flush import Flusher, Sink
from hookstats.watching.world import current_rank

PARAMETER_KINDS = ("param", "param_grad")
KINDS = MODULE_KINDS + PARAMETER_KINDS
"""What can be watched."""

_LOG_BINS = LogBins()


class Watch:
    """A model that is being recorded; `watch` makes it. As a context manager, closed at the end.

    Once it is closed, `latest` and `coverage` still answer, all else raises ValueError.
    """

    def __init__(
        self,
        selection: Selection,
        optimizers: Sequence[Optimizer],
        kinds: Collection[str],
        channel_dim: ChannelDim,
        every: int,
        arena: Arena,
        flusher: Flusher,
        monitor: Monitor,
        settings: Mapping[str, Any],
        first_step: int,
    ) -> None:
        self._every = every
        self._arena = arena
        self._flusher = flusher
        self._monitor = monitor
        self._settings = settings
        self._step = first_step
        self._paused = False
        self._recorded = False  # at any time in the open step
        self._closed = False
        self._discarded = 0
        self._sites: list[Sites | Site] = []
        self._handles: list[RemovableHandle] = []
        self._parameters = Parameters(arena)
        self._optimizers = len(optimizers)
        self._stepped: set[int] = set()
        try:
            for name, module in selection.modules.items():
                self._attach(name, module, kinds, channel_dim)
            for name, parameter in selection.parameters.items():
                rule = parameter_rule(parameter)
                sites = {
                    kind: Site(arena, name, kind, rule) for kind in PARAMETER_KINDS if kind in kinds
                }
                self._sites += sites.values()
                owner, key = selection.owners[name]
                self._parameters.add(owner, key, sites.get("param"), sites.get("param_grad"))
            for i, optimizer in enumerate(optimizers):
                step = partial(StepHook, arena, self._parameters, partial(self._stepped_by, i))
                self._handles += (
                    optimizer.register_step_pre_hook(step(after=False)),
                    optimizer.register_step_post_hook(step(after=True)),
                )
        except BaseException:
            self.close()
            raise
        self._schedule()

    def _attach(
        self, name: str, module: nn.Module, kinds: Collection[str], channel_dim: ChannelDim
    ) -> None:
        rule = channel_rule(module, channel_dim)
        sites = {
            kind: Sites(self._arena, name, kind, rule) for kind in MODULE_KINDS if kind in kinds
        }
        self._sites += sites.values()
        if isinstance(module, torch.jit.ScriptModule):
            return
        value, gradient = sites.get("input"), sites.get("grad_input")
        if value is not None or gradient is not None:
            before = fastest(InputHook(self._arena, value, gradient))
            self._handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        value, gradient = sites.get("output"), sites.get("grad_output")
        if value is not None or gradient is not None:
            after = fastest(OutputHook(self._arena, value, gradient))
            self._handles.append(module.register_forward_hook(after))

    def step(self) -> None:
        """Close a step by hand: once an iteration where `watch` was given no optimizer.

        Without an optimizer, parameters and their gradients are observed here. With some, it closes
        a step that they left open: one that a GradScaler skipped, or in which not all of them step.
        """
        self._check_open()
        if not self._optimizers and self._arena.recording:
            self._parameters.observe_all()
        self._close_step()

    @property
    def latest(self) -> StepRecord:
        """The last step recorded, a mapping from (name, kind) to ChannelStats with its `step`.

        Waits until the last closed step is recorded.

        Raises:
            RuntimeError: there is none yet.
        """
        self._flusher.drain(disk=False)
        if self._flusher.latest is None:
            raise RuntimeError(
                "latest: no step is recorded yet, expected a call of optimizer.step(), or of "
                "step() of the watch, before"
            )
        return self._flusher.latest

    @property
    def alerts(self) -> tuple[Alert, ...]:
        """The alerts of all rules so far; waits until the last closed step is recorded."""
        self._flusher.drain(disk=False)
        return tuple(self._monitor.alerts)

    def coverage(self) -> Coverage:
        """What was observed, skipped and missed so far, site by site."""
        with self._arena.lock:
            rows = [row for sites in self._sites for row in sites.rows()]
        return Coverage(
            rows=tuple(rows),
            steps=self._step,
            discarded=self._discarded,
            stalls=self._arena.stalls,
            failures=self._flusher.failures | self._monitor.failures,
        )

    def pause(self) -> None:
        """Observe nothing until `resume`. Steps are still counted, but none is recorded in which
        nothing was observed."""
        self._check_open()
        self._paused = True
        self._schedule()

    def resume(self) -> None:
        """Observe again after `pause`."""
        self._check_open()
        self._paused = False
        self._schedule()

    def state_dict(self) -> dict[str, Any]:
        """The number of the step to come, and the settings: for a checkpoint of the training."""
        return {"step": self._step, "settings": copy.deepcopy(dict(self._settings))}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Number the next step as `state_dict` says, after a restart or a return to a checkpoint.

        What a run directory holds of that step and later ones is void as soon as it is recorded.

        Raises:
            ValueError: the state is of a watch with other settings, or no state of a watch.
        """
        self._check_open()
        step, settings = state_dict.get("step"), state_dict.get("settings")
        if not isinstance(step, int) or step < 0 or not isinstance(settings, Mapping):
            raise ValueError(
                f"state_dict = {state_dict!r}: expected what state_dict() of a watch gives"
            )
        check_settings(settings, self._settings, "state_dict")
        self._step = step
        self._schedule()

    def close(self) -> None:
        """Remove every hook, record what is closed, end the run directory; again does nothing.

        A step that is still open is no whole step: it is discarded, and counted in the coverage.

        Raises:
            RuleError: a rule whose action is "raise" has an alert that was not raised yet.
        """
        self._closed = True
        self._schedule()
        while self._handles:
            self._handles.pop().remove()
        self._discarded = self._arena.pending()
        self._flusher.close(self.coverage().to_dict())
        self._monitor.raise_pending()

    def __enter__(self) -> Watch:
        self._check_open()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except RuleError:
            if exc is None:  # else that is the training's own error, and comes first
                raise

    def _stepped_by(self, optimizer: int) -> None:
        """An optimizer steps; the last of them closes the step."""
        with self._arena.lock:  # in a backward, they may step on several threads
            self._stepped.add(optimizer)
            is_last = len(self._stepped) == self._optimizers
            if is_last:
                self._stepped.clear()
        if is_last:
            self._close_step()

    def _close_step(self) -> None:
        if self._arena.is_captured():
            return  # replays of the graph will close none
        step = self._step
        self._step += 1
        self._stepped.clear()
        self._parameters.look_again()
        recorded = self._arena.recording or (self._recorded and self._arena.pending() > 0)
        if recorded:
            self._flusher.submit(self._arena.swap(), step)
        self._recorded = False
        self._schedule()
        if self._recorded and not recorded:
            self._arena.discard_late()
        self._monitor.raise_pending()

    def _schedule(self) -> None:
        tidy()
        due = self._step % self._every == 0
        self._arena.record(due and not self._paused and not self._closed)
        self._recorded |= self._arena.recording

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("the watch is closed: expected an open one, from another watch()")


def watch(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    kinds: Collection[str] = ("output", "grad_output", "param_grad"),
    include: Selector | None = None,
    exclude: Selector | None = None,
    bins: LinearBins | LogBins | None = _LOG_BINS,
    channel_bins: LinearBins | LogBins | None = None,
    channel_dim: ChannelDim = "auto",
    every: int = 1,
    out: str | os.PathLike[str] | None = None,
    append: bool = False,
    max_bytes: int | None = None,
    sinks: Sequence[Sink] = (),
    rules: str | Sequence[Rule] = (),
) -> Watch:
    """Record the statistics of a model's layers, step by step, while it trains.

    The training is not changed by a bit, and nothing is added to the model but forward hooks.
    Sites are named by the qualified name of their module or parameter ("" is the root module), and
    by their kind with the path of the tensor: "output" for the only or first one, "output[1]",
    "output.logits", "input.mask", "grad_output[1]".

    Args:
        model: what to record; not compiled yet.
        optimizer: closes a step, numbered from 0, as it begins its own; or, given a closure, as it
            ends its own. Of several, the last that has not stepped since. Without: `Watch.step`.
        kinds: "input", "output": floating-point tensors of a module's calls. "grad_output": the
            gradients of its outputs. "grad_input": those of its inputs, the total ones, over all
            that use the tensor. "param", "param_grad": a parameter and its gradient as the
            optimizer is about to use them; given a closure, as it left them.
        include: what to watch: a glob or a compiled regular expression for names of modules and
            parameters, a module type, a callable (name, module) -> bool, or several of these.
            By default every module without children and every parameter. A chosen module's
            parameters are chosen with it. A name without wildcards has to be there.
        exclude: what not to watch, in the same terms.
        bins: of one histogram a tensor, None for none.
        channel_bins: of one histogram a channel, None for none.
        channel_dim: where modules' tensors have their channels: "auto" (see
            `channels.channel_rule`), a dimension, None for the whole tensor, or a mapping of module
            types to these. Parameters have theirs in dimension 0.
        every: steps 0, every, 2 * every, ... are recorded.
        out: a new or empty directory for the run, to be read by `open_run`; None for none.
        append: whether `out` may hold a run of the same model and settings, which is continued:
            steps are numbered on from the last it has, or from what `Watch.load_state_dict` says.
        max_bytes: what `out` may hold, of each rank; old steps are thinned to keep to it. The
            newest quarter is kept whole; of what is older every second part is deleted, then every
            second that is left, and so on. `Run.thinned_of` counts what was deleted.
        sinks: callables that get each StepRecord, on another thread; see `hookstats.sinks`.
        rules: "default" for `rules.default_rules()`, or some of `hookstats.rules`: what is checked
            in each recorded step, on the same thread, and warned of once it goes wrong.

    A module that is called several times in a step has its calls merged. Calls while a backward
    runs, which recompute a checkpoint's activations, are skipped, and counted as `coverage` counts
    everything that has no statistics. A gradient counts each time a backward brings it.

    Raises:
        ValueError: a bad argument, a selection that matches nothing, a compiled model.
        OSError: `out` cannot be written, or holds another run and `append` is false.
        ImportError: `out` is given and pyarrow is not installed.
    """
    check_model(model)
    optimizers = _optimizers(optimizer)
    check_kinds(kinds, KINDS)
    for name, value in (("bins", bins), ("channel_bins", channel_bins)):
        if value is not None and not isinstance(value, (LinearBins, LogBins)):
            raise ValueError(f"{name} = {value!r}: expected LinearBins, LogBins or None")
    check_channel_dim(channel_dim)
    if not isinstance(every, int) or isinstance(every, bool) or every < 1:
        raise ValueError(f"every = {every!r}: expected an integer, 1 or more")
    if not (isinstance(sinks, Sequence) and all(map(callable, sinks))):
        raise ValueError(f"sinks = {sinks!r}: expected a sequence of callables")
    monitor = Monitor(rules)
    selection = select(model, kinds, include, exclude, "watch")
    if not set(kinds).isdisjoint(MODULE_KINDS):
        make_reachable(selection.modules)
    settings = _settings(model, selection, kinds, bins, channel_bins, channel_dim, every)
    writer, step = None, 0
    if out is not None:
        writer = RunWriter(out, settings, rank=current_rank(), append=append, max_bytes=max_bytes)
        step = 0 if writer.last_step is None else writer.last_step + 1
    arena = Arena(bins, channel_bins)
    flusher = Flusher(writer, (*sinks, monitor) if rules else sinks)
    return Watch(
        selection, optimizers, kinds, channel_dim, every, arena, flusher, monitor, settings, step
    )


def _optimizers(optimizer: Any) -> list[Optimizer]:
    several = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
    for one in several:
        if not (isinstance(one, Optimizer) or optimizer is None):
            raise ValueError(
                f"optimizer has {one!r}: expected a torch.optim.Optimizer, several, or None"
            )
    if len({id(one) for one in several}) < len(several):
        raise ValueError("optimizer: the same one twice, expected each once")
    return [] if optimizer is None else several


def _settings(
    model: nn.Module,
    selection: Selection,
    kinds: Collection[str],
    bins: Bins | None,
    channel_bins: Bins | None,
    channel_dim: ChannelDim,
    every: int,
) -> dict[str, Any]:
    """What is recorded of which model, JSON-able: the header of the run directory."""
    if isinstance(channel_dim, Mapping):
        channel_dims: Any = {cls.__qualname__: dim for cls, dim in channel_dim.items()}
    else:
        channel_dims = channel_dim
    return {
        "model": type(model).__qualname__,
        "modules": {name: type(module).__name__ for name, module in selection.modules.items()},
        "parameters": {
            name: None if is_lazy(parameter) else list(parameter.shape)
            for name, parameter in selection.parameters.items()
        },
        "kinds": list(kinds),
        "bins": bins and bins.to_dict(),
        "channel_bins": channel_bins and channel_bins.to_dict(),
        "channel_dim": channel_dims,
        "every": every,
        "torch": str(torch.__version__),
    }
