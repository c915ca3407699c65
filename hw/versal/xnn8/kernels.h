// What a pair of AIE tiles of xnn8 runs: 64 rows by 64 columns of a product, half of K each; or attention of one head.
//
// Windows hold blocks of one vector each, row by row: 4x8 of what is multiplied from the left, 8x4 from the right. What
// stands on the right has two groups of columns side by side.
//   chunk   a product: [16 groups of rows][4 of k], 64 rows and half of a chunk's 64 columns;
//           queries: [8 groups of rows][8 of columns], 32 rows and 64 columns;
//           behind both a record, which says what to do
//   slice   weights: [8 pairs of groups of columns][4 of k][2]; keys, 32 of them: [4 pairs of groups of keys][8 of
//           columns][2], transposed; values: [8 pairs of groups of columns][4 of keys][2]
//   result  of a product: 32 bytes without meaning, then 16 rows as [16 blocks of 8x8][4 blocks of 4x4], int16;
//           of attention: 8 sums of weights, then 8 rows as [8][4], int32. First those of the first tile.
//           The highest bits of the first word are a number (packet.h). They leave by both ports in turn: the first
//           one has its buffers, and so its DMA channel, in the first tile, the other one in the last tile. Four
//           buffers hold a block of 64 rows.
// Blocks of 8x8 go along the columns first. Of heads of 32 columns the other 32 have no meaning, anywhere. A lane has
// 16, 32, 48 or 64 rows; of fewer rows than 64 a chunk has the first groups, and as many fewer results leave. In
// attention each tile of a pair has half of the lane's rows. For heads of 128 columns both have the same ones, and 64
// columns each.
//
// Queries, keys and values of a sequence: all queries of up to eight heads, of which a pair keeps those of its column;
// then its keys, then its keys and values in turn: the rows of one lane of the sequence after those of another, first
// of lane `column` (modulo their number). Each 32 of them are a slice, whatever lanes they are from. The last one may
// be filled up.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_XNN8_KERNELS_H
#define RSN_XNN8_KERNELS_H

#include <adf.h>

#include "packet.h"
#include "record.h"

namespace rsn::xnn8 {

using xnn::ChunkKind;
using xnn::ChunkRecord;

constexpr unsigned rows = 64, columns = 64;
constexpr unsigned half = 32;  // of k for a tile; rows of queries; keys of a slice
constexpr unsigned record_bytes = 4 * ChunkRecord::words;
constexpr unsigned chunk_bytes = rows * half + record_bytes;
constexpr unsigned slice_bytes = half * columns;
constexpr unsigned result_rows = 8;  // of attention
constexpr unsigned result_words = result_rows * (columns + 1);
constexpr unsigned vector_lanes = 16;  // sums of a block of 4x4

using Chunk = adf::input_async_buffer<int8, adf::extents<chunk_bytes>>;
using Slice = adf::input_async_buffer<int8, adf::extents<slice_bytes>>;
// From the last tile of a pair to the first one: weights of 32 rows and keys, and before them the maxima.
using Handed = adf::input_async_buffer<uint8, adf::extents<half * half>>;
using Hands = adf::output_async_buffer<uint8, adf::extents<half * half>>;
using Result = adf::output_async_buffer<int32, adf::extents<result_words>>;

// What passes from the last tile to the first has one buffer: both reach the first one's memory, in rows of either
// direction (AM009, "AI Engine Interfaces"), and the first one waits for it in any case. The heap has what no graph
// connects (UG1393, "AI Engine Options"): the vectors at which scores begin.
constexpr unsigned stack_for_calls = 1024;
constexpr unsigned stack_bytes = 4 * vector_lanes + stack_for_calls;
constexpr unsigned heap_bytes = 1024, sync_bytes = 32;  // by default; behind the heap (there)
constexpr unsigned start_bytes = 2 * 5 * 4 * vector_lanes;

// Addresses in a tile's own memory, 32 KiB in four double banks of 8 KiB. A product loads chunks, slices and sums in
// the same cycle, and stores sums: of even blocks, of odd ones. Each of these has a bank of its own.
namespace memory {
constexpr int own_bytes = 0x8000, bank_bytes = 0x2000;
constexpr int a[2] = {0, chunk_bytes};
constexpr int stack = 2 * chunk_bytes;
constexpr int handed = stack + stack_bytes + heap_bytes + sync_bytes;
constexpr int c[2] = {handed + half * half, handed + half * half + 4 * result_words};
constexpr int b[2] = {c[1] + 4 * result_words, c[1] + 4 * result_words + slice_bytes};
constexpr int sums = 2 * bank_bytes;
static_assert(stack <= bank_bytes && b[0] >= bank_bytes && b[1] + static_cast<int>(slice_bytes) <= sums);
static_assert(sums + 4 * static_cast<int>(rows * columns) == own_bytes && start_bytes <= heap_bytes);
}  // namespace memory

// The first tile has the first half of K and hands its sums on; the last one has the results. column: of the pair.
template <unsigned column>
void pair_first(Chunk &a, Slice &b, Handed &handed, output_cascade<acc48> *out);
template <unsigned column>
void pair_last(Chunk &a, Slice &b, input_cascade<acc48> *in, Hands &hands, Result &at_even, Result &at_odd);

}  // namespace rsn::xnn8

// Sums of 64x64, or what attention keeps. The graph has a place for it, and each tile its own: natively each thread.
#ifdef RSN_CSIM
#define RSN_OF_TILE thread_local
#else
#define RSN_OF_TILE
#endif
extern RSN_OF_TILE int32 rsn_xnn8_sums[rsn::xnn8::rows * rsn::xnn8::columns];

#endif  // RSN_XNN8_KERNELS_H
