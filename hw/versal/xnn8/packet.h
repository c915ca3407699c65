// What the tiles and the programmable logic know of a packet of results, behind the header that the array puts in front
// of it. The header's ID tells nothing, because the compiler of the graph chooses it.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_XNN8_PACKET_H
#define RSN_XNN8_PACKET_H

namespace rsn::xnn8 {

constexpr unsigned head_words = 8;  // before the rows
// In the first of them: from which pair of the four that share a stream it is, which are every other one of a row, and
// from which of its ports. Below lies a sum of weights, which has 19 bits.
constexpr unsigned number_at = 24;
constexpr unsigned number_of(unsigned column, bool odd) { return column / 2 * 2 + odd; }

}  // namespace rsn::xnn8

#endif  // RSN_XNN8_PACKET_H
