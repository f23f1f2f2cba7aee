// Tuning of the CUDA kernels: every number that may change without changing what is computed.
//
// The reasoning is for an H200: 132 multiprocessors at 1.98 GHz. Memory gives 4.6 TB/s, which is
// 17.5 bytes per clock and multiprocessor: 4.4 fp32 elements or 8.8 of 16 bits. A multiprocessor
// issues 128 instructions per clock, 64 of them to the unit that compares, selects and adds
// integers. docs/cuda.md says how far from memory's rate the kernels are, and what was tried.
// Stores to local memory reach the device's memory, so loops have none. Beside the tensor, memory
// sees 80 bytes for a split of a channel and 8 for a slot that a block counted in: below 3 % of the
// reading at the sizes planned below.
//
// Whole tensors, channels first: a block takes a split of a channel. Three splits per
// multiprocessor are one wave; with six, whole tensors of 128 MB take 1.2 times as long.
//
// Rows: a warp takes a row, or eight of its lanes a row each, without barriers or partial results.
// The end of a row, some hundred instructions, then serves four rows at a time.
//
// Channels last: a block is about 2 sqrt(C) channels wide, at most 512 bytes of a row. A wider
// block has more splits of each channel, whose merge by the last block would cost as much as the
// pass. A thread's registers have room for the sums of four channels at 512 threads per
// multiprocessor, each with 64 bytes under way. Two splits per multiprocessor are one wave; four
// and more are slower. Where the number of channels is no multiple of four, the next block also
// reads the vector at the end of a block's rows, so blocks are twice as wide.
//
// Channels first with many short rows of each (maps of 7x7): threads walk down the rows as in
// channels last, where all of a row is side by side. The end of a thread's work, some 1000
// instructions, is worth 32 rows, and a block is as wide as that needs.
//
// Many tensors: the same blocks, found by bisection in the arguments of a launch of 150 tensors.
//
// Anything else (strides, integers, fp64, fp8): element by element in fp64, at best 6 elements per
// clock.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/state.h"

namespace hookstats::cuda {

constexpr int kWarp = 32;  // threads, which the hardware has

// Compiled into the kernels.

constexpr int kBlock = 256;  // threads
// Loads that a thread has under way while it sums what as many have brought: 4 x 16 bytes x 512
// threads are 32 KB per multiprocessor, where latency asks for 20 KB.
constexpr int kItemsPerThread = 4;
// Blocks that a multiprocessor holds at a time, for which registers are shared out.
constexpr int kColumnsBlocks = 2;
constexpr int kRunsBlocks = 3;
// With the registers of three blocks, the loops that count would keep values in local memory.
constexpr int kCountingBlocks = kColumnsBlocks;

constexpr int kWarps = kBlock / kWarp;  // of a block
constexpr int kLanes = 8;               // of the smallest cooperative group, of rows
template <int kThreads>  // the lanes of a warp that are of one group of so many threads
constexpr int kLanesOf = kThreads < kWarp ? kThreads : kWarp;
constexpr int kOwned = 4;       // neighbouring channels of a thread, channels last
constexpr int kAdditions = 32;  // in fp32, before sums are added to in fp64

// Followed by plans.

// Splits at most, per multiprocessor: of all channels, and of one channel, where 3 are one whole
// wave. A plan takes those that end together.
constexpr int kSplits = 16;
constexpr int kChannelSplits = 3;
// Tiles (a load of every thread) that a split is worth.
constexpr int kLeastTiles = 2;
// A channel of up to so many vectors is a warp's or its lanes', and so is one of up to so many
// tiles of a block if there are so many warps for each multiprocessor.
constexpr int kWarpSlots = 512;
constexpr int kWarpTiles = 4;
constexpr int kFillingWarps = 2;
// Splits per multiprocessor, channels last: 2 are one wave of resident blocks.
constexpr int kColumnSplits = 2;
// Channels of a block, channels last: the root of their number times this, at most so many bytes of
// a row, and no fewer than these, because memory reads 64 bytes of a row worse than 128.
constexpr int kColumnRoots = 2;
constexpr int kColumnBytes = 512;
constexpr int kLeastColumns = 32;
// Rows of fewer channels are joined, where they are no whole vectors.
constexpr int kJoinBelow = 2 * kOwned;
// Rows per thread, channels last, that a split is worth.
constexpr int kLeastRows = 32;
// Counters of a slot of a run's table, a power of two: 32 have a bank each. One counter where the
// table would have more bytes.
constexpr int kCopies = 32;
constexpr int kMostCopyBytes = 16384;
// Blocks per multiprocessor with a table of the tensor's histogram, which each clears and adds to
// memory once.
constexpr int kHistogramBlocks = 8;

// Of a thread's tile of columns: sums, finite values, extremes, tallies of finite values.
constexpr int64_t kTileBytes = 144 + 16 * kValueTallies;

constexpr int64_t kLeastCounted = 65536;  // bytes that a block with a table reads at least
constexpr int64_t kMostCounted = 131072;  // the same, of as many tensors as may be
constexpr int64_t kLeastMapBytes = 256;   // of a row that a block of maps reads
constexpr int64_t kTotalsBytes = kBlock * kTileBytes;  // of the tiles of a block of columns
constexpr int kMostTallied = 256;         // channels of a block whose infinities are counted
constexpr int64_t kHistogramBytes = 256;  // of both histograms, as a block sees them
constexpr int64_t kMostLaneSlots = 2048;  // vectors of a row of kLanes lanes
constexpr int64_t kMostPatterns = 8192;   // 32 KB: up to 4 subdivision bits
constexpr int kMostWarpTables = 65536;    // bytes of the tables of all warps of a block
constexpr int64_t kMostSplit = int64_t{1} << 26;  // slots: what 32-bit counters and indices take
constexpr int kBlockCounters = 65536;             // of a workspace: what a launch may use

}  // namespace hookstats::cuda
