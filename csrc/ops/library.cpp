// The operators' schemas: all that Python can call.
#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY(hookstats, m) {
  // Accumulates the statistics of `x` into the state of its channels. Shapes, columns and
  // dtypes of the state are those of core/state.h, where the columns of `moments` say whether there
  // are third and fourth moments; `bins` is described in core/bins.h. `sampling`, where
  // histograms may be sampled or steps not recorded, is described in core/sample.h. `mask`, bool or
  // integers, is not zero where a row of `x` is read (core/kept_rows.h).
  m.def(
      "update_(Tensor x, int? channel_dim, Tensor(a!) moments, Tensor(b!) tallies, "
      "Tensor(c!)? counts=None, Tensor? bins=None, "
      "Tensor(d!)? channel_counts=None, Tensor? channel_bins=None, Tensor? sampling=None, "
      "Tensor? mask=None) -> ()");
  // The same for many tensors: the i-th tensor goes into the state of the i-th entries of the other
  // lists. `counts` and `channel_counts` are empty where there are no such bins. Values are divided
  // by `scale`. All moments have the same columns.
  m.def(
      "update_many_(Tensor[] xs, int? channel_dim, Tensor(a!)[] moments, Tensor(b!)[] tallies, "
      "Tensor(c!)[] counts, Tensor? bins, Tensor(d!)[] channel_counts, Tensor? channel_bins, "
      "Tensor? scale=None, Tensor? sampling=None) -> ()");
  // Drains blocks of rows on the CPU: moves the states out of them and leaves them empty. Returns
  // two tables by column, of channels and of whole tensors: moments [columns, rows], tallies
  // [columns, rows], those of tensors [columns, tensors] each, where tensor t has the rows
  // offsets[t] to offsets[t + 1], all in one block; and the histograms of tensors, then of
  // channels, as sparse rows: offsets, slots and counts (cpu/drain.h). Where all `accumulated` of a
  // histogram are marked, `occupancy` says which of its counts to look at (core/occupancy.h).
  m.def(
      "drain_(Tensor(a!)[] moments, Tensor(b!)[] tallies, Tensor(c!)[] counts, "
      "Tensor(d!)[] occupancy, Tensor accumulated, Tensor(e!)[] channel_counts, Tensor offsets) -> "
      "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
  // The instruction set of the CPU kernels: "AVX512", "AVX2" or "DEFAULT".
  m.def("cpu_capability() -> str");
  // The addresses of what the C++ hooks call (ops/kernels.h). The CUDA library, which is separate,
  // implements the rest.
  m.def("cpu_entry(int params_size) -> int");
  m.def("cuda_entry(int params_size) -> int");
  // A step is closed on the current stream of a device. Before it is read on another stream, that
  // one waits for the kernels that hooks launched on others than the first (cuda/streams.h).
  m.def("cuda_close(int device) -> ()");
  m.def("cuda_wait(int device) -> ()");
  // Lets this thread use CUDA while other threads capture graphs, which by default forbid it.
  m.def("ignore_captures() -> ()");
}
