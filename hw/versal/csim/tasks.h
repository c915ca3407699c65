// Runs generated dataflow regions on this computer: every process a thread, every stream as deep as it says.
//
// The program reads its memories from stdin and writes them to stdout: of each a count of bytes (64 bits) and the bytes.
// Behind them come the bits that data() draws, a byte each, and sizes, of 32 bits each, as further memories, which are
// not written. Its exit code is 0 for a complete run, 1 for a deadlock, 2 for a failure; stderr then tells more, in lines of fields with tabs.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_CSIM_TASKS_H
#define RSN_CSIM_TASKS_H

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "machine.h"

namespace rsn::csim {

using Bytes = std::vector<unsigned char>;
using Memories = std::vector<Bytes>;

// A region. tensors: how many of the memories are written back.
struct TaskRegion {
    void (*run)(Memories &memories);
    std::size_t tensors;
};

inline bool read_memory(Bytes &out) {
    std::uint64_t size;
    if (std::fread(&size, sizeof size, 1, stdin) != 1) return false;
    out.resize(size + 1);  // never empty, so that it has an address
    const bool whole = std::fread(out.data(), 1, size, stdin) == size;
    out.resize(size);
    return whole;
}

// A size that the run gives.
inline std::int32_t number(const Bytes &memory) {
    std::int32_t value = 0;
    std::memcpy(&value, memory.data(), sizeof value);
    return value;
}

// The arguments of the program are the number of the region.
template <std::size_t N>
int run_region(int count, char **arguments, const TaskRegion (&regions)[N]) {
    const std::size_t number = count > 1 ? std::strtoul(arguments[1], nullptr, 10) : 0;
    if (number >= N) return 2;
    Memories memories;
    for (Bytes memory; read_memory(memory);) memories.push_back(std::move(memory));
    Machine machine({});
    machine.start("top", [&] { regions[number].run(memories); });
    Machine::State state;
    while ((state = machine.wait(1000)) == Machine::State::running) {
    }
    if (!machine.error().empty()) std::fprintf(stderr, "error\t%s\n", machine.error().c_str());
    for (const auto &wait : machine.waits())
        std::fprintf(stderr, "wait\t%s\t%ld\t%s\t%s\n", wait.unit.c_str(), wait.uop,
                     wait.direction == Channel::get ? "get" : "put", wait.channel.c_str());
    for (const auto &stream : machine.counts())
        std::fprintf(stderr, "stream\t%s\t%llu\t%llu\t%llu\n", stream.name.c_str(),
                     static_cast<unsigned long long>(stream.depth), static_cast<unsigned long long>(stream.written),
                     static_cast<unsigned long long>(stream.taken));
    if (state != Machine::State::done) return state == Machine::State::deadlock ? 1 : 2;
    for (std::size_t k = 0; k < regions[number].tensors; ++k) {
        const std::uint64_t size = memories[k].size();
        std::fwrite(&size, sizeof size, 1, stdout);
        std::fwrite(memories[k].data(), 1, size, stdout);
    }
    return 0;
}

}  // namespace rsn::csim

#endif  // RSN_CSIM_TASKS_H
