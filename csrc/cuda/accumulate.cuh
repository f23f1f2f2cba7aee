// From partial results to the state: merges in a fixed order, by shape alone.
#pragma once

#include <cstring>

#include "core/state.h"
#include "cuda/primitives.cuh"
#include "cuda/table.h"

namespace hookstats::cuda {

// Accumulates the statistics of a channel in one tensor into the channel's state.
HOOKSTATS_OUT_OF_LINE void accumulate(const Item& item, int64_t channel, Channel seen) {
  repeat(seen, item.repeat);
  double* const moments = item.moments + channel * kMomentColumns;
  int64_t* const tallies = item.tallies + channel * kTallyColumns;
  Channel state;
  load_row(state, moments, tallies);
  merge(state, seen);
  store_row(state, moments, tallies);
}

constexpr int kChannelFields = sizeof(Channel) / sizeof(uint64_t);  // of 8 bytes each

// Partial results are kept field by field, of each a row of channels for each split: what
// neighbouring threads load lies side by side.
HOOKSTATS_DEVICE void store_partial(const Item& item, int split, int64_t channel,
                                    const Channel& seen) {
  const int64_t all = item.splits() * item.channels, at = split * item.channels + channel;
  uint64_t fields[kChannelFields];
  std::memcpy(fields, &seen, sizeof seen);
  HOOKSTATS_UNROLL
  for (int i = 0; i < kChannelFields; ++i) item.partials[i * all + at] = fields[i];
}

HOOKSTATS_DEVICE Channel load_partial(const Item& item, int split, int64_t channel) {
  const int64_t all = item.splits() * item.channels, at = split * item.channels + channel;
  uint64_t fields[kChannelFields];
  HOOKSTATS_UNROLL
  for (int i = 0; i < kChannelFields; ++i) fields[i] = load_fresh(item.partials + i * all + at);
  Channel c;
  std::memcpy(&c, fields, sizeof c);
  return c;
}

// An entry of the block's scratch memory, in which threads leave what others merge.
template <class C>
HOOKSTATS_DEVICE C& entry(void* scratch, int i) {
  return static_cast<Entry<C>*>(scratch)[i];
}

// Merges, for each of `width` columns, `rows` rows of entries (row r, column t in entry r * width +
// t of `scratch`) into row 0, by a tree. All threads of the block call it, once they have written.
template <class C>
HOOKSTATS_DEVICE void merge_entries(void* scratch, int row, int column, int width, int rows) {
  int half = 1;
  while (2 * half < rows) half *= 2;
  for (sync_block(); half > 0; half /= 2) {
    if (row < half && row + half < rows) {
      merge(entry<C>(scratch, row * width + column),
            entry<C>(scratch, (row + half) * width + column));
    }
    sync_block();
  }
}

// The same of what the threads have, one entry each.
template <class C>
HOOKSTATS_DEVICE void merge_rows(void* scratch, const C& mine, int row, int column, int width,
                                 int rows) {
  if (row < rows) entry<C>(scratch, row * width + column) = mine;
  merge_entries<C>(scratch, row, column, width, rows);
}

// Whether the calling block is the last of `blocks` to come here. The threads of the last block see
// everything that the threads of all blocks wrote before.
HOOKSTATS_DEVICE bool is_last_block(uint32_t* counter, int32_t blocks) {
  sync_block();
  bool last = false;
  if (thread_index() == 0) {
    last = count_block(counter) == static_cast<uint32_t>(blocks) - 1;
    if (last) *counter = 0;  // for the next update
  }
  return any_in_block(last);
}

// Merges the partial results of a channel in every `step`-th split from `split` on. No merge waits
// for memory: the next partial result is under way.
HOOKSTATS_DEVICE void merge_splits(const Item& item, int64_t channel, int split, int step,
                                   Channel& total) {
  Channel next = load_partial(item, split, channel);
  HOOKSTATS_NO_UNROLL
  for (split += step; split < item.splits(); split += step) {
    const Channel now = next;
    next = load_partial(item, split, channel);
    merge(total, now);
  }
  merge(total, next);
}

// The block accumulates the partial results of the channels [begin, begin + width) into their
// state.
HOOKSTATS_OUT_OF_LINE void accumulate_partials(const Item& item, int64_t begin, int width,
                                               void* scratch) {
  const int most = width >= block_threads() ? 1 : block_threads() / width;
  const int rows = item.splits() < most ? item.splits() : most;
  for (int first = 0; first < width; first += block_threads()) {
    // No minimum of `width - first`: of a copy of this function for one column, ptxas 13.0 makes
    // that of `first - 1` (`python -m bench.cuda.ptxas` finds it).
    const bool is_whole = first + block_threads() <= width;
    const int columns = is_whole ? block_threads() : width - first;
    const int row = thread_index() / columns, column = thread_index() % columns;
    Channel total;
    if (row < rows) merge_splits(item, begin + first + column, row, rows, total);
    merge_rows(scratch, total, row, column, columns, rows);
    if (row == 0) accumulate(item, begin + first + column, entry<Channel>(scratch, column));
    sync_block();
  }
}

}  // namespace hookstats::cuda
