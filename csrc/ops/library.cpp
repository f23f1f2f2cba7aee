// The operators' schemas: the table of contents of what Python can call.
#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY(hookstats, m) {
  // Folds the statistics of `x` into the state of its channels. Shapes, columns and
  // dtypes of the state are those of core/state.h, where the columns of `moments` say whether there
  // are third and fourth moments; `bins` is described in core/bins.h.
  m.def(
      "update_(Tensor x, int? channel_dim, Tensor(a!) moments, Tensor(b!) tallies, "
      "Tensor(c!)? counts=None, Tensor? bins=None, "
      "Tensor(d!)? channel_counts=None, Tensor? channel_bins=None) -> ()");
  // The same for many tensors, each into a state of its own: the i-th of every list. `counts` and
  // `channel_counts` are empty where there are no such bins. Values are divided by `scale`. All
  // moments have the same columns.
  m.def(
      "update_many_(Tensor[] xs, int? channel_dim, Tensor(a!)[] moments, Tensor(b!)[] tallies, "
      "Tensor(c!)[] counts, Tensor? bins, Tensor(d!)[] channel_counts, Tensor? channel_bins, "
      "Tensor? scale=None) -> ()");
  // Takes the states out of blocks of rows on the CPU, which it leaves empty: moments and tallies
  // by column, [columns, rows], and the nonzero entries of the histograms, row by row (cpu/take.h).
  // `marks` say which counts to look at where all of the `folds` of a histogram are marked
  // (core/marks.h).
  m.def(
      "take_(Tensor(a!)[] moments, Tensor(b!)[] tallies, Tensor(c!)[] counts, "
      "Tensor(d!)[] marks, Tensor folds, Tensor(e!)[] channel_counts) -> (Tensor, Tensor, Tensor, "
      "Tensor, Tensor, Tensor, Tensor, Tensor)");
  // The instruction set of the CPU kernels: "AVX512", "AVX2" or "DEFAULT".
  m.def("cpu_capability() -> str");
  // The addresses of what the C++ hooks call (ops/kernels.h); that of CUDA is in a library of its
  // own, and so is the next.
  m.def("cpu_entry(int params_size) -> int");
  m.def("cuda_entry(int params_size) -> int");
  // Lets this thread use CUDA while other threads capture graphs, which by default forbid it.
  m.def("ignore_captures() -> ()");
}
