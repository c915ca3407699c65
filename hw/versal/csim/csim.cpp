// SPDX-License-Identifier: Apache-2.0
#include "csim.h"

#include <algorithm>
#include <exception>
#include <sstream>
#include <stdexcept>

#include "../pl/machine_isa.h"
#include "machine.h"
#include "run.h"

namespace {

using namespace rsn;
using namespace rsn::xnn;
using csim::Machine;

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

std::map<std::string, std::size_t> depths_of(const rsn_csim_program &program) {
    std::map<std::string, std::size_t> out;
    if (program.mop_fifo_depth) out["mOP FIFO"] = program.mop_fifo_depth;
    if (program.uop_fifo_depth) out["uOP FIFO"] = program.uop_fifo_depth;
    return out;
}

}  // namespace

struct rsn_csim {
    explicit rsn_csim(const rsn_csim_program &given) : program(given), machine(depths_of(given), given.stalls) {
        machine.start("top", [this] { run(); });
    }

    void run() {
        require_well_formed(program.image, program.image_words);
        csim::run_machine(program);
    }

    std::string told() const {
        std::ostringstream out;
        if (!machine.error().empty()) out << "error\t" << machine.error() << '\n';
        for (const auto &wait : machine.waits()) {
            if (wait.channel == "cascade") continue;  // a tile of an array waits for its neighbour
            const csim::ArrayWindow window = csim::window_of(wait.channel);
            const bool inside = !window.stream.empty();
            out << "wait\t" << (inside ? csim::unit_of(wait.unit) : wait.unit) << '\t' << wait.uop << '\t'
                << (wait.direction == csim::Channel::get ? "get" : "put") << '\t'
                << (inside ? window.stream : wait.channel) << '\t' << (inside ? wait.wanted / 2 : wait.wanted)
                << '\n';
        }
        for (const auto &held : machine.held())
            out << "held\t" << held.unit << '\t' << held.uop << '\t' << held.channel << '\t' << held.count << '\t'
                << held.stages << '\n';
        // Windows of the array continue lanes; they count floats, of which a lane element has two.
        std::map<std::string, csim::Count> streams;
        for (const auto &count : machine.counts())
            if (csim::window_of(count.name).stream.empty() && count.name != "cascade") streams[count.name] = count;
        for (const auto &count : machine.counts()) {
            const csim::ArrayWindow window = csim::window_of(count.name);
            if (window.stream.empty()) continue;
            csim::Count &lane = streams[window.stream];
            lane.depth = window.depth;
            if (window.leaves) lane.written = count.written / 2, lane.last = count.last;
            else lane.taken = std::min(lane.taken, count.taken / 2);
        }
        for (const auto &[name, count] : streams)
            out << "stream\t" << name << '\t' << count.depth << '\t' << count.written << '\t' << count.taken << '\t'
                << count.last << '\n';
        return out.str();
    }

    const rsn_csim_program program;
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
