// The machine of xnn8: the kernel, and the AIE graph with a thread for each of its 384 tiles.
// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "../xnn8/dma_hls.h"
#include "../xnn8/graph.h"
#include "process.h"
#include "run.h"

namespace rsn::csim {

using namespace xnn8;

// No array of xnn8 has a part in reports: what waits is told by the processes of the kernel.
std::string unit_of(const std::string &name) { return name; }
ArrayWindow window_of(const std::string &) { return {}; }

void run_machine(const rsn_csim_program &program) {
    const auto port = [](float *memory, std::uint64_t floats) {
        return pl::MemoryPort(reinterpret_cast<pl::Shorts *>(memory), floats / 8);
    };
    const pl::MemoryPort ddr = port(program.ddr, program.ddr_floats), lpddr = port(program.lpddr, program.lpddr_floats);
    std::uint64_t fingerprint = 0;
    hls::stream<pl::Beat128> a[engines][lanes][tiles], b[engines][pairs][tiles], c[engines][lanes][2];
    open_all(a, "A", 8);
    open_all(b, "B", 8);
    open_all(c, "C", 8);
    // By the name of its PLIO: operand, engine, lane or column of pairs, tile.
    const auto bind = [&](const std::string &plio) -> hls::stream<pl::Beat128> & {
        const auto number = [&](std::size_t at) { return static_cast<unsigned>(plio.at(at) - '0'); };
        return (plio[0] == 'A' ? a : plio[0] == 'B' ? b : c)[number(1)][number(3)][number(5)];
    };
    adf::native::Design design;
    adf::native::Design::current = &design;
    const auto graph = std::make_unique<Engines>();
    RSN_DATAFLOW();
    design.start(rsn_region, bind, -1);
    RSN_PROCESS("dma_hls", pl::dma_hls, lpddr, lpddr, lpddr, lpddr, ddr, ddr, ddr, ddr, program.image, &fingerprint,
                a[0], a[1], a[2], b[0], b[1], b[2], c[0], c[1], c[2]);
}

}  // namespace rsn::csim
