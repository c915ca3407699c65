// An MME in one process: what its 64 AIE tiles compute, in their order of summation, so that results are the same bits.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_CSIM_ENGINE_H
#define RSN_CSIM_ENGINE_H

#include <memory>

#include "../pl/types.h"

namespace rsn::csim {

// Takes and puts tiles by 16 lanes each, two tiles deep.
class Engine {
  public:
    using Lanes = hls::stream<xnn::Lane> *;

    // Floats of a vector in a B tile.
    static constexpr unsigned vector_floats = xnn::tile * xnn::tile / 4;

    Engine(Lanes a, Lanes b, Lanes c);
    Engine(const Engine &) = delete;
    Engine &operator=(const Engine &) = delete;
    ~Engine();

    // Keeps a vector that comes as a B tile: of biases, of a previous layer's weights.
    void keep_bias();
    void keep_weight();
    // A tile of A, its columns multiplied by the kept weights from `at` on.
    void scale(unsigned at);

    // A product, or one of several that are summed. The first of a sum begins with 0, or with the kept bias from `at` on;
    // the last one puts the result. depth: of K. columns: of N; those behind are undefined.
    struct Part {
        bool first, last;
        unsigned depth, columns;
    };
    static constexpr unsigned no_bias = ~0u;
    void product(const Part &part, unsigned at = no_bias);

  private:
    struct Work;
    const Lanes a_, b_, c_;
    const std::unique_ptr<Work> work_;
};

}  // namespace rsn::csim

#endif  // RSN_CSIM_ENGINE_H
