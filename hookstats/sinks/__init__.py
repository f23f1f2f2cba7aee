"""Sinks: where records go besides the run directory.

A sink is a callable that takes a StepRecord, and may have a `close()`; a plain function will do.
`watch(..., sinks=[...])` calls it on the flush thread, once for every recorded step in order, and
closes it at the end. One that raises is disabled and warned of; the training goes on. So is one
that does not return within ten seconds while training, or its end, waits for the thread.
"""

from hookstats.sinks.jsonl import JSONL
from hookstats.sinks.tensorboard import TensorBoard
from hookstats.sinks.wandb import WandB

__all__ = ["JSONL", "TensorBoard", "WandB"]
