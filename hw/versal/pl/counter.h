// Counters of pipelined loops that start an iteration every cycle.
//
// Such a loop has one cycle from one value of its counter to the next: 3.8 ns at 260 MHz, of which HLS keeps 27 per cent
// for routing (UG1399, clock uncertainty). With 32 bits, an addition, a comparison with its result and a selection take
// all that is left; with ten bits the carries are short. HLS narrows a counter with constant bounds by itself, so those
// are plain integers. Counters with other bounds are Counters, or Countdowns where ten bits cannot say the bound.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_PL_COUNTER_H
#define RSN_PL_COUNTER_H

#include <ap_int.h>

#include <cstdint>

namespace rsn::xnn {

constexpr int counter_bits = 10;
using Counter = ap_uint<counter_bits>;

// Rounds that are left of more than ten bits can say. Whether the upper bits borrow is a comparison of the lower ten, so
// no carry runs through all bits.
template <int Bits>
class Countdown {
    static_assert(Bits > counter_bits, "a Counter is enough");

  public:
    explicit Countdown(std::uint32_t rounds) : low_(rounds & largest), high_(rounds >> counter_bits) {}

    bool more() const {
#pragma HLS INLINE
        return low_ != 0 || high_ != 0;
    }
    // The next round. Only while there are more.
    void next() {
#pragma HLS INLINE
        if (low_ == 0) {
            low_ = largest;
            --high_;
        } else {
            --low_;
        }
    }

  private:
    static constexpr std::uint32_t largest = (1u << counter_bits) - 1;

    Counter low_;
    ap_uint<Bits - counter_bits> high_;
};

}  // namespace rsn::xnn

#endif  // RSN_PL_COUNTER_H
