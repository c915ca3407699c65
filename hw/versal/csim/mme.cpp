// The op list of an MME of XNN.
// SPDX-License-Identifier: Apache-2.0
#include "mme.h"

#include "engine.h"
#include "process.h"

namespace rsn::csim {

namespace {

using namespace xnn;

void run(Engine &engine, const Mme &op) {
    const bool full = op.k128;  // K = 64 has neither bias nor previous layer, and sums nothing over k
    const unsigned depth = full ? tile : tile / 2, width = op.n128 || !full ? tile : tile / 2;
    if (op.load_prev) engine.keep_weight();
    if (op.bias && full) engine.keep_bias();
    for (unsigned ai = 0; ai < op.a_iter; ++ai) {
        for (unsigned bi = 0; bi < op.b_iter; ++bi) {
            const unsigned columns = op.acc_b, tiles = op.acc_a * columns;
            const auto at = [&](unsigned t) { return (bi * columns + t % columns) * tile; };
            const auto bias = [&](unsigned t) { return op.bias && full ? at(t) : Engine::no_bias; };
            if (op.prev && full)
                for (unsigned t = 0; t < tiles; ++t) engine.scale(at(t));
            if (op.acc_k && full) {
                for (unsigned t = 0; t < tiles; ++t)
                    for (unsigned k = 0; k < op.k_iter; ++k)
                        engine.product({k == 0, k + 1 == op.k_iter, depth, width}, k ? Engine::no_bias : bias(t));
            } else {
                for (unsigned k = 0; k < op.k_iter; ++k)
                    for (unsigned t = 0; t < tiles; ++t)
                        engine.product({true, true, depth, width}, k ? Engine::no_bias : bias(t));
            }
        }
    }
}

}  // namespace

void mme(Engine::Lanes a, Engine::Lanes b, Engine::Lanes c, const std::vector<Word> &ops) {
    Engine engine(a, b, c);
    long number = 0;
    for (const Word &op : ops) {
        RSN_UOP(number++);
        run(engine, Mme::decode(&op));
    }
}

std::string stream_of_mme(char what, unsigned mme) {
    const std::string name = "MME" + std::to_string(mme);
    return what == 'C' ? name + "->MemC" + std::to_string(mme) : std::string("Mesh") + what + "->" + name;
}

void mark_weight_holder(std::vector<Word> &ops, bool holds) {
    for (Word &op : ops) Mme::bits::holds_weight::set(&op, holds);
}

}  // namespace rsn::csim
