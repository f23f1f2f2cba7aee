// The numbers of policy.h, which says what each of them is: written by `python -m bench.cuda.tune`.
//
// Derived for an H200; kChannelPieces, of 3, 6, 12 and 24, kColumnPieces, of 2, 4, 6, 8 and 12, and
// kLeastColumns, of 16 and 32, are the best that were measured on one
// (bench/results/h200-by-hand.txt). kWarpTiles and kFillingWarps are what many gradients are
// thought to need. The tuner has not run.
#pragma once

namespace hookstats::cuda::tuned {

// Of compiled kernels.
constexpr int kBlock = 256;
constexpr int kInFlight = 4;
constexpr int kRunsBlocks = 3;
constexpr int kColumnsBlocks = 2;

// Of plans.
constexpr int kPieces = 16;
constexpr int kChannelPieces = 3;
constexpr int kLeastTiles = 2;
constexpr int kWarpSlots = 512;
constexpr int kWarpTiles = 4;
constexpr int kFillingWarps = 2;
constexpr int kColumnPieces = 2;
constexpr int kColumnRoots = 2;
constexpr int kColumnBytes = 512;
constexpr int kLeastColumns = 32;
constexpr int kLeastRows = 32;
constexpr int kCopies = 32;
constexpr int kMostCopyBytes = 16384;
constexpr int kHistogramBlocks = 8;

}  // namespace hookstats::cuda::tuned
