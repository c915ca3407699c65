// The graph under the name by which hosts know it. It has no parameters: a host lets it run for ever, `G.run(-1)`, and
// programs come and go, because tiles wait for chunks and keep nothing between them.
// SPDX-License-Identifier: Apache-2.0
#include "graph.h"

rsn::xnn8::Engines G;

#if defined(__AIESIM__) || defined(__X86SIM__)

// Whether the graph can be built and placed: no chunk comes.
int main() {
    G.init();
    G.end();
    return 0;
}

#endif
