// Machines of MMEs: a thread to each MME, or the AIE graph.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <stdexcept>

#include "../aie/graph.h"
#include "../pl/dma_hls.h"
#include "mme.h"
#include "process.h"
#include "run.h"

namespace rsn::csim {

namespace {

using namespace xnn;
using Lanes = hls::stream<Lane>[xnn::lanes];

static_assert(RSN_CSIM_MMES == units::MME, "as many op lists as MMEs");

// The buffers of an MME hold two tiles of each operand and result, and a tile leaves when it has been used; here they
// are FIFOs, two tiles deep. In the array they are windows behind lanes, and lanes hold a quarter tile. That cannot
// complete a tile, so it changes no deadlock; it only makes threads take turns less often.
constexpr std::size_t mme_depth = 2 * beats_per_tile;
constexpr std::size_t lane_depth = beats_per_tile / 4;

struct Streams {
    Lanes a[units::MME], b[units::MME], c[units::MME];

    explicit Streams(std::size_t depth) {
        for (unsigned m = 0; m < units::MME; ++m) {
            for (unsigned i = 0; i < xnn::lanes; ++i) {
                const std::string lane = "[" + std::to_string(i) + "]";
                a[m][i].open((stream_of_mme('A', m) + lane).c_str(), depth);
                b[m][i].open((stream_of_mme('B', m) + lane).c_str(), depth);
                c[m][i].open((stream_of_mme('C', m) + lane).c_str(), depth);
            }
        }
    }
    // By the name of its PLIO: A, B or C, the MME, and the lane.
    hls::stream<Lane> &at(const std::string &plio) {
        const std::size_t m = std::stoul(plio.substr(1, 1)), lane = std::stoul(plio.substr(3));
        return (plio[0] == 'A' ? a : plio[0] == 'B' ? b : c)[m][lane];
    }
};

// The array's parameters: every tile of an MME has its list, and the tiles that hold weights are told so.
void set_ops(mme::Engines &graph, const std::vector<Word> (&ops)[units::MME]) {
    for (unsigned m = 0; m < units::MME; ++m) {
        for (unsigned r = 0; r < mme::side; ++r)
            for (unsigned n = 0; n < mme::side; ++n)
                for (unsigned c = 0; c < mme::side; ++c) {
                    Word list[mme::parameters] = {0, static_cast<Word>(ops[m].size() / Mme::words)};
                    std::vector<Word> own = ops[m];
                    mark_weight_holder(own, c == n);
                    std::copy(own.begin(), own.end(), list + 2);
                    graph.update(graph.ops[m][r][n][c], list, mme::parameters);
                }
    }
}

bool is_plio(const std::string &name) { return name.size() > 3 && name[2] == '_' && name[1] >= '0' && name[1] <= '9'; }

std::string stream_of(const std::string &plio) {
    return stream_of_mme(plio[0], static_cast<unsigned>(plio[1] - '0')) + "[" + plio.substr(3) + "]";
}

}  // namespace

// A process or window of the array is named after a PLIO.
std::string unit_of(const std::string &name) { return name[0] == 'C' ? std::string("MME") + name[1] : name; }

ArrayWindow window_of(const std::string &name) {
    if (!is_plio(name)) return {};
    return {stream_of(name), mme_depth, name[0] == 'C'};
}

void run_machine(const rsn_csim_program &program) {
    std::vector<Word> ops[units::MME];
    for (unsigned m = 0; m < units::MME; ++m) {
        ops[m].assign(program.ops[m], program.ops[m] + program.op_counts[m]);
        if (ops[m].size() > Mme::words * Mme::longest_list)
            throw std::invalid_argument("an MME has more ops than it can hold");
    }
    const auto port = [](float *memory, std::uint64_t floats) {
        return Port(reinterpret_cast<Line *>(memory), floats / line_floats);
    };
    const Port ddr = port(program.ddr, program.ddr_floats), lpddr = port(program.lpddr, program.lpddr_floats);
    std::uint64_t fingerprint = 0;
    Streams streams(program.array ? lane_depth : mme_depth);
    auto &a = streams.a, &b = streams.b, &c = streams.c;
    adf::native::Design design;
    adf::native::Design::current = &design;
    std::unique_ptr<mme::Engines> graph;
    RSN_DATAFLOW();
    if (program.array) {
        graph = std::make_unique<mme::Engines>();
        set_ops(*graph, ops);
        design.start(rsn_region, [&](const std::string &plio) -> hls::stream<Lane> & { return streams.at(plio); }, 1);
    } else {
        for (unsigned m = 0; m < units::MME; ++m) {
            const std::string name = "MME" + std::to_string(m);
            rsn_region.start(name.c_str(), [m, &a, &b, &c, &ops] { mme(a[m], b[m], c[m], ops[m]); });
        }
    }
    RSN_PROCESS("dma_hls", dma_hls, lpddr, lpddr, ddr, ddr, program.image, &fingerprint, a[0], a[1], a[2], a[3],
                a[4], a[5], b[0], b[1], b[2], b[3], b[4], b[5], c[0], c[1], c[2], c[3], c[4], c[5]);
}

}  // namespace rsn::csim
