// The native machine: processes that are threads, channels between them, and the moment at which all of them wait.
//
// A process is parked only while the one thing it waits for is not there, and only another process can bring it. So
// when the last one that was running parks, that is a deadlock, at once and without a clock.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_CSIM_MACHINE_H
#define RSN_CSIM_MACHINE_H

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <pthread.h>

namespace rsn::csim {

class Machine;
class Process;

// Thrown out of a wait that will never end: the run is over.
struct Stopped {};

// What a channel is known to have carried: for reports, and for what is left in it at the end.
struct Count {
    std::string name;
    std::size_t depth;
    std::uint64_t written;
    std::uint64_t taken;
    long last;  // number of the uOP that wrote last
};

// One side of a channel, used by one process at a time. It moves on its own and tells the other side now and then:
// every half depth, and before its process waits, starts another, ends or begins another uOP.
struct alignas(64) Side {
    std::uint64_t moved = 0;            // elements, as this side knows
    std::uint64_t limit = 0;            // up to here it may move, as it last saw
    std::size_t at = 0;                 // in the ring
    bool listed = false;                // in the list of what its process has yet to tell
    std::atomic<std::uint64_t> told{0};
    std::atomic<Process *> waits{nullptr};
    std::uint64_t wanted = 0;  // by whoever waits: what `limit` must reach
};

// A bounded FIFO without its elements: who may move how far, and who waits.
class Channel {
  public:
    enum Direction { get, put };

    Channel() = default;
    Channel(const Channel &) = delete;
    Channel &operator=(const Channel &) = delete;
    ~Channel();

    void open(const char *name, std::size_t depth);

    const std::string &name() const { return name_; }
    std::size_t depth() const { return depth_; }
    // Elements that can be taken, or room: as far as is known without asking, then by asking.
    std::uint64_t known(Direction d) const { return side_[d].limit - side_[d].moved; }
    std::uint64_t ask(Direction d);
    // Waits until that many can be taken, or there is room for them.
    void wait(Direction d, std::uint64_t count) {
        if (known(d) < count && ask(d) < count) park(d, count);
    }
    // That many are taken, or put.
    void move(Direction d, std::uint64_t count) {
        Side &s = side_[d];
        s.moved += count;
        s.at += count;
        if (s.at >= depth_) s.at -= depth_;
        if (!s.listed) list(d);
        if (s.moved - s.told.load(std::memory_order_relaxed) >= stride_) tell(d);
    }
    std::size_t at(Direction d) const { return side_[d].at; }
    void tell(Direction d);
    Count count() const;

  private:
    friend class Machine;
    friend class Process;
    std::uint64_t limit(Direction d) const;
    void park(Direction d, std::uint64_t count);
    void list(Direction d);

    Side side_[2];
    std::string name_;
    std::size_t depth_ = 0;
    std::uint64_t stride_ = 1;
    long last_ = -1;
    Machine *machine_ = nullptr;
};

// What a process needs of one channel.
struct Need {
    Channel *channel;
    Channel::Direction direction;
    std::uint64_t count;
};

// Waits until all of these are there at once. Nothing is taken before.
void wait_all(const std::vector<Need> &needs);

// A thread of the machine. `uop` is the number that it announced last.
class Process {
  public:
    Process(Machine &machine, std::string name, bool daemon, std::function<void()> body)
        : machine(machine), name(std::move(name)), daemon(daemon), body_(std::move(body)) {}

    static thread_local Process *current;

    void begin(long uop);
    void tell_all();

    Machine &machine;
    const std::string name;
    const bool daemon;  // waits for work to the end of the run
    long uop = -1;

  private:
    friend class Machine;
    friend class Channel;
    friend void wait_all(const std::vector<Need> &needs);

    std::function<void()> body_;
    std::vector<std::pair<Channel *, Channel::Direction>> untold_;
    pthread_t thread_{};
    Process *parent_ = nullptr;
    unsigned children_ = 0;
    bool joining_ = false;  // waits for its children
    // What it is parked at, if it is.
    bool parked_ = false;
    Need need_{};
    const std::vector<Need> *needs_ = nullptr;  // that, among others
    std::condition_variable woken_;
};

// Why a process cannot go on. One that needs several things is there once for each that is missing.
struct Wait {
    std::string unit;
    long uop;
    Channel::Direction direction;
    std::string channel;
    std::uint64_t wanted;
};

// One run. Channels and processes belong to the machine on whose thread they are made.
class Machine {
  public:
    enum class State { running, done, deadlock, stopped, failed };

    explicit Machine(std::map<std::string, std::size_t> depths) : depths_(std::move(depths)) {}
    ~Machine();

    static thread_local Machine *current;

    // A process that runs `body`; without a name it does part of its starter's uOP and goes by that name.
    Process *start(std::string name, std::function<void()> body, bool daemon = false);
    // Waits until they have ended.
    void join(const std::vector<Process *> &children);
    // Until the run is over and its threads have ended, or for `ms` milliseconds: then it is `running` still.
    State wait(int ms);
    void stop();

    // Of a channel by its name: the depth to have instead of its own.
    std::size_t depth(const std::string &name, std::size_t own) const;

    // After the run.
    const std::vector<Wait> &waits() const { return waits_; }
    const std::vector<Count> &counts() const { return counts_; }
    const std::string &error() const { return error_; }

  private:
    friend class Channel;
    friend class Process;
    using Lock = std::unique_lock<std::mutex>;

    static void *enter(void *process);
    // All of these with the lock held.
    void pause();
    void settle();
    void halt(State state);
    void fail(std::string why);
    void leave(Process &process);

    mutable std::mutex mutex_;
    std::condition_variable ended_;
    State state_ = State::running;
    std::atomic<bool> halted_{false};
    unsigned running_ = 0;  // processes that neither wait nor have ended
    unsigned alive_ = 0;    // threads
    std::deque<std::unique_ptr<Process>> processes_;
    std::vector<Channel *> channels_;
    std::map<std::string, std::size_t> depths_;
    std::vector<Wait> waits_;
    std::vector<Count> counts_;
    std::string error_;
};

}  // namespace rsn::csim

#endif  // RSN_CSIM_MACHINE_H
