// What pl/dataflow.h means natively: a process is a thread, a region ends when its processes have.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_CSIM_PROCESS_H
#define RSN_CSIM_PROCESS_H

#include <cstring>
#include <exception>
#include <memory>

#include <hls_stream.h>

#include "machine.h"

namespace rsn::csim {

class Region {
  public:
    Region() = default;
    Region(const Region &) = delete;
    Region &operator=(const Region &) = delete;
    ~Region() { Machine::current->join(processes_); }

    void start(const char *name, std::function<void()> body, bool daemon = false) {
        processes_.push_back(Machine::current->start(name, std::move(body), daemon));
    }

  private:
    std::vector<Process *> processes_;
};

// A pipelined loop of style stp: it moves only as a whole, so while it waits, nothing leaves it.
class StalledLoop {
  public:
    StalledLoop() { Process::current->enter_loop(); }
    StalledLoop(const StalledLoop &) = delete;
    StalledLoop &operator=(const StalledLoop &) = delete;
    // At its end the pipeline empties, unless the run ends: then `Stopped` is on its way through here, or comes from here.
    ~StalledLoop() noexcept(false) {
        if (std::uncaught_exceptions() == before_) Process::current->leave_loop();
    }

  private:
    const int before_ = std::uncaught_exceptions();
};

template <typename... Streams>
void wait_for_any(Streams &...streams) {
    wait_any({&streams.channel()...});
}

template <typename T>
void open_all(hls::stream<T> &stream, const char *name, std::size_t depth) {
    stream.open(name, depth);
}
template <typename Streams, std::size_t N>
void open_all(Streams (&streams)[N], const char *name, std::size_t depth) {
    for (auto &of : streams) open_all(of, name, depth);
}

// A memory without an owner in the sources. It begins as NaN, so that reading what nobody has written shows.
template <typename T>
struct Memory {
    T value;

    Memory() { std::memset(static_cast<void *>(&value), 0xFF, sizeof value); }
};

}  // namespace rsn::csim

// A guard: what its processes use is declared before it, so that it outlives them.
#define RSN_DATAFLOW() rsn::csim::Region rsn_region
#define RSN_PROCESS(name, function, ...) rsn_region.start(name, [&] { function(__VA_ARGS__); })
#define RSN_OPEN(streams, name, depth) rsn::csim::open_all(streams, name, depth)
#define RSN_MEMORY(type, name)                                         \
    const auto rsn_##name = std::make_unique<rsn::csim::Memory<type>>(); \
    auto &name = rsn_##name->value
#define RSN_WAIT_FOR_ANY(...) rsn::csim::wait_for_any(__VA_ARGS__)
#define RSN_STALLS() const rsn::csim::StalledLoop rsn_stalled_loop
#define RSN_UOP(number) rsn::csim::Process::current->begin(number)

#endif  // RSN_CSIM_PROCESS_H
