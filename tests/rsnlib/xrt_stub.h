// What host.cpp takes of XRT, around kernels that are built for this computer: buffers with a host's and a board's side,
// kernels of the file that is loaded, and memory banks of their arguments.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_TESTS_XRT_STUB_H
#define RSN_TESTS_XRT_STUB_H

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <tasks.h>

enum xclBOSyncDirection { XCL_BO_SYNC_BO_TO_DEVICE, XCL_BO_SYNC_BO_FROM_DEVICE };
enum ert_cmd_state { ERT_CMD_STATE_COMPLETED, ERT_CMD_STATE_ERROR };

namespace xrt {

// A kernel. banks: of its arguments that are buffers. call: with these, and with the number behind them.
struct Built {
    std::string name;
    std::vector<int> banks;
    void (*call)(const std::vector<void *> &, int);
};
extern const std::vector<Built> built;

inline void require(bool holds, const char *what) {
    if (!holds) throw std::runtime_error(what);
}

// What the device has loaded: the name of a kernel, which is all that a file holds. buffers: that exist.
struct State {
    std::string loaded;
    int buffers = 0;
};

class device {
  public:
    explicit device(unsigned number) { require(number == 0, "there is one device"); }
    std::string load_xclbin(const std::string &file) {
        require(state->buffers == 0, "buffers of another file are left");
        std::ifstream in(file);
        require(static_cast<bool>(in >> state->loaded), "a file that cannot be read");
        return state->loaded;
    }
    std::shared_ptr<State> state = std::make_shared<State>();
};

class kernel {
  public:
    kernel(const device &on, const std::string &file, const std::string &name) : state(on.state) {
        for (const Built &known : built)
            if (known.name == name) of = &known;
        require(of && file == name, "the file has no such kernel");
    }
    int group_id(int argument) const { return of->banks.at(static_cast<std::size_t>(argument)); }
    std::shared_ptr<State> state;
    const Built *of = nullptr;
};

class bo {
  public:
    bo(const device &on, std::size_t size, int bank) : bank(bank), state_(on.state), host_(size, 1), board(size, 2) {
        ++state_->buffers;
    }
    ~bo() { --state_->buffers; }
    bo(const bo &) = delete;
    void write(const void *from, std::size_t size, std::size_t at) { std::memcpy(part(size, at), from, size); }
    void read(void *to, std::size_t size, std::size_t at) { std::memcpy(to, part(size, at), size); }
    void sync(xclBOSyncDirection direction) {
        if (direction == XCL_BO_SYNC_BO_TO_DEVICE)
            board = host_;
        else
            host_ = board;
    }
    const int bank;

  private:
    unsigned char *part(std::size_t size, std::size_t at) {
        require(at + size <= host_.size(), "beyond the end of a buffer");
        return host_.data() + at;
    }
    std::shared_ptr<State> state_;
    std::vector<unsigned char> host_;

  public:
    std::vector<unsigned char> board;
};

class run {
  public:
    explicit run(const kernel &of) : kernel_(of), arguments_(of.of->banks.size()) {}
    void set_arg(int number, bo &buffer) {
        require(buffer.bank == kernel_.group_id(number), "a buffer in another bank than its argument");
        arguments_.at(static_cast<std::size_t>(number)) = &buffer;
    }
    void set_arg(int number, int value) {
        require(number == static_cast<int>(arguments_.size()), "no argument that is a number");
        number_ = value;
    }
    void start() {
        require(kernel_.state->loaded == kernel_.of->name, "a kernel of a file that is no longer loaded");
        std::vector<void *> given;
        for (bo *buffer : arguments_) {
            require(buffer != nullptr, "an argument is missing");
            given.push_back(buffer->board.data());
        }
        rsn::csim::Machine machine({});
        machine.start("top", [&] { kernel_.of->call(given, number_); });
        rsn::csim::Machine::State state;
        while ((state = machine.wait(1000)) == rsn::csim::Machine::State::running) {
        }
        is_done_ = state == rsn::csim::Machine::State::done;
        // What the board's memories hold behind the last run, argument by argument.
        if (const char *path = std::getenv("XRT_STUB_MEMORY")) {
            std::ofstream out(path, std::ios::binary);
            for (bo *buffer : arguments_)
                out.write(reinterpret_cast<const char *>(buffer->board.data()),
                          static_cast<std::streamsize>(buffer->board.size()));
        }
    }
    ert_cmd_state wait() { return is_done_ ? ERT_CMD_STATE_COMPLETED : ERT_CMD_STATE_ERROR; }

  private:
    kernel kernel_;
    std::vector<bo *> arguments_;
    int number_ = 0;
    bool is_done_ = false;
};

}  // namespace xrt

#endif  // RSN_TESTS_XRT_STUB_H
