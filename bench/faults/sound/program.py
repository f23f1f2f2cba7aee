"""Program: one sound training of the corpus, and what the default rules say of it."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from hookstats.rules import Alert, Incident, Monitor, Rules
from hookstats.watching import watch as watching
from hookstats.watching.handle import Watch

Batch = tuple[Any, ...]


@dataclass
class Session:
    """One run of a program: what the program asks for its sizes, and how it begins to watch."""

    seed: int
    steps: int
    out: Path | None = None
    rules: Rules = "default"
    watched: Watch | None = None

    def width(self, base: int) -> int:
        """A width near `base`, another one for each seed; a multiple of 4 where `base` is of 16."""
        return base * (4, 5, 3, 6)[self.seed % 4] // 4

    def start(self, model: Any, optimizer: Any, **options: Any) -> Watch:
        """Watch as users do, with the default rules."""
        self.watched = watching.watch(
            model, optimizer, every=1, out=self.out, max_bytes=None, rules=self.rules, **options
        )
        return self.watched


@dataclass(frozen=True)
class Program:
    """A sound training. Half of the programs, by their names, are never looked at while rules
    are tuned: they are scored alone."""

    name: str
    run: Callable[[Session], None]
    steps: int
    long: bool

    @property
    def share(self) -> str:
        """ "tuned" or "scored"."""
        return ("tuned", "scored")[hashlib.sha256(self.name.encode()).digest()[0] % 2]


PROGRAMS: dict[str, Program] = {}
"""All programs, by name."""


def sound(
    steps: int = 500, long: bool = False
) -> Callable[[Callable[[Session], None]], Callable[[Session], None]]:
    """Make a function a program of the corpus; its name is the function's."""

    def add(run: Callable[[Session], None]) -> Callable[[Session], None]:
        name = run.__name__.strip("_").replace("_", "-")
        PROGRAMS[name] = Program(name, run, steps, long)
        return run

    return add


def train(
    program: Program,
    seed: int,
    steps: int | None = None,
    out: Path | None = None,
    rules: Rules = "default",
) -> tuple[tuple[Alert, ...], tuple[Incident, ...]]:
    """What the rules say of a run of the program; `out` keeps the run.

    Rules look at each step, as they do where a step takes longer than a tenth of a second.
    """
    torch.manual_seed(seed)
    session = Session(seed, steps or program.steps, out, rules)
    each_step = patch.object(watching, "Monitor", partial(Monitor, interval=0))
    with warnings.catch_warnings(), each_step:
        warnings.simplefilter("ignore")
        program.run(session)
        assert session.watched is not None
        session.watched.close()
    failures = session.watched.coverage().failures
    if failures:
        raise RuntimeError(f"{program.name}: {dict(failures)}")
    return session.watched.alerts, session.watched.incidents


def fit(
    r: Session,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Callable[[], Batch],
    loss: Callable[..., Tensor],
    clip: float | None = None,
    scheduler: Any = None,
    after: Callable[[int], object] = lambda step: None,
    watched: Any = None,
    autocast: bool = False,
) -> None:
    """The loop that most people write. loss: of what `batch` gives; after: what each step ends
    with."""
    w = r.start(model if watched is None else watched, optimizer)
    for step in range(r.steps):
        given = batch()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            value = loss(*given)
        w.log(loss=value)
        optimizer.zero_grad()
        value.backward()  # type: ignore[no-untyped-call]
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        after(step)


def adam(model: nn.Module, lr: float = 1e-3) -> torch.optim.Optimizer:
    """Adam for what the model trains."""
    return torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr)


def adamw(model: nn.Module, lr: float = 1e-3, decay: float = 0.01) -> torch.optim.Optimizer:
    """AdamW for what the model trains."""
    trained = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.AdamW(trained, lr, weight_decay=decay)


def sgd(model: nn.Module, lr: float, momentum: float = 0.9) -> torch.optim.Optimizer:
    """SGD for all parameters."""
    return torch.optim.SGD(model.parameters(), lr, momentum)


def mlp(*widths: int, act: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers, with an activation between each two."""
    layers: list[nn.Module] = []
    for i in range(len(widths) - 1):
        layers += [nn.Linear(widths[i], widths[i + 1]), act()]
    return nn.Sequential(*layers[:-1])


def epochs(tensors: Sequence[Tensor], batch: int, last: bool = True) -> Callable[[], Batch]:
    """Batches of shuffled epochs; last: whether the last batch, which may be small, counts."""
    count = len(tensors[0])
    left: list[Tensor] = []

    def take() -> Batch:
        if not left:
            parts = list(torch.randperm(count).split(batch))
            left.extend(parts if last else parts[: count // batch])
        chosen = left.pop(0)
        return tuple(tensor[chosen] for tensor in tensors)

    return take
