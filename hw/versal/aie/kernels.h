// What the four AIE tiles of a cascade run: a 32x32 part of a 128x128 tile product, a quarter of K each.
//
// Tile (r, n, c) of an MME has rows r mod 4 of A, columns n mod 4 of B, and of K what is c mod 4. Its windows hold
// 32x32 floats in the order in which a lane brings them:
//   A  [16 pairs of rows][8 groups of k][2 rows][4 k]
//   B  [4 groups of columns][32 k][8 columns]
//   C  [4 groups of columns][32 rows][8 columns]
// so that eight neighbours are one vector. The list of ops is a run-time parameter: a print code, how many, the ops.
//
// Cost: 8 multiply-adds a cycle and tile are 4096 cycles for K = N = 128, 3.3 us at 1.25 GHz.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_AIE_KERNELS_H
#define RSN_AIE_KERNELS_H

#include <adf.h>

#include "../isa.h"

namespace rsn::mme {

constexpr unsigned window = 1024;                              // floats
constexpr unsigned parameters = xnn::Mme::longest_list + 2;    // words
// What `Kept` takes in kernels.cc, and calls. With windows and parameters a cascade needs 113 KB of its 128 KB; the
// last tile, which has three windows, borrows from its neighbours.
constexpr unsigned stack_bytes(unsigned c) { return 4 * (1024 + 128 + (c ? 8 : 512)) + 1024; }

using Operand = adf::input_async_buffer<float, adf::extents<window>>;
using Result = adf::output_async_buffer<float, adf::extents<window>>;
using Ops = const uint32 (&)[parameters];

// c = 0: begins the sums, with the bias, and hands previous-layer weights on.
void mme_first(Operand &a, Operand &b, output_cascade<accfloat> *out, Ops ops);
// c = 1, 2
void mme_middle(Operand &a, Operand &b, input_cascade<accfloat> *in, output_cascade<accfloat> *out, Ops ops);
// c = 3: has the result.
void mme_last(Operand &a, Operand &b, input_cascade<accfloat> *in, Result &c, Ops ops);

}  // namespace rsn::mme

#endif  // RSN_AIE_KERNELS_H
