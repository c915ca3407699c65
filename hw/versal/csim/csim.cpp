// SPDX-License-Identifier: Apache-2.0
#include "csim.h"

#include <algorithm>
#include <exception>
#include <sstream>
#include <stdexcept>

#include "../aie/graph.h"
#include "../pl/dma_hls.h"
#include "machine.h"
#include "mme.h"
#include "process.h"

namespace {

using namespace rsn;
using namespace rsn::xnn;
using csim::Machine;
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
                a[m][i].open((csim::stream_of_mme('A', m) + lane).c_str(), depth);
                b[m][i].open((csim::stream_of_mme('B', m) + lane).c_str(), depth);
                c[m][i].open((csim::stream_of_mme('C', m) + lane).c_str(), depth);
            }
        }
    }
    // By the name of its PLIO: A, B or C, the MME, and the lane.
    hls::stream<Lane> &at(const std::string &plio) {
        const std::size_t m = std::stoul(plio.substr(1, 1)), lane = std::stoul(plio.substr(3));
        return (plio[0] == 'A' ? a : plio[0] == 'B' ? b : c)[m][lane];
    }
};

// Refuses an image that would mislead the fetch and the decoders, which know packets' ends only from their headers.
void require_well_formed(const Word *image, std::uint64_t size) {
    if (size < image_words_before_packets || image[0] > size - image_words_before_packets)
        throw std::invalid_argument("the image is shorter than it says");
    std::uint64_t at = image_words_before_packets;
    const std::uint64_t end = at + image[0];
    for (Word packet = 0; packet < image[1]; ++packet) {
        if (at == end) throw std::invalid_argument("the image has fewer packets than it says");
        const Header header = Header::decode(image + at++);
        if (header.opcode >= opcodes) throw std::invalid_argument("packet with an unknown opcode");
        at += header.last ? 0 : std::uint64_t{mop_words[header.opcode]} * header.window;
        if (at > end) throw std::invalid_argument("the last packet of the image is cut short");
    }
    if (at != end) throw std::invalid_argument("the image has more words than packets");
}

// The array's parameters: every tile of an MME has its list, and the tiles that hold weights are told so.
void set_ops(mme::Engines &graph, const std::vector<Word> (&ops)[units::MME]) {
    for (unsigned m = 0; m < units::MME; ++m) {
        for (unsigned r = 0; r < mme::side; ++r)
            for (unsigned n = 0; n < mme::side; ++n)
                for (unsigned c = 0; c < mme::side; ++c) {
                    Word list[mme::parameters] = {0, static_cast<Word>(ops[m].size() / Mme::words)};
                    std::vector<Word> own = ops[m];
                    csim::mark_weight_holder(own, c == n);
                    std::copy(own.begin(), own.end(), list + 2);
                    graph.update(graph.ops[m][r][n][c], list, mme::parameters);
                }
    }
}

// Unit of a process or window of the array, which is named after a PLIO.
std::string unit_of(const std::string &name) { return name[0] == 'C' ? std::string("MME") + name[1] : name; }

bool is_plio(const std::string &name) { return name.size() > 3 && name[2] == '_' && name[1] >= '0' && name[1] <= '9'; }

std::string stream_of(const std::string &plio) {
    return csim::stream_of_mme(plio[0], static_cast<unsigned>(plio[1] - '0')) + "[" + plio.substr(3) + "]";
}

std::map<std::string, std::size_t> depths_of(const rsn_csim_program &program) {
    std::map<std::string, std::size_t> out;
    if (program.mop_fifo_depth) out["mOP FIFO"] = program.mop_fifo_depth;
    if (program.uop_fifo_depth) out["uOP FIFO"] = program.uop_fifo_depth;
    return out;
}

}  // namespace

struct rsn_csim {
    explicit rsn_csim(const rsn_csim_program &given) : program(given), machine(depths_of(given), given.stalls) {
        for (unsigned m = 0; m < units::MME; ++m)
            ops[m].assign(program.ops[m], program.ops[m] + program.op_counts[m]);
        machine.start("top", [this] { run(); });
    }

    void run() {
        require_well_formed(program.image, program.image_words);
        for (const auto &list : ops)
            if (list.size() > Mme::words * Mme::longest_list) throw std::invalid_argument("an MME has more ops than it can hold");
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
            design.start(rsn_region, [&](const std::string &plio) -> hls::stream<Lane> & { return streams.at(plio); });
        } else {
            for (unsigned m = 0; m < units::MME; ++m) {
                const std::string name = "MME" + std::to_string(m);
                rsn_region.start(name.c_str(), [this, m, &a, &b, &c] { csim::mme(a[m], b[m], c[m], ops[m]); });
            }
        }
        RSN_PROCESS("dma_hls", dma_hls, lpddr, lpddr, ddr, ddr, program.image, &fingerprint, a[0], a[1], a[2], a[3],
                    a[4], a[5], b[0], b[1], b[2], b[3], b[4], b[5], c[0], c[1], c[2], c[3], c[4], c[5]);
    }

    std::string told() const {
        std::ostringstream out;
        if (!machine.error().empty()) out << "error\t" << machine.error() << '\n';
        for (const auto &wait : machine.waits()) {
            if (wait.channel == "cascade") continue;  // a tile of an array waits for its neighbour
            const bool inside = is_plio(wait.channel);
            out << "wait\t" << (inside ? unit_of(wait.unit) : wait.unit) << '\t' << wait.uop << '\t'
                << (wait.direction == csim::Channel::get ? "get" : "put") << '\t'
                << (inside ? stream_of(wait.channel) : wait.channel) << '\t' << (inside ? wait.wanted / 2 : wait.wanted)
                << '\n';
        }
        for (const auto &held : machine.held())
            out << "held\t" << held.unit << '\t' << held.uop << '\t' << held.channel << '\t' << held.count << '\t'
                << held.stages << '\n';
        // Windows of the array continue lanes; they count floats, of which a lane element has two.
        std::map<std::string, csim::Count> streams;
        for (const auto &count : machine.counts())
            if (!is_plio(count.name) && count.name != "cascade") streams[count.name] = count;
        for (const auto &count : machine.counts()) {
            if (!is_plio(count.name)) continue;
            csim::Count &lane = streams[stream_of(count.name)];
            lane.depth = mme_depth;
            if (count.name[0] == 'C') lane.written = count.written / 2, lane.last = count.last;
            else lane.taken = std::min(lane.taken, count.taken / 2);
        }
        for (const auto &[name, count] : streams)
            out << "stream\t" << name << '\t' << count.depth << '\t' << count.written << '\t' << count.taken << '\t'
                << count.last << '\n';
        return out.str();
    }

    const rsn_csim_program program;
    std::vector<Word> ops[units::MME];
    std::string report;
    Machine machine;  // declared last: its processes end before what they use does
};

const char *rsn_csim_fingerprint(void) { return fingerprint_text; }

int rsn_csim_start(const rsn_csim_program *program, rsn_csim **run) try {
    *run = new rsn_csim(*program);
    return 0;
} catch (...) {
    return 1;
}

int rsn_csim_wait(rsn_csim *run, int milliseconds) { return static_cast<int>(run->machine.wait(milliseconds)); }

void rsn_csim_stop(rsn_csim *run) { run->machine.stop(); }

const char *rsn_csim_report(rsn_csim *run) try {
    run->report = run->told();
    return run->report.c_str();
} catch (...) {
    return "error\tno memory for a report\n";
}

void rsn_csim_free(rsn_csim *run) { delete run; }
