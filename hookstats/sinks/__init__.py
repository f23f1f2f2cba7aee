"""Sinks: where records go besides the run directory.

A sink is a callable that takes a StepRecord, such as a function; it may have a `close()`.
`watch(..., sinks=[...])` calls the sink on a separate thread, once per recorded step, in order,
and closes the sink at the end. If the sink has a method `write_scalars(step, rank, values)`, that
gets the numbers of every closed step, recorded or not, by their names. A sink that raises is called
again at later steps, with pauses that grow, and training goes on; after eight failures in a row
that are neither OSError nor MemoryError it is disabled. So is a sink that does not return within
ten seconds.
"""

from hookstats.sinks.jsonl import JSONL
from hookstats.sinks.scalars import Scalars
from hookstats.sinks.tensorboard import TensorBoard
from hookstats.sinks.wandb import WandB

__all__ = ["JSONL", "Scalars", "TensorBoard", "WandB"]
