// What the four AIE tiles of a cascade run: a 32x32 part of a 128x128 tile product, a quarter of K each.
//
// Tile (r, n, c) of an MME has rows r mod 4 of A, columns n mod 4 of B, and of K what is c mod 4. Its windows hold
// 32x32 floats in the order in which a lane brings them:
//   A  [16 pairs of rows][8 groups of k][2 rows][4 k]
//   B  [4 groups of columns][32 k][8 columns]
//   C  [4 groups of columns][32 rows][8 columns]
// so that eight neighbours are one vector. The list of ops is a run-time parameter: a print code, how many, the ops.
// It is asynchronous: it stays from run to run until the host writes another one, before the run that is to see it.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_AIE_KERNELS_H
#define RSN_AIE_KERNELS_H

#include <adf.h>

#include "../pl/machine_isa.h"

namespace rsn::mme {

constexpr unsigned window = 1024;                            // floats
constexpr unsigned parameters = xnn::Mme::words * xnn::Mme::longest_list + 2;  // words
constexpr unsigned bias_floats = 2048 / 4;
constexpr unsigned weight_floats = 512 / 4;

// The stack of tile c of a cascade: weights of the previous layer and a vector of zeros, the bias (one vector of it but
// in the first tile), sums over k in all but the last, which keeps them in C's buffer, and references to ports; and for
// calls what a tile has by default.
constexpr unsigned stack_for_calls = 1024;
constexpr unsigned stack_bytes(unsigned c) {
    return 4 * (weight_floats + 8 + (c == 0 ? bias_floats : 8) + (c < 3 ? window : 0) + 8) + stack_for_calls;
}

// Addresses in a tile's own memory, 32 KiB in four double banks of 8 KiB. An inner loop loads from A and B in the same
// cycle, so they share no bank; and B, of which four of five loads are, is filled in another bank than it is read from.
// Parameters take what is left. `make check` adds up.
namespace memory {
constexpr int a[2] = {0x0000, 0x1000}, b[2] = {0x2000, 0x7000}, c[2] = {0x4000, 0x5000};
constexpr int stack(unsigned tile) { return tile < 3 ? 0x4000 : 0x6000; }
}  // namespace memory

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
