// Runs a decoder on a board with XRT: the layers on a machine, or on a prompt's and a step's, the rest here.
//
//     host MACHINE.xclbin MODEL.bin COUNT TOKEN...
//     host PROMPT.xclbin STEP.xclbin MODEL.bin COUNT TOKEN...
//
// prints the COUNT most probable tokens behind the prompt. Both machines may be in one file. The host keeps the caches
// while the board changes from one to the other.
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <xrt/xrt_bo.h>
#include <xrt/xrt_device.h>
#include <xrt/xrt_kernel.h>

#include "channels.h"
#include "decoder.h"
#include "model.h"

namespace {

using rsn::decoder::Program;

// A machine: a buffer for each memory channel of each tensor, on the bank of the argument that it is for.
class BoardMachine {
  public:
    BoardMachine(xrt::device device, const std::string &xclbin, const Program &program)
        : device_(device),
          program_(program),
          kernel_(device_, device_.load_xclbin(xclbin), program.kernel),
          run_(kernel_) {
        for (std::size_t k = 0; k < program_.arguments.size(); ++k) {
            const auto &of = program_.arguments[k];
            auto &buffer = buffers_[{of.tensor, of.channel}];
            const auto &tensor = program_.tensors[of.tensor];
            const int number = static_cast<int>(k);
            if (!buffer) buffer = std::make_unique<xrt::bo>(device_, size(tensor), kernel_.group_id(number));
            run_.set_arg(number, *buffer);
        }
    }

    void write(std::size_t tensor, const unsigned char *bytes) {
        const auto &of = program_.tensors[tensor];
        rsn::Channels parts(bytes, of.bytes, of.channels);
        each_buffer(tensor, [&](std::size_t channel, xrt::bo &buffer) {
            buffer.write(parts.channel<unsigned char>(channel), parts.bytes(), 0);
            buffer.sync(XCL_BO_SYNC_BO_TO_DEVICE);
        });
    }

    void read(std::size_t tensor, unsigned char *bytes) {
        const auto &of = program_.tensors[tensor];
        rsn::Channels parts(bytes, of.bytes, of.channels);
        each_buffer(tensor, [&](std::size_t channel, xrt::bo &buffer) {
            buffer.sync(XCL_BO_SYNC_BO_FROM_DEVICE);
            buffer.read(parts.channel<unsigned char>(channel), parts.bytes(), 0);
        });
        parts.join(bytes);
    }

    void run(std::size_t length) {
        if (program_.sized) run_.set_arg(static_cast<int>(program_.arguments.size()), static_cast<int>(length));
        run_.start();
        if (run_.wait() != ERT_CMD_STATE_COMPLETED) throw std::runtime_error(std::string(program_.kernel) + " failed");
    }

  private:
    static std::size_t size(const rsn::decoder::Tensor &tensor) {
        return (tensor.bytes / (64 * tensor.channels) + 1) * 64;
    }
    template <class Body>
    void each_buffer(std::size_t tensor, Body body) {
        for (auto &entry : buffers_)
            if (entry.first.first == tensor) body(entry.first.second, *entry.second);
    }

    xrt::device device_;
    const Program &program_;
    xrt::kernel kernel_;
    xrt::run run_;
    std::map<std::pair<std::size_t, std::size_t>, std::unique_ptr<xrt::bo>> buffers_;
};

}  // namespace

int main(int count, char **arguments) {
    const auto &model = rsn::decoder::model;
    const int machines = static_cast<int>(model.programs.size());
    if (count < machines + 4) {
        const char *files = machines == 1 ? "MACHINE.xclbin" : "PROMPT.xclbin STEP.xclbin";
        std::fprintf(stderr, "usage: host %s MODEL.bin COUNT TOKEN...\n", files);
        return 2;
    }
    try {
        const rsn::decoder::File file(arguments[machines + 1], model.bytes);
        std::vector<int> prompt;
        for (int k = machines + 3; k < count; ++k) prompt.push_back(std::atoi(arguments[k]));
        xrt::device device(0);
        rsn::decoder::Decoder<BoardMachine> decoder(model, file, [&](const Program &program) {
            return std::make_unique<BoardMachine>(device, arguments[1 + (&program - model.programs.data())], program);
        });
        const std::size_t tokens = std::strtoul(arguments[machines + 2], nullptr, 10);
        for (int token : decoder.generate(prompt, tokens)) std::printf("%d\n", token);
    } catch (const std::exception &error) {
        std::fprintf(stderr, "error: %s\n", error.what());
        return 1;
    }
    return 0;
}
