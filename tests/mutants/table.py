"""The mutants: bugs of one line each, and the narrow test that catches each."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """One bug."""

    bug: str
    """What goes wrong, in words."""
    file: str
    before: str
    """A text that occurs once in the file."""
    after: str
    test: str
    """What catches the bug: a test as pytest names it, or a program of tests/cpp."""


MUTANTS = (
    Mutant(
        "the left edge of a bin belongs to the bin before",
        "csrc/core/bins.h",
        "if (x >= b.edges[middle]) {",
        "if (x > b.edges[middle]) {",
        "tests/cpp/test_core.cpp",
    ),
    Mutant(
        "the right edge of the last bin is overflow",
        "csrc/core/bins.h",
        "edges[bins] = std::nextafter(edges[bins], INFINITY);",
        "b.hi = std::nextafter(b.hi, -INFINITY);",
        "tests/cpp/test_core.cpp",
    ),
    Mutant(
        "float64 is rounded up, over the edge of a bin",
        "csrc/core/bins.h",
        "if (static_cast<double>(rounded) > magnitude) --bits;",
        "",
        "tests/cpp/test_core.cpp",
    ),
    Mutant(
        "merging variances leaves out the distance of the means",
        "csrc/core/state.h",
        "into.m2 += from.m2 + delta * delta * (static_cast<double>(into.count) * share);",
        "into.m2 += from.m2;",
        "tests/cpp/test_core.cpp",
    ),
    Mutant(
        "a sign in the merge of third moments",
        "csrc/core/state.h",
        "3.0 * (ahead * from.m2 - behind * into.m2)",
        "3.0 * (ahead * from.m2 + behind * into.m2)",
        "tests/cpp/test_core.cpp",
    ),
    Mutant(
        "negative infinities are not merged",
        "csrc/core/state.h",
        "into.neginf += from.neginf;",
        "",
        "tests/cpp/test_core.cpp",
    ),
    Mutant(
        "of several expanded dimensions the last one alone counts",
        "csrc/core/channel_view.h",
        "view.repeat *= sizes[d];",
        "view.repeat = sizes[d];",
        "tests/cpp/test_core.cpp",
    ),
    Mutant(
        "a mask keeps the rows of padding",
        "csrc/core/kept_rows.h",
        "count += line[i * strides[dims - 1]] != T{0};",
        "count += 1;",
        "tests/cpp/test_core.cpp",
    ),
    Mutant(
        "samples of masked tensors count elements of padding",
        "csrc/cpu/out_of_order.cpp",
        "if (!kept.has(place++)) return;",
        "kept.has(place++);",
        "tests/kernels/test_masks.py::test_samples_count_what_the_hash_says_of_all_rows",
    ),
    Mutant(
        "a step's rows are not emptied when they are read",
        "csrc/cpu/take.cpp",
        "std::memcpy(rows, empty, sizeof empty);",
        "",
        "tests/cpp/test_take.cpp",
    ),
    Mutant(
        "what an interrupt left of a step that was taken out is taken again",
        "hookstats/arena/shelf.py",
        "if not reading.taken.is_there:",
        "if True:",
        "tests/arena/test_arena.py",
    ),
    Mutant(
        "dead: also channels without finite values",
        "hookstats/stats/derived.py",
        'out: Array = (count > 0) & (columns("zero") == count)',
        'out: Array = columns("zero") == count',
        "tests/insight/test_insight_channels.py",
    ),
    Mutant(
        "a merge term of the fourth moment is dropped",
        "hookstats/stats/state.py",
        "square * (6 * m2 + count * square)",
        "square * (count * square)",
        "tests/stats/test_derived.py::test_higher_moments_merge_in_any_split",
    ),
    Mutant(
        "the buffer of a step that was read is not given back",
        "hookstats/watching/flush.py",
        "        finally:\n            snapshot.release()",
        "        finally:\n            pass",
        "tests/watching/test_flush.py::test_buffers_are_given_back_before_slow_sinks",
    ),
    Mutant(
        "the error of a sink is swallowed",
        "hookstats/watching/sinks.py",
        "if error is None:",
        "if True:",
        "tests/watching/test_failing_sinks.py",
    ),
    Mutant(
        "what works again is left out for as long when it fails next",
        "hookstats/stats/retries.py",
        "failing = self._failing.pop(key, None)",
        "failing = self._failing.get(key)",
        "tests/stats/test_retries.py",
    ),
    Mutant(
        "a full memory ends a rule",
        "hookstats/stats/retries.py",
        "_PASSING = (OSError, MemoryError)",
        "_PASSING = (OSError,)",
        "tests/rules/test_failing_rules.py",
    ),
    Mutant(
        "an interrupted step's number goes up although the step stays open",
        "hookstats/watching/handle.py",
        "self._step = step  # it is still open",
        "pass",
        "tests/watching/test_interrupted_steps.py",
    ),
    Mutant(
        "a later process of the same number is taken for the writer",
        "hookstats/runs/lock.py",
        '_started(process) == owner.get("started") is not None',
        "_started(process) is not None",
        "tests/runs/test_lock.py::test_a_process_of_the_same_number_is_another_one",
    ),
    Mutant(
        "a missing lock: a second watch takes the directory",
        "hookstats/runs/writer.py",
        "if self._locked and self._lock is None:",
        "if False:",
        "tests/runs/test_lock.py::test_two_watches_of_one_process",
    ),
    Mutant(
        "of what came after a checkpoint the last step alone is made void",
        "hookstats/runs/index.py",
        "while records and next(reversed(records)) >= back:",
        "if records and next(reversed(records)) >= back:",
        "tests/runs/test_append.py::test_going_back_makes_void_what_came_after",
    ),
    Mutant(
        "a record that comes again is no rewind",
        "hookstats/runs/part_writer.py",
        "if rows.step <= self._before:",
        "if rows.step < self._before:",
        "tests/runs/test_append.py::test_a_step_that_comes_again_is_a_rewind",
    ),
    Mutant(
        "old steps are thinned from the oldest on, not evenly",
        "hookstats/runs/thinning.py",
        "order.sort(key=lambda key: (key & -key or math.inf, key))",
        "order.sort()",
        "tests/runs/test_max_bytes.py::test_old_steps_are_thinned_evenly_and_new_ones_kept",
    ),
    Mutant(
        "a write that fails leaves its temporary file",
        "hookstats/runs/files.py",
        "            temporary.unlink()\n        raise",
        "            pass\n        raise",
        "tests/runs/test_writer.py::test_a_full_disk_leaves_nothing_behind_and_loses_nothing",
    ),
    Mutant(
        "checksums are not compared",
        "hookstats/runs/checksums.py",
        'if f"{found:08x}".encode() != expected:',
        "if len(expected) != 8:",
        "tests/runs/test_damage.py::test_an_empty_record_has_checksums_too",
    ),
    Mutant(
        "the footer is believed when it says how much a column holds",
        "hookstats/runs/pages.py",
        "decoded += max(here * _BYTES, size)",
        "decoded += size",
        "tests/runs/test_strangers.py::test_a_part_that_swells_is_refused_before_it_does",
    ),
    Mutant(
        "a run of another model is continued",
        "hookstats/runs/headers.py",
        "if a == b or key in _MAY_DIFFER:",
        "if True:",
        "tests/runs/test_append.py::test_a_watch_of_another_model_does_not_go_on",
    ),
    Mutant(
        "names are HTML in notebooks",
        "hookstats/show/notebook.py",
        "return html.escape(printable(text, lines=True))",
        "return printable(text, lines=True)",
        "tests/show/test_notebook.py",
    ),
    Mutant(
        "steps that are not due are recorded, too",
        "hookstats/watching/handle.py",
        "self._arena.record(due and not self._paused and not self._closed)",
        "self._arena.record(not self._paused and not self._closed)",
        "tests/watching/test_watch.py::test_steps_are_numbered_and_every_nth_is_recorded",
    ),
    Mutant(
        "calls of ranks are added up, not the greatest number taken",
        "hookstats/records/ranks.py",
        "np.maximum(self._observed[chosen], observed.observed[kept])",
        "np.add(self._observed[chosen], observed.observed[kept])",
        "tests/records/test_ranks.py",
    ),
    Mutant(
        "replicas of ranks are merged as if they were parts",
        "hookstats/records/placement.py",
        "        if placement not in (REPLICATE, UNKNOWN)\n",
        "",
        "tests/records/test_ranks.py",
    ),
    Mutant(
        "merged sites come in the order of the shares, not of the ranks",
        "hookstats/watching/reduce.py",
        "order = np.argsort(np.concatenate([message.places for message in found]))",
        "order = np.arange(len(whole))",
        "tests/watching/test_reduce.py::test_latest_is_what_the_run_has_when_it_is_read[ddp]"
        " -m check",
    ),
    Mutant(
        "summands of gradients wait to be merged without a bound",
        "hookstats/hooks/partials.py",
        "if mine + sum(step.nbytes for step in waiting) > room:",
        "if False:",
        "tests/watching/test_partials.py::test_without_a_summand_there_is_no_norm",
    ),
    Mutant(
        "a step that lacks the sum of a gradient has the norm of the others",
        "hookstats/watching/reduce.py",
        "None if lacks_sums else gradient_norm(merged)",
        "gradient_norm(merged)",
        "tests/watching/test_partials.py::test_without_a_summand_there_is_no_norm",
    ),
    Mutant(
        "ranks merge steps that are not due, too",
        "hookstats/watching/reduce.py",
        "return step % self.reduce.every == 0",
        "return True",
        "tests/watching/test_reduce.py::test_whole_tensors_now_and_then -m check",
    ),
    Mutant(
        "a recomputation is of the phase of the backward",
        "hookstats/hooks/phases.py",
        "if self._marks and current_graph_task_id() != -1:",
        "if False:",
        "tests/watching/test_phases.py::test_a_recomputation_is_of_the_phase_of_its_forward",
    ),
    Mutant(
        "the end of an inner phase is the end of all",
        "hookstats/hooks/phases.py",
        "self._phases.enter(self._before.pop())",
        'self._phases.enter("")',
        "tests/watching/test_phases.py::test_phases_nest_and_end_with_an_error",
    ),
    Mutant(
        "incidents end some steps after their cause, not after their last alert",
        "hookstats/records/alerts.py",
        "alert.step <= self._last[number] + REACH",
        "alert.step <= cause.step + REACH",
        "tests/rules/test_incidents.py::test_what_follows_soon_is_a_consequence",
    ),
    Mutant(
        "alerts of steps that are void stay",
        "hookstats/runs/alerts.py",
        'if alert.step < entry["rewind"]]',
        "]",
        "tests/runs/test_alerts_of_runs.py::test_alerts_of_steps_that_are_void_are_void",
    ),
    Mutant(
        "a line of alerts that a kill cut short stays in the file",
        "hookstats/runs/alerts.py",
        'os.truncate(self._path, content.rfind(b"\\n") + 1)',
        "pass",
        "tests/runs/test_alerts_of_runs.py::test_an_unfinished_line_is_left_out_and_then_cut_off",
    ),
    Mutant(
        "a step that an interrupt closed is not submitted",
        "hookstats/arena/arena.py",
        "                self.hand_on()\n            self._unsubmitted = None",
        "                pass\n            self._unsubmitted = None",
        "tests/watching/test_interrupted_steps.py",
    ),
    Mutant(
        "a step that an interrupt has submitted twice is recorded twice",
        "hookstats/watching/flush.py",
        "if self._last() is snapshot:",
        "if False:",
        "tests/watching/test_interrupted_steps.py",
    ),
    Mutant(
        "a lock that cannot be read for a moment beats no more",
        "hookstats/runs/lock.py",
        '_token(path) in (content["token"], None):',
        '_token(path) == content["token"]:',
        "tests/runs/test_lock.py::test_the_beat_goes_on_where_the_lock_could_not_be_read",
    ),
    Mutant(
        "of a step that comes twice both scalars count",
        "hookstats/runs/scalars.py",
        "step in valid and last[step] == i for i,",
        "step in valid for i,",
        "tests/runs/test_scalars.py::test_a_step_that_comes_twice_in_a_part_counts_once",
    ),
)
