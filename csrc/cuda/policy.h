// Tuning of the CUDA kernels: every number that may change without changing what is computed. Those
// that `make gpu-check PHASE=tune` measures have their values in tuned.h, and their meaning here.
//
// The reasoning is for an H200: 132 multiprocessors at 1.98 GHz. Memory gives 4.6 TB/s, which
// is 17.5 bytes per clock and multiprocessor: 4.4 fp32 elements or 8.8 of 16 bits. A multiprocessor
// issues 128 instructions per clock, 64 of them to the unit that compares, selects and adds
// integers. What an element takes of both, as compiled, is in docs/cuda.md, which also says how far
// from memory's rate kernels are, and what was tried. Stores to local memory reach the device's
// memory: loops have none. Beside the tensor, memory sees 80 bytes for a piece of a channel and 8
// for a slot that a block counted in: below 3% of the reading where pieces have the sizes planned
// below.
//
// Whole tensors, channels first: a block takes a piece of a channel. Three pieces per
// multiprocessor are one wave; with six, whole tensors of 128 MB take 1.2 times as long.
//
// Rows: a warp takes a row, or eight of its lanes a row each, without barriers or partial results:
// what ends a row, some hundred instructions, is then done for four rows at a time.
//
// Channels last: a block is about 2 sqrt(C) channels wide, at most 512 bytes of a row: a wider one
// has more pieces of each channel, whose merge by the last block would cost as much as the pass. A
// thread's registers have room for the sums of four channels at 512 threads per multiprocessor,
// each with 64 bytes under way. Two pieces per multiprocessor are one wave; four and more are
// slower.
//
// Channels first, many short rows of each (maps of 7x7): threads walk down the rows as in channels
// last, where all of a row is side by side. What a thread does in the end, some 1000 instructions,
// is then worth 32 rows, so a block is as wide as that needs.
//
// Many tensors: the same blocks, found by bisection in the arguments of a launch of 150 tensors.
//
// Channels last that are no multiple of four: a vector at the end of a block's rows is read by the
// next block, too, so blocks are twice as wide.
//
// Anything else (strides, integers, fp64, fp8): element by element in fp64, at best 6 elements per
// clock.
#pragma once

#include <cstddef>
#include <cstdint>

// The tuner compiles kernels with other numbers, in a file of its own.
#if defined(HOOKSTATS_TUNED)
#include HOOKSTATS_TUNED
#else
#include "cuda/tuned.h"
#endif

namespace hookstats::cuda {

constexpr int kWarp = 32;  // threads, which the hardware has

// Compiled into the kernels.

// Threads per block: many blocks make an even end of a launch.
using tuned::kBlock;
// Loads a thread has under way, while it sums what as many have brought: 4 x 16 bytes x 512 threads
// are 32 KB per multiprocessor, where latency asks for 20 KB.
using tuned::kInFlight;
// Blocks that a multiprocessor holds at a time, for which registers are shared out.
using tuned::kColumnsBlocks;
using tuned::kRunsBlocks;

constexpr int kWarps = kBlock / kWarp;  // of a block
constexpr int kLanes = 8;               // of the smallest team, of rows
template <int kTeam>  // the lanes of a warp that are of one team of so many threads
constexpr int kLanesOf = kTeam < kWarp ? kTeam : kWarp;
// Kernels that count take registers as those of columns do: with fewer, their loops would have what
// they use in local memory, which is written through to the device's.
constexpr int kCountingBlocks = kColumnsBlocks;
constexpr int kOwned = 4;       // neighbouring channels of a thread, channels last
constexpr int kAdditions = 32;  // in fp32, before sums are added to in fp64

// What plans follow; a part of the Device that they are made for.
struct PlanPolicy {
  // Pieces of the work at most, per multiprocessor, of which a plan takes those that end together.
  int pieces = tuned::kPieces;
  // Pieces of one channel at most: 3 are one whole wave; the last block merges them.
  int channel_pieces = tuned::kChannelPieces;
  // Tiles (a load of every thread) that a piece is worth.
  int least_tiles = tuned::kLeastTiles;
  // Vectors up to which a channel is always a warp's or its lanes', and tiles of a block up to
  // which it is if there are so many warps for each multiprocessor.
  int warp_slots = tuned::kWarpSlots;
  int warp_tiles = tuned::kWarpTiles;
  int filling_warps = tuned::kFillingWarps;
  // Pieces per multiprocessor, channels last: 2 are one wave of resident blocks, as each piece
  // costs 80 bytes per channel.
  int column_pieces = tuned::kColumnPieces;
  // Channels of a block, channels last: the root of their number times this, at most so many bytes
  // of a row, and no fewer than these: memory reads 64 bytes of a row worse than 128.
  int column_roots = tuned::kColumnRoots;
  int column_bytes = tuned::kColumnBytes;
  int least_columns = tuned::kLeastColumns;
  // Rows per thread, channels last, that a piece is worth.
  int least_rows = tuned::kLeastRows;
  // Counters of a slot of a run's table, a power of two: 32 have a bank each. One counter where the
  // table would have more bytes.
  int copies = tuned::kCopies;
  int most_copy_bytes = tuned::kMostCopyBytes;
  // Blocks per multiprocessor with a table of the tensor's histogram, which each clears and adds to
  // memory once.
  int histogram_blocks = tuned::kHistogramBlocks;
};

constexpr int64_t kLeastCounted = 65536;          // bytes that a block with a table reads at least
constexpr int64_t kMostCounted = 131072;          // the same, of as many tensors as may be
constexpr int64_t kLeastMapBytes = 256;           // of a row that a block of maps reads
constexpr int64_t kTotalsBytes = kBlock * 148;    // of whole tiles, of a block of columns
constexpr int64_t kHistogramBytes = 256;          // of both histograms, as a block sees them
constexpr int64_t kMostLaneSlots = 2048;          // vectors of a row of kLanes lanes
constexpr int64_t kMostPatterns = 8192;           // 32 KB: up to 4 subdivision bits
constexpr int kMostWarpTables = 65536;            // bytes of the tables of all warps of a block
constexpr int64_t kMostPiece = int64_t{1} << 26;  // slots: what 32-bit counters and indices take
constexpr int kTickets = 65536;                   // of a workspace: what a launch may use

}  // namespace hookstats::cuda
