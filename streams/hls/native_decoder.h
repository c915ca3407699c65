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
    NativeMachine(const Program &program, void (*top)(csim::Memories &)) : top_(top) {
        for (const Tensor &tensor : program.tensors) memories_.emplace_back(tensor.bytes);
    }
    void write(std::size_t tensor, const unsigned char *bytes) {
        std::memcpy(memories_[tensor].data(), bytes, memories_[tensor].size());
    }
    void read(std::size_t tensor, unsigned char *bytes) const {
        std::memcpy(bytes, memories_[tensor].data(), memories_[tensor].size());
    }
    void run() {
        csim::Machine machine({});
        machine.start("top", [this] { top_(memories_); });
        csim::Machine::State state;
        while ((state = machine.wait(1000)) == csim::Machine::State::running) {
        }
        if (state != csim::Machine::State::done) throw std::runtime_error("the run has failed: " + machine.error());
    }

  private:
    csim::Memories memories_;
    void (*top_)(csim::Memories &);
};

// The arguments of the program: RESULTS MODEL.bin COUNT TOKEN... It prints the answer, and writes to the file RESULTS
// what the tensors of the machine of a step hold at the end.
inline int run_native(int count, char **arguments, const Model &model, void (*prompt_top)(csim::Memories &),
                      void (*step_top)(csim::Memories &)) {
    if (count < 5) return 2;
    try {
        const File file(arguments[2], model.bytes);
        std::vector<int> prompt;
        for (int k = 4; k < count; ++k) prompt.push_back(std::atoi(arguments[k]));
        Decoder<NativeMachine> decoder(model, file, [&](const Program &program) {
            return std::make_unique<NativeMachine>(program, &program == &model.step ? step_top : prompt_top);
        });
        for (int token : decoder.generate(prompt, std::strtoul(arguments[3], nullptr, 10))) std::printf("%d\n", token);
        std::FILE *out = std::fopen(arguments[1], "wb");
        for (std::size_t k = 0; out && k < model.step.tensors.size(); ++k) {
            std::vector<unsigned char> bytes(model.step.tensors[k].bytes);
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
