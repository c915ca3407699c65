// Stands in for AMD's header of this name where it is not installed: a stream that is as deep as it says, whose reader
// and writer wait. AMD's own C simulation never blocks a writer, and so hides deadlocks.
//
// One process reads, one writes; both may change as long as the old one has ended.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_CSIM_HLS_STREAM_H
#define RSN_CSIM_HLS_STREAM_H

#include <memory>
#include <vector>

#include "../machine.h"

namespace hls {

template <typename T, int DEPTH = 0>
class stream;

template <typename T>
class stream<T, 0> {
  public:
    stream() = default;
    explicit stream(const char *name) { open(name, 2); }

    T read() {
        pause();
        channel_.wait(Get, 1);
        T value = ring_[channel_.at(Get)];
        channel_.move(Get, 1);
        return value;
    }
    void read(T &value) { value = read(); }
    void write(const T &value) {
        if (channel_.stalls()) put_later(value);
        else put(value);
    }
    stream &operator>>(T &value) {
        value = read();
        return *this;
    }
    stream &operator<<(const T &value) {
        write(value);
        return *this;
    }
    // For a single look. Polling would hide a deadlock, because the process never counts as waiting.
    bool empty() { return !channel_.ask(Get); }
    bool full() { return !channel_.ask(Put); }

    // Additions to AMD's interface: name and depth for a stream of an array, and windows. A window of `count` elements
    // is contiguous if the depth is a multiple of `count` and this end of the stream uses only such windows.
    void open(const char *name, std::size_t depth) {
        channel_.open(name, depth);
        ring_ = std::make_unique<T[]>(channel_.depth());
    }
    T *window_to_read(std::size_t count) {
        pause();
        channel_.wait(Get, count);
        return &ring_[channel_.at(Get)];
    }
    void taken(std::size_t count) { channel_.move(Get, count); }
    T *window_to_write(std::size_t count) {
        pause();
        channel_.wait(Put, count);
        return &ring_[channel_.at(Put)];
    }
    void written(std::size_t count) { channel_.move(Put, count); }
    rsn::csim::Channel &channel() { return channel_; }

  private:
    static constexpr auto Get = rsn::csim::Channel::get;
    static constexpr auto Put = rsn::csim::Channel::put;

    void pause() {
        if (channel_.stalls()) rsn::csim::Process::current->pause();
    }
    [[gnu::always_inline]] void put(const T &value) {
        channel_.wait(Put, 1);
        ring_[channel_.at(Put)] = value;
        channel_.move(Put, 1);
    }
    // In a pipeline that stalls, an element leaves when as many behind it have been written as there are stages: a
    // loop writes at most one a round. Kept out of `write`, which is on the way of every word of a plain run.
    [[gnu::noinline, gnu::cold]] void put_later(const T &value) {
        rsn::csim::Process &process = *rsn::csim::Process::current;
        process.pause();
        if (!process.stages()) return put(value);
        if (held_.empty()) process.hold(channel_, [this] { release(0); });
        held_.push_back(value);
        release(process.stages());
    }
    void release(std::size_t keep) {
        while (held_.size() > keep) {
            channel_.held = held_.size() - 1;
            put(held_.front());
            held_.erase(held_.begin());
        }
        channel_.held = held_.size();
    }

    std::unique_ptr<T[]> ring_;
    std::vector<T> held_;
    rsn::csim::Channel channel_;
};

template <typename T, int DEPTH>
class stream : public stream<T, 0> {
  public:
    stream() { this->open("", DEPTH); }
    explicit stream(const char *name) { this->open(name, DEPTH); }
};

}  // namespace hls

#endif  // RSN_CSIM_HLS_STREAM_H
