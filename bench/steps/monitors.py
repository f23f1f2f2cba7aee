"""What people use to look into training: MONITORS, and what each of them sees.

The fastai-style monitor is written for this comparison, from what fastai's documents describe.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from torch import Tensor, nn
from trainings import Training

from bench.measure import required


class EmptyHooks(Training):
    """An empty forward hook in Python on every leaf module."""

    def attach(self) -> None:
        for _, module in self.leaves():
            module.register_forward_hook(lambda module, args, output: None)


class _Directory(Training):
    """A monitor that writes files."""

    slow = True

    def attach(self) -> None:
        self.out = Path(tempfile.mkdtemp(prefix="hookstats-bench-"))

    def detach(self) -> None:
        shutil.rmtree(self.out)


class WandbWatch(_Directory):
    """`wandb.watch` of the gradients, offline, every step."""

    def attach(self) -> None:
        self._wandb = required("wandb")
        super().attach()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("WANDB_SILENT", "true")
            patch.setenv("WANDB_DISABLE_GIT", "true")
            self._run = self._wandb.init(
                mode="offline",
                dir=self.out,
                settings=self._wandb.Settings(console="off", x_disable_stats=True, quiet=True),
            )
        self._logged = 0
        self._run.watch(self.model, log="gradients", log_freq=1, idx=0)

    def after_backward(self) -> None:
        self._run.log({"step": self._logged})
        self._logged += 1

    def check(self) -> None:
        super().check()
        summary = self._run.summary
        assert summary["step"] == self._logged - 1
        for name, parameter in self.model.named_parameters():
            counted, elements = sum(summary[f"gradients/{name}"]["values"]), parameter.numel()
            # It counts with torch.histc, in float32: a bin stops at 2^24.
            assert counted == elements or 2**24 <= counted < elements

    def detach(self) -> None:
        self._run.finish()
        super().detach()


class TensorBoard(_Directory):
    """TensorBoard's `add_histogram` of every parameter's gradient."""

    def attach(self) -> None:
        required("tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        super().attach()
        self._writer = SummaryWriter(str(self.out))
        self._logged = 0

    def after_backward(self) -> None:
        for name, parameter in self.model.named_parameters():
            self._writer.add_histogram(name, parameter.grad, self._logged)
        self._logged += 1

    def check(self) -> None:
        super().check()
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        self._writer.flush()
        events = EventAccumulator(str(self.out), size_guidance={"histograms": 0})
        events.Reload()
        for name, parameter in self.model.named_parameters():
            last = events.Histograms(name)[-1]
            assert last.step == self._logged - 1
            assert last.histogram_value.num == parameter.numel()
            assert parameter.grad is not None
            assert last.histogram_value.max == pytest.approx(float(parameter.grad.max()))

    def detach(self) -> None:
        self._writer.close()
        super().detach()


class TorchInstruments(_Directory):
    """torchinstruments of every leaf module, sampled in every step."""

    def attach(self) -> None:
        self._library = required("torchinstruments")
        super().attach()
        self._library.inject_observer(
            self.model,
            interval=timedelta(microseconds=1),
            output_dir=self.out,
            selector=self._library.leaf_modules(),
        )

    def check(self) -> None:
        super().check()
        history = required("pyarrow.parquet").read_table(self.out / "history.parquet").to_pylist()
        found = {
            (row["layer"], row["signal"]): row["value"]
            for row in history
            if row["metric"] == "mean"
        }
        for signal, kind in (("output", "output"), ("output_gradient", "grad_output")):
            for name in self.names(kind):
                whole = self.expected[name, kind].per_tensor()
                close = pytest.approx(float(whole.mean), rel=1e-3, abs=1e-3 * float(whole.std))
                assert found[name, signal] == close, (name, signal)

    def detach(self) -> None:
        self._library.remove_observer(self.model)
        super().detach()


class UnderflowOverflow(Training):
    """transformers' DebugUnderflowOverflow."""

    slow = True

    def attach(self) -> None:
        library = required("transformers.debug_utils", "transformers")
        frames = sum(1 for _ in self.model.modules())
        self._debug = library.DebugUnderflowOverflow(self.model, max_frames_to_save=frames)

    def check(self) -> None:
        super().check()
        found = {}
        for frame in self._debug.frames:
            if match := _FRAME.search(frame):
                found[match["name"]] = float(match["amax"])
        for name in self.names("output"):
            amax = float(self.expected[name, "output"].amax.max())
            assert found[name] == pytest.approx(amax, rel=1e-2), name


_FRAME = re.compile(r"^ +(?P<name>[\w.]+) \w+\n(.*\n)*? *\S+ +(?P<amax>\S+) output$", re.M)
"""What DebugUnderflowOverflow notes of a module with one output."""


class FastaiStyle(Training):
    """As fastai's ActivationStats describes itself: mean, std and 40 bins of every output."""

    slow = True

    def attach(self) -> None:
        self._found: dict[str, tuple[float, float, Tensor]] = {}
        for name, module in self.leaves():
            module.register_forward_hook(self._hook(name))

    def _hook(self, name: str) -> Callable[[nn.Module, object, Tensor], None]:
        def hook(module: nn.Module, args: object, output: Tensor) -> None:
            x = output.detach()
            counts = x.float().cpu().histc(40, 0, 10)
            self._found[name] = (x.mean().item(), x.std().item(), counts)

        return hook

    def check(self) -> None:
        super().check()
        for name, (mean, std, counts) in self._found.items():
            whole = self.expected[name, "output"].per_tensor()
            deviation, count = float(whole.std), int(whole.count)
            assert mean == pytest.approx(float(whole.mean), rel=1e-3, abs=1e-3 * deviation)
            assert std == pytest.approx(deviation * (count / (count - 1)) ** 0.5, rel=1e-3)
            assert int(counts.sum()) <= count


MONITORS: dict[str, tuple[type[Training], str]] = {
    "empty hooks": (EmptyHooks, "a forward hook that does nothing"),
    "wandb.watch": (WandbWatch, "64 bins of every parameter's gradient, log_freq=1, offline"),
    "TensorBoard": (TensorBoard, "add_histogram of every parameter's gradient"),
    "torchinstruments": (
        TorchInstruments,
        "statistics and 64 bins of every output and its gradient, per tensor",
    ),
    "DebugUnderflowOverflow": (
        UnderflowOverflow,
        "transformers': least and greatest magnitude of inputs, outputs and parameters",
    ),
    "fastai-style": (FastaiStyle, "mean, std and 40 bins of every output, per tensor"),
}
"""Those that compute a part, by name, and what."""
