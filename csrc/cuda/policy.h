// Tuning of the CUDA kernels: every number that may change without changing what is computed.
//
// All of it is derived, none of it measured, for an H200: 132 multiprocessors at 1.75 GHz. Memory
// gives 4.3 TB/s, which is 18.6 bytes per clock and multiprocessor: 4.7 fp32 elements or 9.3 of 16
// bits. A multiprocessor issues 128 instructions per clock, 64 of them to the unit that compares,
// selects and adds integers. What an element takes of both, as compiled, is in docs/cuda.md: memory
// is the limit of the moments, and of fp32 with one histogram; instructions are the limit of 16-bit
// elements with histograms, and of fp32 with both. Beside the tensor, memory sees 80 bytes for a
// piece of a channel and 8 for a slot that a block counted in: below 3% of the reading where pieces
// have the sizes planned below.
//
// Whole tensors, channels first: a block takes a piece of a channel. Six pieces per multiprocessor
// are two waves; merging them takes the last block a few microseconds.
//
// Rows: a warp takes a row, without barriers or partial results. From 4096 elements on its end,
// about 300 instructions, is less than a fifth of the work.
//
// Channels last: a block is about 2 sqrt(C) channels wide, at most 512 bytes of a row: a wider one
// has more pieces of each channel, whose merge by the last block would cost as much as the pass. A
// thread's registers have room for the sums of four channels at 512 threads per multiprocessor,
// each with 64 bytes under way.
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

namespace hookstats::cuda {

constexpr int kWarp = 32;    // threads, which the hardware has
constexpr int kBlock = 256;  // threads per block: many blocks make an even end of a launch
constexpr int kWarps = kBlock / kWarp;  // of a block
constexpr int kInFlight = 4;        // loads a thread has under way: 4 x 16 bytes x 1024 threads are
                                    // 64 KB per multiprocessor, where latency asks for 20 KB
constexpr int kOwned = 4;           // neighbouring channels of a thread, channels last
constexpr int kAdditions = 32;      // in fp32, before sums are added to in fp64
constexpr int kPieces = 16;         // of the work, per multiprocessor: about five waves of blocks
constexpr int kMostPieces = 6;      // of one channel: two whole waves; the last block merges them
constexpr int kColumnPieces = 2;    // the same, channels last: one wave of resident blocks, as each
                                    // piece costs 80 bytes per channel
constexpr int kLeastTiles = 2;      // tiles (a load of every thread) that a piece is worth
constexpr int kWarpSlots = 512;     // vectors up to which a channel is always a warp's,
constexpr int kWarpTiles = 8;       // tiles of a block up to which it is if there are
constexpr int kFillingWarps = 16;   // such warps for each multiprocessor
constexpr int64_t kLeastRows = 32;  // rows per thread, channels last, that a piece is worth
// Channels of a block, channels last: 32 bytes of 16-bit elements, what memory reads at least.
constexpr int64_t kLeastColumns = 16;
constexpr int kMostCopyBytes = 16384;    // of a table in 32 copies, one a bank: above, one copy
constexpr int64_t kMostPatterns = 8192;  // 32 KB: up to 4 subdivision bits
constexpr int kMostWarpTables = 65536;   // bytes of the tables of all warps of a block
constexpr int kHistogramBlocks = 8;      // blocks per multiprocessor with a table of the tensor's
                                         // histogram, which each clears and adds to memory once
constexpr int64_t kMostPiece = int64_t{1} << 26;  // slots: what 32-bit counters and indices take
constexpr int kTickets = 65536;                   // of a workspace: what a launch may use

}  // namespace hookstats::cuda
