"""Watch: the handle of a recording, which attaches the hooks and closes the steps."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from itertools import takewhile
from pathlib import Path
from threading import get_ident
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from hookstats.buffers.double_buffer import DoubleBuffer, Stuck
from hookstats.hooks import checksums
from hookstats.hooks.choices import lists_of
from hookstats.hooks.coverage import Coverage
from hookstats.hooks.dynamo import break_graphs, tidy
from hookstats.hooks.inert import Unique, weakly
from hookstats.hooks.masks import Masks
from hookstats.hooks.noise_scale import NOISE_SCALE, NoiseScale
from hookstats.hooks.observe import Point, listen
from hookstats.hooks.readable import own_dispatch
from hookstats.hooks.root_modules import RootModules
from hookstats.hooks.routers import entropy_of
from hookstats.hooks.selection import Selection
from hookstats.hooks.sharding import Sharding
from hookstats.hooks.step_sample import StepSample, update_ratio
from hookstats.hooks.steps import Optimizers, StepHook
from hookstats.hooks.toggle import HookToggle
from hookstats.records.alerts import Incidents
from hookstats.records.keys import check_phase
from hookstats.records.loads import Loads
from hookstats.records.record import StepRecord
from hookstats.records.replicas import CHECKSUM
from hookstats.rules import Alert, Monitor, RuleError
from hookstats.rules.facts import Fact
from hookstats.runs.headers import check_settings
from hookstats.stats.arguments import check_integer
from hookstats.stats.messages import error_text, say, warn
from hookstats.watching.batches import KeptBatches, attach
from hookstats.watching.loop import Loop
from hookstats.watching.loss_graphs import LossGraphs
from hookstats.watching.observers import Observers
from hookstats.watching.recorder import Recorder
from hookstats.watching.scalars import (
    OnDevice,
    ScalarLog,
    StepScalars,
    as_samples,
    as_scalars,
    learning_rates,
)
from hookstats.watching.schedule import Cost, Schedule
from hookstats.watching.settings import AUTO, Settings, unwrapped
from hookstats.watching.silence import Silence

_LAST_STEP = 2**62  # steps are int64 in run directories, and are counted on from here

_STUCK = 4  # iterations without a step, once `_KNOWN` recorded steps have shown what is usual
_STUCK_FROM_START = 32  # a loss scaler that looks for its first scale skips up to sixteen
_KNOWN = 8


class Watch(Unique):
    """The recording of a model; `watch` makes it. As a context manager, it is closed at the end.

    A `closed` watch still has `latest`, `alerts` and `coverage`; everything else raises ValueError.

    A watch without references is closed when it can get no more steps or nothing reads its records:
    its optimizers keep it alive as long as it has a run directory, sinks or rules. A model may hold
    its watch: a deep copy of the model has the same watch, a pickle an empty OrderedDict.
    """

    _closed = True  # until it is open

    def __init__(
        self,
        models: Iterable[nn.Module],
        with_inputs: Mapping[str, nn.Module],
        selection: Selection,
        optimizers: Sequence[Optimizer],
        settings: Settings,
        header: Mapping[str, Any],
        recorder: Recorder,
        monitor: Monitor,
        first_step: int,
        sharding: Sharding,
    ) -> None:
        """with_inputs: the models whose own inputs are recorded, by name.

        header: that of the run directory, `Settings.header`.
        """
        self.path: Path | None = None
        """The run directory; None where `out` was not given."""
        self._settings = settings
        self._header = header
        self._buffers = buffers = DoubleBuffer(settings.bins, settings.channel_bins)
        buffers.while_waiting, buffers.has_room = recorder.hurry, recorder.has_room
        if settings.every not in (1, AUTO):
            recorder.rest = 0.0  # steps are few, and `after` wants to know early
        self._recorder = recorder
        self._monitor = monitor
        self._step = first_step
        self._offset = first_step  # so far, step numbers are ahead of the steps closed
        self._paused = False
        self._recorded = False  # whether hooks observed at any time in the open step
        self._closed = False
        self._thread = 0  # that closed the last step
        self._discarded = 0
        self._uncounted: dict[str, str] = {}
        self._told = False
        self._rates: Mapping[str, object] = {}  # of the last step
        self._batches: KeptBatches | None = None
        self._handles: list[RemovableHandle] = []
        self._toggle = HookToggle()
        models = list(models)
        self._roots = RootModules(models, buffers)
        self._masks = Masks(buffers, settings.mask)
        self._observers = Observers(buffers, settings, sharding)
        self._log = ScalarLog(partial(_has_begun, self._roots, buffers), recorder.submit_scalars)
        recorder.before_exit = weakly(self._close_at_exit)
        self._cost = Cost(buffers)
        self._when = Schedule(
            *(settings.every, settings.budget, monitor, buffers),
            *(lambda: recorder.spent, lambda: recorder.exchange),
        )
        self._optimizers = Optimizers(self._roots)
        self._graphs = LossGraphs(models, self._optimizers, recorder.submit_fact)
        self._silence = Silence(models, self._observers.gradients)
        self._roots.note_call = self._silence.note_call
        names = {id(parameter): name for name, parameter in selection.parameters.items()}
        self._loop = None
        if monitor.has_rules:
            self._loop = Loop(names, selection.modules, buffers, weakly(self._tell))
        try:
            self._attach(models, with_inputs, selection, optimizers)
        except BaseException:
            self.close()
            raise
        self._schedule()

    def _attach(
        self,
        models: Sequence[nn.Module],
        with_inputs: Mapping[str, nn.Module],
        selection: Selection,
        optimizers: Iterable[Optimizer],
    ) -> None:
        self._handles += self._silence.attach()
        self._handles += self._roots.attach()
        self._handles += self._masks.attach(models)
        for name, model in with_inputs.items():
            self._handles += self._observers.attach_model_inputs(name, model)
        for name, module in selection.modules.items():
            self._keep(module, self._observers.attach(selection, name))
        self._handles += self._masks.attach_ends(models)
        self._handles += self._roots.attach_ends()
        self._handles += self._observers.attach_attention(selection)
        log = weakly(self._log_router)
        for module, handle in self._observers.attach_choices(selection, log):
            self._keep(module, [handle])
        self._recorder.loads = Loads(lists_of(selection.all_modules))
        for name in selection.parameters:
            self._observers.add_parameter(selection, name)
        for optimizer in optimizers:
            self._add_optimizer(optimizer)
        self._points = selection.names()
        self._handles.append(listen(weakly(self._attach_point), self._buffers.is_observing))

    def _attach_point(self, name: str, point: Point) -> None:
        """Set the hooks of a point of `observe`, at its first call, if it is chosen."""
        if self._points.wants(name, point):
            name += "'" * self._points.has(name, parameters=True)
            self._keep(point, self._observers.attach_point(name, point))

    def _keep(self, module: nn.Module, handles: Sequence[RemovableHandle]) -> None:
        """Remove these hooks of a module at the end, and take them off while nothing is due."""
        self._handles += handles
        self._toggle.add(module, handles)

    def _add_optimizer(self, optimizer: Optimizer) -> None:
        keeps = self if self._recorder.has_readers else None
        number, seen = len(self._optimizers), self._observers
        before, then = (
            partial(weakly(method, keeps), number)
            for method in (self._steps_with, self._stepped_by)
        )
        sample = None
        if "param_grad" in self._settings.kinds:
            sample = StepSample(self._buffers, weakly(self._log_sample), self._optimizers)
        if NOISE_SCALE in self._settings.kinds:
            scale = NoiseScale(self._buffers, weakly(self._log_sample))
            self._handles += scale.attach(optimizer)
        look = None if self._loop is None else self._loop.add().look
        parts = self._buffers, seen.parameters, seen.after_step, sample, look, self._optimizers
        step = partial(StepHook, *parts, before, then)
        self._handles += (
            optimizer.register_step_pre_hook(step(after=False)),
            optimizer.register_step_post_hook(step(after=True)),
        )
        self._optimizers.add(optimizer)
        self._silence.add(optimizer)
        self.leave_out_evaluation()

    def leave_out_evaluation(self) -> None:
        """Leave out calls of an evaluation, as where an optimizer closes the steps."""
        self._roots.skips_evaluation = True
        self._buffers.leave_out(self._roots.is_evaluation)

    def step(self) -> None:
        """Close a step by hand: once per iteration if `watch` was given no optimizer.

        Without an optimizer, this observes the parameters and their gradients. With optimizers, it
        closes a step that they left open: a step that a GradScaler skipped, or in which not all of
        the optimizers step.

        Raises:
            RuntimeError: a sink or a rule's action calls it.
        """
        self._check_open()
        if not self._optimizers and self._buffers.recording:
            self._observers.parameters.observe_all()
        self._close_step()

    def log(self, values: Mapping[str, Any] | None = None, /, *others: object, **more: Any) -> None:
        """Keep numbers of the step, such as its loss: ``log(loss=loss)``, ``log({"eval/f1": f1})``.

        They belong to the open step, or, until the model is called again, to the step just closed:
        `log` works before and after ``optimizer.step()``. The run keeps them at all steps, recorded
        or not (`Run.scalars`), and sinks get them. A second value of a name replaces the first.
        Nothing waits for a tensor on a device. Calls while a CUDA graph is captured do nothing.

        values, more: numbers, or tensors of one element, by name. The rule `loss graph` reads how a
            loss was computed from its tensor; `loss.item()` does not tell it.

        Raises:
            ValueError: a value is something else or has no name, or the watch is closed.
        """
        self._check_open()
        if others or not (values is None or isinstance(values, Mapping)):
            name = values if isinstance(values, str) and values.isidentifier() else "loss"
            raise ValueError(f"values have no names: expected log({name}=...), or a dict by name")
        if not self._buffers.is_captured():
            given = {**(values or {}), **more}
            self._log.log(as_scalars(given))
            if self._loop is not None and self._buffers.recording:
                self._graphs.look(given, self._step - (self._log.closed is not None))
            if self._is_stuck():
                self._close_step(is_stuck=True)

    def log_batch(self, ids: Any) -> None:
        """Keep which samples the open step has: ``log_batch(indices)``, ``log_batch("a.tar")``.

        It is to be called before ``optimizer.step()``; what several calls in a step give, as for
        micro-batches, comes together. The run has them at all steps, up to 4096 characters a
        step (`Run.scalars.samples()`), and `show` and the page say which samples an incident had.

        ids: integers, texts or paths: one, a sequence, or a tensor on the host.

        Raises:
            ValueError: they are something else, or the watch is closed.
        """
        self._check_open()
        samples = as_samples(ids)
        if not self._buffers.is_captured():
            self._log.log_samples(samples)

    def keep_batches(self, max_bytes: int) -> None:
        """Have the run keep what the model's calls got in the step of each incident that is worse
        than a note, with the states of random number generators: `Incident.batch` of `Run`.

        In recorded steps, inputs are copied on their device as a call begins. The copies of the
        last steps, up to `max_bytes` together, wait for the rules; each rank keeps its own.
        Compiled models and evaluations are left out. The files of the run have at most `max_bytes`,
        too.

        Raises:
            ValueError: `max_bytes` is no integer of 1 or more, the watch has no `out` or no rules,
                or it keeps batches already, or is closed.
        """
        self._check_open()
        max_bytes = check_integer("max_bytes", max_bytes, 1)
        if self.path is None or not self._monitor.has_rules:
            raise ValueError("keep_batches: expected a watch with out= and rules")
        if self._batches is not None:
            raise ValueError("keep_batches: the watch keeps batches already")
        recorder = self._recorder
        about = self._buffers, max_bytes, recorder.write_batch, recorder.failures
        self._batches = batches = KeptBatches(*about)
        for name, model in zip(self._header.get("models", [""]), self._roots.alive(), strict=True):
            self._handles += attach(model, partial(weakly(self._copy_inputs), name))
        self._monitor.begun = partial(batches.keep, then=self._monitor.begun)

    def _copy_inputs(self, model: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if self._batches is not None:
            self._batches.observe(self._step, model, args, kwargs)

    def look_at_loss(self, loss: Tensor) -> None:
        """Let the rule `LossGraph` look at a loss that `log` gets as a plain number, as from
        trainers; before its backward or after it."""
        if self._loop is not None and not self._closed:
            self._graphs.look({"loss": loss}, self._step)

    def add_optimizer(self, optimizer: Optimizer) -> None:
        """Have one more optimizer close steps, like the optimizers that `watch` was given.

        For an optimizer that is created after the hooks, such as one of a model that is compiled in
        between.

        Raises:
            ValueError: it is no optimizer, the watch has it, or the watch is closed.
        """
        self._check_open()
        found = unwrapped(optimizer)
        if any(known is found for known in self._optimizers):
            raise ValueError("optimizer: the watch has it already, expected another one")
        self._add_optimizer(found)

    def phase(self, name: str) -> AbstractContextManager[None]:
        """In this context, calls of modules are in a phase: ``with watch.phase("fake"): ...``.

        Each phase has separate hooks and statistics, whose kinds begin with its name:
        "fake:output". This separates the roles of a module, such as the discriminator of a GAN, an
        evaluation, ``with watch.phase("evaluation")``, and the time steps of a recurrent cell.
        Gradients belong to the phase of their forward, wherever the backward runs. All calls count,
        also without gradients in eval mode. An inner phase replaces the outer one. Parameters,
        their gradients and updates have no phases.

        Args:
            name: letters, digits, "_" and "-", a letter or "_" first.

        Raises:
            ValueError: the name has other characters, or the watch is closed.
        """
        self._check_open()
        check_phase(name)
        phases = self._observers.phases
        if name not in phases:
            for module, handles in self._observers.attach_phase(name):
                self._keep(module, handles)
        return _Phase(self._buffers, phases.index(name))

    def mask(self, mask: Tensor) -> AbstractContextManager[None]:
        """In this context, the statistics of calls leave padding out: ``with watch.mask(m): ...``.

        Calls of this thread count only the rows where the mask is not 0, in values and, wherever
        the backward runs, in their gradients. A mask fits tensors [batch, time, ...] and
        [batch * time, ...] whose channels are along a later dimension. All rows of other tensors
        count, such as attention weights [batch, heads, time, time], and `coverage` lists them as
        `unmasked`. Parameters are never masked. An inner mask replaces the outer one; the argument
        that ``watch(mask=...)`` names is an inner mask.

        Args:
            mask: bool or integers [batch, time] or [rows], on the device of the tensors; copied
                here.

        Raises:
            ValueError: it is something else, or the watch is closed.
        """
        self._check_open()
        return self._masks.within(mask)

    @property
    def closed(self) -> bool:
        """Whether the watch was closed: it has removed its hooks, and records nothing."""
        return self._closed

    @property
    def open_step(self) -> int:
        """The number of the open step, the next one to be closed."""
        return self._step

    def set_step(self, step: int) -> None:
        """Number the open step as the training does, and count on from there.

        If the training goes back, the run's records of `step` and of later steps become void when
        the step is recorded again.

        Raises:
            ValueError: step is no integer of 0 or more, or the watch is closed.
        """
        self._check_open()
        self._log.seal()
        before, self._step = self._step, check_integer("step", step, 0, _LAST_STEP)
        self._offset += self._step - before
        self._recorder.renumber(step)
        self._when.renumber(step)
        self._schedule()

    @property
    def latest(self) -> StepRecord:
        """The last recorded step: a mapping from (name, kind) to ChannelStats, with its `step`.

        Waits until the last closed step is recorded.

        Raises:
            RuntimeError: no step is recorded yet.
        """
        self._log.hand_on()
        self._recorder.drain(disk=False)
        if self._recorder.latest is None:
            raise RuntimeError(
                "latest: no step is recorded yet; expected a call of optimizer.step() or of "
                "Watch.step() before"
            )
        record, closed = self._recorder.latest, self._log.closed
        if closed is not None and closed.step == record.step:  # some may have been logged since
            record.complete({**record.scalars, **closed.resolved()})
        return record

    @property
    def alerts(self) -> tuple[Alert, ...]:
        """The alerts of all rules so far; waits until the last closed step is recorded."""
        self._recorder.drain(disk=False)
        return tuple(self._monitor.alerts)

    @property
    def incidents(self) -> Incidents:
        """The alerts by their causes, see `Incident`; waits as `alerts` does."""
        self._recorder.drain(disk=False)
        return self._monitor.incidents

    def coverage(self) -> Coverage:
        """What was observed, skipped and missed so far, by site."""
        return Coverage(
            rows=tuple(self._observers.rows()),
            steps=self._step - self._offset,
            discarded=self._discarded,
            stalls=self._buffers.stalls,
            failures=self._uncounted | self._recorder.failures_of_all(),
            budget=self._when.report(),
            evaluations=self._roots.evaluations,
            unseen={
                **{f"the graph of {name}": why for name, why in self._graphs.unseen.items()},
                **self._observers.attention.unseen,
            },
        )

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ", paused" if self._paused else ""
        return (
            f"Watch({self._header['model']}: {len(self._observers)} sites, "
            f"{self._step - self._offset} steps, {len(self._monitor.alerts)} alerts{state})"
        )

    def pause(self) -> None:
        """Observe nothing until `resume`. Steps are still counted; a step in which nothing was
        observed is not recorded."""
        self._check_open()
        self._paused = True
        self._schedule()

    def resume(self) -> None:
        """Observe again after `pause`."""
        self._check_open()
        self._paused = False
        self._schedule()

    def state_dict(self) -> dict[str, Any]:
        """The number of the next step and the settings, for a checkpoint of the training."""
        return {"step": self._step, "settings": copy.deepcopy(dict(self._header))}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Number the next step as `state_dict` says, after a restart or a return to a checkpoint.

        When that step is recorded, the run's earlier records of it and of later steps become void.

        Raises:
            ValueError: the state is that of a watch with other settings, or not that of a watch.
        """
        self._check_open()
        step, settings = state_dict.get("step"), state_dict.get("settings")
        if step is None or not isinstance(settings, Mapping):
            raise ValueError(
                f"state_dict = {state_dict!r}: expected a dict from Watch.state_dict()"
            )
        step = check_integer("state_dict has step", step, 0, _LAST_STEP)
        check_settings(settings, self._header, "state_dict")
        self.set_step(step)

    def close(self) -> None:
        """Remove every hook, record all closed steps, and end the run directory.

        A step that is still open is incomplete: it is discarded, and the coverage counts its
        tensors. Closing a closed watch does nothing.

        Raises:
            RuleError: a rule with the action "raise" has an alert that was not raised yet.
        """
        self._closed = True
        self._schedule()
        self._toggle.end()
        while self._handles:
            self._handles.pop().remove()
        if self._loop is not None:
            self._loop.end()
        self._roots.remove_handed_on(self._buffers)
        self._discarded = self._buffers.pending()
        self._silence.end(self._discarded)
        self._tell_uncounted()
        self._log.end()
        self._recorder.close(self._last_coverage())
        self._monitor.raise_pending()

    def _tell_evaluations(self) -> None:
        """Say once that calls are taken for those of an evaluation, where modes do not tell."""
        if self._roots.evaluations and not self._told:
            self._told = True
            say(
                f"calls of the model before step {self._step + 1} are taken for an evaluation and "
                "left out: gradients are off, or it is in eval mode and is trained in training "
                'mode; `with watch.phase("evaluation")` keeps them'
            )

    def _tell_uncounted(self) -> None:
        """Warn of the modules that compiled code calls, if none of their calls was counted."""
        names = self._observers.uncounted()
        if not names or self._uncounted:
            return
        listed = ", ".join(map(repr, names[:3])) + ", ..." * (len(names) > 3)
        why = f"{len(names)} watched modules were compiled and never counted: {listed}"
        self._uncounted["recording compiled modules"] = why
        warn(f"hookstats: {why}; what is not compiled is recorded")

    def _last_coverage(self) -> dict[str, Any]:
        """The coverage in the end; has the recorder say it in a line."""
        coverage = self.coverage()
        words = partial(_last_words, coverage, self._monitor, self._log.has_loss)
        self._recorder.last_words = words
        return coverage.to_dict()

    def __del__(self) -> None:
        # On any thread, at any time, even as modules lose their names: what is closed here waits
        # for nothing and raises nothing.
        try:
            if self._closed or sys.is_finalizing():
                return
            self._closed = True
            self._buffers.record(False)
            while self._handles:
                self._handles.pop().remove()
                self._discarded = self._buffers.pending()
            self._log.end()
            self._recorder.leave(self._last_coverage())
        except Exception:
            pass

    def __enter__(self) -> Watch:
        self._check_open()
        return self

    def __exit__(self, exc_type: object, exc: BaseException | None, traceback: object) -> None:
        try:
            self.close()
        except RuleError:
            if exc is None:  # the training's own error takes precedence
                raise

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("the watch is closed: expected an open one, from another watch()")

    def _steps_with(self, optimizer: int) -> None:
        """Close the open step if an optimizer that is to step ended it before."""
        with self._buffers.lock:
            is_over = self._optimizers.steps_again(optimizer)
        if is_over:
            self._close_step()

    def _stepped_by(self, optimizer: int) -> None:
        """Note that an optimizer steps; the last one closes the step."""
        if self._optimizers.are_several:
            with self._buffers.lock:
                is_last = self._optimizers.note(optimizer)
        else:
            is_last = True
        if is_last:
            self._close_step()
        else:
            self._optimizers.remind(optimizer, self._step)

    def _is_stuck(self) -> bool:
        """Whether the optimizer does not step any more, as where a loss scaler skips each step: so
        no step would be recorded that shows why."""
        least = _STUCK if self._buffers.closed >= _KNOWN else _STUCK_FROM_START
        return (
            self._log.over >= least
            and bool(self._optimizers)
            and any(info.dtype == "float16" for info in self._buffers.infos())
            and not self._recorder.is_current_thread()
        )

    def _close_step(self, *, is_stuck: bool = False) -> None:
        thread = get_ident()
        if thread != self._thread:
            if self._recorder.is_current_thread():
                # It would wait for itself, and steps are the training's.
                raise RuntimeError(
                    "step: called by a sink or by a rule's action, expected a call by the training"
                )
            self._thread = thread
        if self._buffers.is_captured():
            return  # replays of the graph will close no steps
        step = self._step
        try:
            if self._recorded:
                with self._cost, own_dispatch():
                    recorded = self._end_observed(is_stuck)
            else:
                recorded = False
                self._end_step(is_stuck)
                self._step = step + 1
            self._recorded = False
            self._when.close(step, recorded, self._rates)
            self._schedule()
            if self._recorded and not recorded:
                self._buffers.discard_late()
        except BaseException as error:  # such as a full memory, or Ctrl-C
            self._lose(step, error)
            if not isinstance(error, Exception):
                raise
        self._monitor.raise_pending()

    def _tell(self, fact: Fact) -> None:
        """Have the rules know what was seen in the open step."""
        if not self._closed:
            self._recorder.submit_fact(self._step, fact)

    def _log_sample(self, optimizer: Optimizer, found: Mapping[tuple[str, int], Tensor]) -> None:
        """Keep what a `StepSample` found, by the numbers that `learning_rates` gives parameter
        groups."""
        if self._closed:
            return
        before = takewhile(lambda known: known is not optimizer, self._optimizers)
        first = sum(len(known.param_groups) for known in before)
        values: dict[str, float | OnDevice] = {}
        for (name, group), tensor in found.items():
            finish = update_ratio if name == "update_ratio" else float
            value = finish(tensor) if tensor.is_cpu else OnDevice(tensor, finish)
            values[f"{name}/{first + group}"] = value
        self._log.add(values)

    def _log_router(self, name: str, found: Tensor) -> None:
        """Keep the entropy of a router's last call, of what `Routers` found."""
        if not self._closed:
            value = entropy_of(found) if found.is_cpu else OnDevice(found, entropy_of)
            self._log.add({f"router_entropy/{name}": value})

    def _close_at_exit(self) -> None:
        """Close the watch, if it is open, as the interpreter ends."""
        if not self._closed:
            with suppress(RuleError):  # the run has the alert
                self.close()

    def _lose(self, step: int, error: BaseException) -> None:
        """Begin the next step after an error or an interrupt that came while `step` closed.

        Unless the step was closed by then, it is discarded, and the run has a gap.
        """
        with suppress(Exception):
            if self._step == step:
                self._buffers.discard(lent=True)
                self._step += 1
                if self._log.next <= step:
                    self._log.close(step, {}, is_shown=False)
                self._roots.begin_step()
                if self._recorded:
                    self._skip(step, error)
        self._recorded = False
        with suppress(Exception):
            self._schedule()

    def _skip(self, step: int, error: BaseException | None) -> None:
        """Have the run note that a step is lost, with a warning; None: a hook was interrupted."""
        reason = "error" if isinstance(error, Exception) else "interrupted"
        why = "a hook was interrupted" if error is None else error_text(error)
        self._recorder.skip(step, reason, "recording a step", f"{why}; step {step} is lost")

    def _end_observed(self, is_stuck: bool) -> bool:
        """End the open step, in which hooks observed; whether it was to be recorded."""
        if self._buffers.recording and CHECKSUM in self._settings.kinds:
            checksums.observe(self._buffers, self._observers.parameters)
        self._observers.parameters.look_again()
        recorded = self._buffers.recording or self._buffers.has_content()
        scalars = self._end_step(is_stuck, recorded)
        if recorded:
            self._tell_evaluations()
            self._silence.look(self._optimizers)
            self._record(self._step, scalars)
        self._step += 1  # from now on, the step is closed
        return recorded

    def _end_step(self, is_stuck: bool, recorded: bool = False) -> StepScalars:
        """End the open step for what is kept of all steps."""
        self._optimizers.begin()
        self._buffers.mask.step_closed()
        self._rates = values = learning_rates(self._optimizers)
        if recorded:
            values = {**values, **self._cost.since()}
        is_shown = recorded and self._recorder.shows(self._step)
        scalars = self._log.close(self._step, values, is_shown=is_shown, is_stuck=is_stuck)
        self._roots.begin_step()
        self._silence.closed()
        return scalars

    def _record(self, step: int, scalars: StepScalars) -> None:
        try:
            closed = self._buffers.close()
        except Stuck:
            self._buffers.discard()
            why = (
                f"no step was taken for {self._buffers.patience:g} s; steps from {step} on are lost"
            )
            self._recorder.skip(step, "stall", "keeping up", why)
            return
        if closed is None:
            self._skip(step, None)
        else:
            # What is logged from now on is not of the record.
            values = dict(scalars.values)
            self._recorder.submit(closed, step, StepScalars(step, scalars.time, values))

    def _schedule(self) -> None:
        due = self._when.is_due(self._step) and not self._paused and not self._closed
        if not due and self._toggle.there is False and not self._buffers.recording:
            return  # as in the step before
        tidy()
        self._buffers.sampling.begin_step(self._step, due)
        self._buffers.record(due)
        self._recorded |= self._buffers.recording
        seldom = self._paused or self._when.is_seldom
        self._toggle.set(self._buffers.recording or not seldom)


def _last_words(coverage: Coverage, monitor: Monitor, has_loss: bool) -> str:
    """What a run has in the end, on one line."""
    incidents = monitor.incidents if monitor.has_rules else None
    return coverage.summary(incidents, has_loss=has_loss)


def _has_begun(roots: RootModules, buffers: DoubleBuffer) -> bool:
    """Whether the open step has begun: the model was called, or one of its parts."""
    return roots.called or (buffers.recording and buffers.has_calls())


class _Phase(AbstractContextManager[None]):
    """The context of a phase. No generator: dynamo cannot end its graph in one."""

    def __init__(self, buffers: DoubleBuffer, phase: int) -> None:
        self._buffers = buffers
        self._phase = phase
        self._before: list[int] = []

    def __enter__(self) -> None:
        self._before.append(self._buffers.phase)
        self._buffers.enter(self._phase)

    def __exit__(self, *exc: object) -> None:
        self._buffers.enter(self._before.pop())


for _function in (_Phase.__enter__, _Phase.__exit__):
    break_graphs(_function, "a phase of hookstats begins or ends")
for _method in (
    Watch.step,
    Watch.log,
    Watch.log_batch,
    Watch.keep_batches,
    Watch.add_optimizer,
    Watch.set_step,
):
    break_graphs(_method, "a step of hookstats")
break_graphs(Watch.phase, "a phase of hookstats is made")
break_graphs(Watch.mask, "a mask of hookstats is made")
