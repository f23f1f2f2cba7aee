"""The corpus of sound trainings: each warning about one of these is false."""

from __future__ import annotations

from bench.faults.sound import generative, images, stock, tables, text
from bench.faults.sound.program import PROGRAMS, Program, train

__all__ = ["PROGRAMS", "Program", "generative", "images", "stock", "tables", "text", "train"]
