"""Training, Watched, EagerHooks: a model in training, and with its statistics recorded."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from operator import mul
from time import perf_counter

import torch
from models import Job
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

import hookstats as hs
from bench import eager
from bench.accuracy import FLOAT32, as_statistics, check
from bench.smoke import pick
from hookstats.records.record import StepRecord

KINDS = ("output", "grad_output", "param_grad")


class Training:
    """A model in training, without hooks.

    Its learning rate is 0, which costs an optimizer as much as any other: all steps are the same,
    and what peers found in their last ones can be compared, however many they had.
    """

    slow = False
    """Whether one step at a time is enough, where `Job.steps` are timed at once."""

    def __init__(self, job: Job, together: dict[str, Training]) -> None:
        self.job = job
        self.together = together
        """The training runs that are compared, by the names of their types, with this one added."""
        together[type(self).__name__] = self
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.model = job.model()
            self._batch = job.batch()
        self.optimizer = SGD(self.model.parameters(), lr=0.0, momentum=0.9)
        self.steps = 1 if self.slow else job.steps
        self.attach()

    def attach(self) -> None:
        """Put hooks on `model` and `optimizer`."""

    def leaves(self) -> Iterator[tuple[str, nn.Module]]:
        """The modules without children, by name."""
        for name, module in self.model.named_modules():
            if next(module.children(), None) is None:
                yield name, module

    def prepare(self) -> None:
        """Nothing: every step is like the one before."""

    def run(self) -> float:
        """Train, and say how long `Job.steps` steps take."""
        start = perf_counter()
        for _ in range(self.steps):
            self.optimizer.zero_grad()
            self.job.loss(self.model, *self._batch).backward()  # type: ignore[no-untyped-call]
            self.after_backward()
            self.optimizer.step()
        self.after_steps()
        return (perf_counter() - start) * self.job.steps / self.steps

    def after_backward(self) -> None:
        """What a monitor does in every step that is no hook."""

    def after_steps(self) -> None:
        """What is waited for."""

    def check(self) -> None:
        """Assert that the last step was the one without hooks, to the last bit."""
        plain = self.together[Training.__name__].model.named_parameters()
        for (name, parameter), (_, expected) in zip(
            self.model.named_parameters(), plain, strict=True
        ):
            assert parameter.grad is not None
            assert expected.grad is not None
            assert parameter.grad.isfinite().all()
            assert parameter.grad.equal(expected.grad), f"another gradient of {name}"

    @property
    def expected(self) -> StepRecord:
        """What `watch` recorded of the last step."""
        watched = self.together[Watched.__name__]
        assert isinstance(watched, Watched)
        return watched.record

    def names(self, kind: str) -> list[str]:
        """The modules that `watch` recorded a `kind` of."""
        return [name for name, found in self.expected if found == kind]

    def detach(self) -> None:
        """Give back what was opened."""


class Watched(Training):
    """Recorded by `watch`, as it comes."""

    every = 1
    bins: hs.LogBins | None = hs.LogBins()

    def attach(self) -> None:
        self.watch = self.open()
        self._passed = 0

    def open(self) -> hs.Watch:
        """Begin to watch."""
        return hs.watch(self.model, self.optimizer, kinds=KINDS, every=self.every, bins=self.bins)

    def after_steps(self) -> None:
        self._passed += self.steps
        self.record = self.watch.latest  # waits until the steps are recorded, too

    def check(self) -> None:
        super().check()
        assert self.record.step == (self._passed - 1) // self.every * self.every
        for row in self.watch.coverage():
            # Some modules are there and never called.
            assert row.forwards in (0, -(-self._passed // self.every)), row
            assert row.observed == row.forwards, row

    def detach(self) -> None:
        self.watch.close()


class Reading:
    """No training: reads as many bytes as all that `watch` observes in a step, once, from memory.

    What `watch` adds to a step, by this, holds on any machine.
    """

    def __init__(self, job: Job, together: dict[str, Training]) -> None:
        self._job = job
        self._together = together
        # Of a block of 64 MB, a cache of 32 MB kept so much that the read took 0.6 of the time.
        self._block = torch.ones(pick(256 << 20, 1 << 10) // 8, dtype=torch.int64)

    def prepare(self) -> None:
        """Find out how much it is, from what `watch` recorded of its last step."""
        record = self._together[Watched.__name__].expected
        sizes = [prod(s.shape) * getattr(torch, s.dtype).itemsize for s in record.sites]
        observed = record.observed.tolist()
        self._words = sum(map(mul, sizes, observed)) // 8

    def run(self) -> float:
        """Read, and say how long that takes for `Job.steps` steps."""
        start = perf_counter()
        whole, rest = divmod(self._words, len(self._block))
        self._read = sum(int(self._block.sum()) for _ in range(whole))
        self._read += int(self._block[:rest].sum())
        return (perf_counter() - start) * self._job.steps

    def check(self) -> None:
        """Assert that it was read."""
        assert self._read == self._words > 0

    def detach(self) -> None:
        """Nothing was opened."""


class WatchedSeldom(Watched):
    """Recorded by `watch`, one step of ten."""

    every = 10


class WatchedMoments(Watched):
    """Recorded by `watch` without histograms."""

    bins = None


class WatchedMomentsSeldom(WatchedMoments, WatchedSeldom):
    """Recorded by `watch` without histograms, one step of ten."""


class WatchedSampled(Watched):
    """Recorded by `watch`, with histograms of about 65,536 elements of a larger tensor."""

    bins = hs.LogBins(sample="auto")


class WatchedStored(Watched):
    """Recorded by `watch` into a run directory.

    Several steps are timed at once: as in any training, they are encoded while others train.
    """

    def attach(self) -> None:
        self._directory = tempfile.TemporaryDirectory()
        self.steps = max(self.steps, pick(5, 1))
        super().attach()

    def open(self) -> hs.Watch:
        return hs.watch(
            self.model, self.optimizer, kinds=KINDS, bins=self.bins, out=self._directory.name
        )

    def detach(self) -> None:
        super().detach()
        assert len(hs.open_run(self._directory.name).steps) == self._passed
        self._directory.cleanup()


class EagerHooks(Training):
    """The statistics of `watch`, one of each site and step, by eager torch."""

    slow = True
    statistics: Callable[..., eager.Statistics] = staticmethod(eager.statistics)

    def attach(self) -> None:
        self.found: dict[tuple[str, str], eager.Statistics] = {}
        self._bins = hs.LogBins()
        for name, module in self.leaves():
            module.register_forward_hook(self._output_hook(name))
        self.optimizer.register_step_pre_hook(self._before_step)

    def _observe(self, name: str, kind: str, x: Tensor) -> None:
        axis = 0 if kind == "param_grad" else 1 if x.dim() == 4 else x.dim() - 1
        x = x.detach().unsqueeze(-1)  # so that a bias has a dimension to reduce
        self.found[name, kind] = self.statistics(x, axis, bins=self._bins)

    def _output_hook(self, name: str) -> Callable[[nn.Module, object, Tensor], None]:
        def hook(module: nn.Module, args: object, output: Tensor) -> None:
            self._observe(name, "output", output)
            observe = partial(self._observe, name, "grad_output")
            output.register_hook(observe)  # type: ignore[no-untyped-call]

        return hook

    def _before_step(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        for name, parameter in self.model.named_parameters():
            assert parameter.grad is not None
            self._observe(name, "param_grad", parameter.grad)

    def check(self) -> None:
        super().check()
        assert set(self.found) == set(self.expected)
        for key, found in self.found.items():
            check(found, as_statistics(self.expected[key]), FLOAT32)


class CompiledHooks(EagerHooks):
    """The same, by what torch.compile makes of it for each shape."""

    def attach(self) -> None:
        self.statistics = eager.compiled()
        super().attach()

    def run(self) -> float:
        with torch._dynamo.config.patch(recompile_limit=64):
            return super().run()
