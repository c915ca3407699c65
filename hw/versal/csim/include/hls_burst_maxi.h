// Stands in for AMD's header of this name where it is not installed: an AXI port whose bursts are asked for by hand.
// A burst beyond the memory ends the run.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_CSIM_HLS_BURST_MAXI_H
#define RSN_CSIM_HLS_BURST_MAXI_H

#include <cstddef>
#include <deque>
#include <stdexcept>
#include <string>

namespace hls {

template <typename T>
class burst_maxi {
  public:
    // Beyond AMD's: how many elements the memory has.
    burst_maxi(T *memory, std::size_t size) : memory_(memory), size_(size) {}

    void read_request(std::size_t offset, std::size_t length) { reads_.push_back(burst(offset, length, "reads")); }
    T read() { return memory_[next(reads_)]; }
    void write_request(std::size_t offset, std::size_t length) { writes_.push_back(burst(offset, length, "writes")); }
    void write(const T &value) { memory_[next(writes_)] = value; }
    void write_response() {}

  private:
    static constexpr std::size_t floats = sizeof(T) / sizeof(float);

    struct Burst {
        std::size_t at, end;
    };

    Burst burst(std::size_t offset, std::size_t length, const char *what) const {
        if (offset > size_ || length > size_ - offset)
            throw std::out_of_range(
                std::string(what) + " " + std::to_string(length * floats) + " elements at " +
                std::to_string(offset * floats) + ", beyond its " + std::to_string(size_ * floats));
        return {offset, offset + length};
    }
    static std::size_t next(std::deque<Burst> &bursts) {
        if (bursts.empty()) throw std::logic_error("moves a line that no burst asked for");
        const std::size_t at = bursts.front().at++;
        if (bursts.front().at == bursts.front().end) bursts.pop_front();
        return at;
    }

    T *memory_;
    std::size_t size_;
    std::deque<Burst> reads_, writes_;
};

}  // namespace hls

#endif  // RSN_CSIM_HLS_BURST_MAXI_H
