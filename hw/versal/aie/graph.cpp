// The graph under the name by which hosts know it: its parameters are `G.FG[mme][row][column].k<c>.in[2 or 3]`.
// SPDX-License-Identifier: Apache-2.0
#include "graph.h"

rsn::mme::Engines G;

#if defined(__AIESIM__) || defined(__X86SIM__)

// A run of no ops: whether the graph can be built and placed.
int main() {
    static const uint32 none[rsn::mme::parameters] = {};
    G.init();
    for (auto &mme : G.ops)
        for (auto &row : mme)
            for (auto &column : row)
                for (auto &tile : column) G.update(tile, none, rsn::mme::parameters);
    G.run(1);  // the parameters are asynchronous: before the run
    G.wait();
    G.end();
    return 0;
}

#endif
