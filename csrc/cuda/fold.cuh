// From partial results to the state: merges in a fixed order, by shape alone.
#pragma once

#include "core/state.h"
#include "cuda/primitives.cuh"
#include "cuda/table.h"

namespace hookstats::cuda {

// Folds the statistics of a channel in one tensor into the channel's state.
template <class C>
HOOKSTATS_OUT_OF_LINE void fold(const Item& item, int64_t channel, C seen) {
  repeat(seen, item.repeat);
  double* const moments = item.moments + channel * C::kColumns;
  int64_t* const tallies = item.tallies + channel * kTallyColumns;
  C state;
  load_row(state, moments, tallies);
  merge(state, seen);
  store_row(state, moments, tallies);
}

// The partial results of an item, a row of channels for each split.
template <class C>
HOOKSTATS_DEVICE C* partials(const Item& item) {
  return static_cast<C*>(item.partials);
}

template <class C>
HOOKSTATS_DEVICE C load_partial(const C* partial) {
  C c;
  c.count = load_fresh(&partial->count);
  c.nan = load_fresh(&partial->nan);
  c.posinf = load_fresh(&partial->posinf);
  c.neginf = load_fresh(&partial->neginf);
  c.zero = load_fresh(&partial->zero);
  c.mean = load_fresh(&partial->mean);
  c.m2 = load_fresh(&partial->m2);
  c.min = load_fresh(&partial->min);
  c.max = load_fresh(&partial->max);
  c.l1 = load_fresh(&partial->l1);
  if constexpr (C::kColumns == kHigherColumns) {
    c.m3 = load_fresh(&partial->m3);
    c.m4 = load_fresh(&partial->m4);
  }
  return c;
}

// Merges, for each of `width` columns, `rows` rows of entries (row r, column t in entry r * width +
// t of `scratch`) into row 0, by a tree. All threads of the block call it, once they have written.
template <class C>
HOOKSTATS_DEVICE void merge_entries(C* scratch, int row, int column, int width, int rows) {
  int half = 1;
  while (2 * half < rows) half *= 2;
  for (sync_block(); half > 0; half /= 2) {
    if (row < half && row + half < rows) {
      merge(scratch[row * width + column], scratch[(row + half) * width + column]);
    }
    sync_block();
  }
}

// The same of what the threads have, one entry each.
template <class C>
HOOKSTATS_DEVICE void merge_rows(C* scratch, const C& mine, int row, int column, int width,
                                 int rows) {
  if (row < rows) scratch[row * width + column] = mine;
  merge_entries(scratch, row, column, width, rows);
}

// Whether the calling block is the last of `blocks` to come here. The threads of the last block see
// everything that the threads of all blocks wrote before.
HOOKSTATS_DEVICE bool last_of(uint32_t* ticket, int32_t blocks) {
  sync_block();
  bool last = false;
  if (thread_index() == 0) {
    last = take_ticket(ticket) == static_cast<uint32_t>(blocks) - 1;
    if (last) *ticket = 0;  // for the next update
  }
  return any_in_block(last);
}

// Merges `count` > 0 partial results, `stride` apart. No merge waits for memory: the next partial
// result is under way.
template <class C>
HOOKSTATS_DEVICE void merge_column(const C* partial, int64_t stride, int64_t count, C& total) {
  C next = load_partial(partial);
  HOOKSTATS_NO_UNROLL
  for (; count > 1; --count) {
    const C now = next;
    partial += stride;
    next = load_partial(partial);
    merge(total, now);
  }
  merge(total, next);
}

// The block folds the partial results of the channels [begin, begin + width) into their state.
template <class C>
HOOKSTATS_OUT_OF_LINE void fold_partials(const Item& item, int64_t begin, int width, C* scratch) {
  const int rows = width >= block_threads() ? 1 : block_threads() / width;
  const int splits = item.splits();
  for (int first = 0; first < width; first += block_threads()) {
    const int columns = width - first < block_threads() ? width - first : block_threads();
    const int row = thread_index() / columns, column = thread_index() % columns;
    C total;
    if (row < rows) {
      const int64_t from = int64_t{splits} * row / rows, to = int64_t{splits} * (row + 1) / rows;
      if (from < to)
        merge_column(partials<C>(item) + from * item.channels + begin + first + column,
                     item.channels, to - from, total);
    }
    merge_rows(scratch, total, row, column, columns, rows);
    if (row == 0) fold(item, begin + first + column, scratch[column]);
    sync_block();
  }
}

}  // namespace hookstats::cuda
