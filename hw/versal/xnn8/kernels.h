// What a pair of AIE tiles of xnn8 runs: 64 rows by 64 columns of a product, half of K each; or attention of one head.
//
// Windows hold blocks of one vector each, row by row: 4x8 of what is multiplied from the left, 8x4 from the right. What
// stands on the right has two groups of columns side by side.
//   chunk   a product: [16 groups of rows][4 of k], 64 rows and half of a chunk's 64 columns;
//           queries: [8 groups of rows][8 of columns], 32 rows and 64 columns;
//           behind both a record, which says what to do
//   slice   weights: [8 pairs of groups of columns][4 of k][2]; keys, 32 of them: [4 pairs of groups of keys][8 of
//           columns][2], transposed; values: [8 pairs of groups of columns][4 of keys][2]
//   result  of a product: 16 rows as [16 blocks of 8x8][4 blocks of 4x4], int16, and 32 bytes without meaning;
//           of attention: 8 sums of weights, then 8 rows as [8][4], int32. First those of the first tile.
//           They leave by both DMA channels of the last tile in turn: its four buffers hold a block of 64 rows.
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

// Bytes of a tile's own memory that its kernel and its windows take. Chunks and slices have two buffers. Results have
// two in each tile of the pair. What passes from the last tile to the first has one: both reach the first one's memory,
// in rows of either direction (AM009, "AI Engine Interfaces"), and the first one waits for it in any case.
constexpr unsigned stack_for_calls = 1024;
constexpr unsigned stack_bytes = 4 * (vector_lanes + rows * columns) + stack_for_calls;
constexpr unsigned start_bytes = 2 * 5 * 4 * vector_lanes;  // constants: where scores begin
constexpr unsigned last_bytes = 2 * chunk_bytes + 2 * slice_bytes + 8 * result_words + start_bytes + stack_bytes;
constexpr unsigned first_bytes = last_bytes + half * half;

// The first tile has the first half of K and hands its sums on; the last one has the results. column: of the pair.
template <unsigned column>
void pair_first(Chunk &a, Slice &b, Handed &handed, output_cascade<acc48> *out);
template <unsigned column>
void pair_last(Chunk &a, Slice &b, input_cascade<acc48> *in, Hands &hands, Result &at_even, Result &at_odd);

}  // namespace rsn::xnn8

#endif  // RSN_XNN8_KERNELS_H
