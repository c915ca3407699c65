// Tensors that lie in several memory channels, on the host.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_STREAMS_CHANNELS_H
#define RSN_STREAMS_CHANNELS_H

#include <cstddef>
#include <cstring>
#include <vector>

namespace rsn {

// The bytes of a tensor, dealt out to the memory channels in which it lies: the host's side of `Shard`.
class Channels {
  public:
    Channels(const void *bytes, std::size_t size, std::size_t count) : size_(size), memories_(count) {
        for (auto &memory : memories_) memory.resize((size / (WORD * count) + 1) * WORD);
        each_word([&](std::size_t at, std::size_t length, unsigned char *word) {
            std::memcpy(word, static_cast<const unsigned char *>(bytes) + at, length);
        });
    }
    template <class T>
    T *channel(std::size_t number) {
        return reinterpret_cast<T *>(memories_[number].data());
    }
    // The bytes of the memory of one channel.
    std::size_t bytes() const { return memories_[0].size(); }
    // Puts the words together again.
    void join(void *bytes) {
        each_word([&](std::size_t at, std::size_t length, const unsigned char *word) {
            std::memcpy(static_cast<unsigned char *>(bytes) + at, word, length);
        });
    }

  private:
    static constexpr std::size_t WORD = 64;
    std::size_t size_;
    std::vector<std::vector<unsigned char>> memories_;

    template <class Body>
    void each_word(Body body) {
        const std::size_t count = memories_.size();
        for (std::size_t at = 0; at < size_; at += WORD) {
            const std::size_t length = size_ - at < WORD ? size_ - at : WORD;
            body(at, length, memories_[at / WORD % count].data() + at / WORD / count * WORD);
        }
    }
};

}  // namespace rsn

#endif  // RSN_STREAMS_CHANNELS_H
