"""The mutants in C++: those of semantics and readers, in sums, masks and hooks."""

from __future__ import annotations

from mutants.mutant import Mutant

NATIVE = (
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
        "a run of the rows that a mask keeps goes on over padding",
        "csrc/cpu/runs-inl.h",
        "view_.follow_each_other(row, run.row_end + 1 - row)",
        "view_.follow_each_other(row, run.row_end - row)",
        "tests/kernels/test_masks.py",
    ),
    Mutant(
        "rows that a mask keeps apart are counted as if they touched",
        "csrc/cpu/rows-inl.h",
        "const bool together = follow(row, count);",
        "const bool together = true;",
        "tests/kernels/test_masks.py",
    ),
    Mutant(
        "the lanes beyond the end of a run are summed, too, as zeros",
        "csrc/cpu/runs-inl.h",
        "add(local, x, origin, &valid);",
        "add(local, x, origin);",
        "tests/kernels/test_ops.py",
    ),
    Mutant(
        "zeros that a whole histogram leaves out are counted nowhere",
        "csrc/cpu/count-inl.h",
        "zeros_ += elements - n;",
        "",
        "tests/kernels/test_ops.py",
    ),
    Mutant(
        "what a whole histogram has found is incremented only as far as it goes with sums",
        "csrc/cpu/whole-inl.h",
        """    turn();
    for (; next_ < last_; ++next_) ++histogram_->counters()[which_[side_][next_]];""",
        "    for (; next_ < last_; ++next_) ++histogram_->counters()[which_[side_][next_]];",
        "tests/kernels/test_ops.py",
    ),
    Mutant(
        "counters of two slots side by side count as those of one",
        "csrc/cpu/whole-inl.h",
        "count_in_turn<Histogram::kCopies>(counters + which[0]);",
        "counters[which[0]] += kLanes;",
        "tests/kernels/test_counters.py",
    ),
    Mutant(
        "a counter has room for more elements than 16 bits count",
        "csrc/cpu/count-inl.h",
        "return vectors * (kLanes / kCopies);",
        "return vectors;",
        "tests/kernels/test_counters.py",
    ),
    Mutant(
        "elements with a stride are packed as if they were side by side",
        "csrc/cpu/reader-inl.h",
        "job_.pack(address, stride, count, p_.scale, buffer);",
        "job_.pack(address, 1, count, p_.scale, buffer);",
        "tests/kernels/test_ops.py",
    ),
    Mutant(
        "a gradient has the mask of its moment, not of its call",
        "csrc/hooks/gradient.cpp",
        "site->receive(gradient, first.exchange(false), mask.get());",
        "site->receive(gradient, first.exchange(false), site->arena().mask.get());",
        "tests/hooks/test_masked_calls.py",
    ),
    Mutant(
        "tensors that a mask does not fit are not counted",
        "csrc/hooks/site.h",
        "return mask != nullptr && covered(x, mask) == 0;",
        "return false;",
        "tests/hooks/test_masked_calls.py",
    ),
    Mutant(
        "a step's rows are not emptied when they are read",
        "csrc/cpu/take.cpp",
        "std::memcpy(rows, empty, sizeof empty);",
        "",
        "tests/cpp/test_take.cpp",
    ),
)
