// What graph.h calls, as every control program has it: `run`, which its file defines before, from each place in a cascade.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_AIE_ENTRIES_H
#define RSN_AIE_ENTRIES_H

#include "products.h"

namespace rsn::mme {

void mme_first(Operand &a, Operand &b, output_cascade<accfloat> *out, Ops ops) {
    First place(out);
    run(place, a, b, ops);
}

void mme_middle(Operand &a, Operand &b, input_cascade<accfloat> *in, output_cascade<accfloat> *out, Ops ops) {
    Middle place(in, out);
    run(place, a, b, ops);
}

void mme_last(Operand &a, Operand &b, input_cascade<accfloat> *in, Result &c, Ops ops) {
    Last place(in, c);
    run(place, a, b, ops);
}

}  // namespace rsn::mme

#endif  // RSN_AIE_ENTRIES_H
