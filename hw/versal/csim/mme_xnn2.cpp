// The op list of an MME of xnn2.
// SPDX-License-Identifier: Apache-2.0
#include "mme.h"

#include "engine.h"
#include "process.h"

namespace rsn::csim {

namespace {

using namespace xnn;

void results(Engine &engine, const Mme &op, unsigned count, unsigned many) {
    const unsigned depth = op.k64 ? tile / 2 : tile, columns = op.n64 ? tile / 2 : tile;
    for (unsigned i = 0; i < count; ++i)
        for (unsigned k = 0; k < many; ++k) engine.product({k == 0, k + 1 == many, depth, columns});
}

}  // namespace

void mme(Engine::Lanes a, Engine::Lanes b, Engine::Lanes c, const std::vector<Word> &ops) {
    Engine engine(a, b, c);
    long number = 0;
    const auto run = [&](std::size_t from, std::size_t to) {
        for (std::size_t i = from; i < to; ++i) {
            const Mme op = Mme::decode(&ops[Mme::words * i]);
            if (op.length) continue;
            RSN_UOP(number++);
            for (unsigned t = 0; t < op.times; ++t) {
                results(engine, op, op.first, op.first_depth);
                results(engine, op, op.second, op.second_depth);
            }
        }
    };
    for (std::size_t i = 0; i < ops.size() / Mme::words; ++i) {
        const Mme op = Mme::decode(&ops[Mme::words * i]);
        if (!op.length) run(i, i + 1);
        for (unsigned t = 0; op.length && t < op.times; ++t) run(i - op.length, i);
    }
}

std::string stream_of_mme(char what, unsigned mme) {
    const std::string lane = std::to_string(mme);
    return what == 'C' ? "MME" + lane + "->C" + lane : std::string("Mesh") + what + lane + "->MME" + lane;
}

void mark_weight_holder(std::vector<Word> &, bool) {}

}  // namespace rsn::csim
