// A decoder on machines that run on this computer: the native counterpart of host.cpp.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_STREAMS_NATIVE_DECODER_H
#define RSN_STREAMS_NATIVE_DECODER_H

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <vector>

#include <tasks.h>

#include "decoder.h"

namespace rsn::decoder {

class NativeMachine {
  public:
    NativeMachine(const Program &program, void (*top)(csim::Memories &)) : sized_(program.sized), top_(top) {
        for (const Tensor &tensor : program.tensors) memories_.emplace_back(tensor.bytes);
        if (sized_) memories_.emplace_back(sizeof(std::int32_t));
    }
    void write(std::size_t tensor, const unsigned char *bytes) {
        std::memcpy(memories_[tensor].data(), bytes, memories_[tensor].size());
    }
    void read(std::size_t tensor, unsigned char *bytes) const {
        std::memcpy(bytes, memories_[tensor].data(), memories_[tensor].size());
    }
    void run(std::size_t length) {
        const auto rows = static_cast<std::int32_t>(length);
        if (sized_) std::memcpy(memories_.back().data(), &rows, sizeof rows);
        csim::Machine machine({});
        machine.start("top", [this] { top_(memories_); });
        csim::Machine::State state;
        while ((state = machine.wait(1000)) == csim::Machine::State::running) {
        }
        if (state != csim::Machine::State::done) throw std::runtime_error("the run has failed: " + machine.error());
    }

  private:
    bool sized_;
    csim::Memories memories_;
    void (*top_)(csim::Memories &);
};

// The arguments of the program: RESULTS MODEL.bin COUNT TOKEN... It prints the answer, and writes to the file RESULTS
// what the tensors of the machine of a step hold at the end. tops: of the machines.
inline int run_native(int count, char **arguments, const Model &model,
                      const std::vector<void (*)(csim::Memories &)> &tops) {
    if (count < 5) return 2;
    try {
        const File file(arguments[2], model.bytes);
        std::vector<int> prompt;
        for (int k = 4; k < count; ++k) prompt.push_back(std::atoi(arguments[k]));
        Decoder<NativeMachine> decoder(model, file, [&](const Program &program) {
            const auto number = static_cast<std::size_t>(&program - model.programs.data());
            return std::make_unique<NativeMachine>(program, tops[number]);
        });
        for (int token : decoder.generate(prompt, std::strtoul(arguments[3], nullptr, 10))) std::printf("%d\n", token);
        std::FILE *out = std::fopen(arguments[1], "wb");
        const Program &step = model.programs.back();
        for (std::size_t k = 0; out && k < step.tensors.size(); ++k) {
            std::vector<unsigned char> bytes(step.tensors[k].bytes);
            decoder.machine().read(k, bytes.data());
            std::fwrite(bytes.data(), 1, bytes.size(), out);
        }
        if (out) std::fclose(out);
    } catch (const std::exception &error) {
        std::fprintf(stderr, "error: %s\n", error.what());
        return 1;
    }
    return 0;
}

}  // namespace rsn::decoder

#endif  // RSN_STREAMS_NATIVE_DECODER_H
