// The native machine: processes, which are threads, channels between them, and deadlock detection.
//
// A process parks only while a channel lacks the elements or the room that it needs, which only another process can
// provide. So when the last running process parks, that is a deadlock; it is found at once and without timeouts.
//
// With stalls, a number other than 0, processes pause at random and publish at random, and a loop of style stp
// (`StalledLoop`) holds its last outputs back for as long as it waits inside. The number decides all of that.
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

// Thrown out of a wait when the run is over.
struct Stopped {};

// How many elements a channel has carried.
struct Count {
    std::string name;
    std::size_t depth;
    std::uint64_t written;
    std::uint64_t taken;
    long last;  // number of the uOP that wrote last
};

// What a process holds back in a stalled pipeline of so many stages.
struct Held {
    std::string unit;
    long uop;
    std::string channel;
    std::size_t count;
    unsigned stages;
};

// One side of a channel, used by one process at a time. It counts alone, and publishes its count to the other side only
// now and then: every half depth, and before its process waits, starts another, ends or begins another uOP.
struct alignas(64) Side {
    std::uint64_t moved = 0;             // elements moved, exact
    std::uint64_t limit = 0;             // how far `moved` may go, when last asked
    std::size_t at = 0;                  // position in the ring
    bool listed = false;                 // whether it is in its process's list of unpublished sides
    std::atomic<std::uint64_t> told{0};  // the published value of `moved`
    std::atomic<Process *> waits{nullptr};
    std::uint64_t wanted = 0;  // what `limit` must reach for the process that waits
};

// A bounded FIFO without its elements: counts, limits and waiting processes.
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
    bool stalls() const { return stalls_; }
    // Elements that can be taken (get), or room (put). known: at least, without a look at the other side; ask: looks.
    std::uint64_t known(Direction d) const { return side_[d].limit - side_[d].moved; }
    std::uint64_t ask(Direction d);
    // Waits until `count` elements can be taken, or have room.
    void wait(Direction d, std::uint64_t count) {
        if (known(d) < count && ask(d) < count) park(d, count);
    }
    // Records that `count` elements were taken, or put.
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

    std::size_t held = 0;  // elements that its writer holds back

  private:
    friend class Machine;
    friend class Process;
    friend void wait_any(const std::vector<Channel *> &sources);
    std::uint64_t limit(Direction d) const;
    void park(Direction d, std::uint64_t count);
    void list(Direction d);

    Side side_[2];
    std::string name_;
    std::size_t depth_ = 0;
    std::uint64_t stride_ = 1;
    bool stalls_ = false;
    long last_ = -1;
    Machine *machine_ = nullptr;
};

// What a process needs of one channel.
struct Need {
    Channel *channel;
    Channel::Direction direction;
    std::uint64_t count;
};

// Waits until all needs are met at the same time; takes and puts nothing.
void wait_all(const std::vector<Need> &needs);

// Waits until one of the channels has an element. A process that waits here serves others: it is not what a deadlock is
// about, so its waits are in no report.
void wait_any(const std::vector<Channel *> &sources);

// A thread of the machine. `uop` is the number that it announced last.
class Process {
  public:
    Process(Machine &of, std::string called, bool is_daemon, std::function<void()> body)
        : machine(of), name(std::move(called)), daemon(is_daemon), body_(std::move(body)) {}

    static thread_local Process *current;

    void begin(long uop);
    void tell_all();

    // Only with stalls. pause: now and then lets others go first, or publishes.
    void pause();
    // A number below `count`: with stalls any one, otherwise that behind `before`.
    unsigned next(unsigned before, unsigned count);
    // The stages of the loop of style stp that it is in; 0 in no such loop.
    unsigned stages() const { return stages_; }
    void enter_loop();
    void leave_loop();
    // What is held back in `channel`; `release` puts it there at the end of the loop.
    void hold(Channel &channel, std::function<void()> release) { held_.emplace_back(&channel, std::move(release)); }

    Machine &machine;
    const std::string name;
    const bool daemon;  // waits for work to the end of the run
    long uop = -1;

  private:
    friend class Machine;
    friend class Channel;
    friend void wait_all(const std::vector<Need> &needs);
    friend void wait_any(const std::vector<Channel *> &sources);

    std::uint64_t random();

    std::function<void()> body_;
    std::vector<std::pair<Channel *, Channel::Direction>> untold_;
    std::vector<std::pair<Channel *, std::function<void()>>> held_;
    std::uint64_t random_ = 0;
    unsigned stages_ = 0;
    unsigned started_ = 0;  // children, so far
    pthread_t thread_{};
    Process *parent_ = nullptr;
    unsigned children_ = 0;
    bool joining_ = false;  // waits for its children
    bool parked_ = false;
    bool serves_ = false;  // parked for any of several channels
    Need need_{};                               // the need that it is parked at
    const std::vector<Need> *needs_ = nullptr;  // all needs of its wait, if it has several
    std::condition_variable woken_;
};

// A need for which a process waits at the end of the run. A process with several unmet needs has a Wait for each.
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

    // seed: 0 for a run without stalls, else what its random pauses and depths of pipelines follow from.
    explicit Machine(std::map<std::string, std::size_t> depths, std::uint64_t seed = 0)
        : stalls(seed), depths_(std::move(depths)) {}
    ~Machine();

    static thread_local Machine *current;

    const std::uint64_t stalls;

    // Starts a process that runs `body`. Without a name it does a part of its starter's uOP, under the starter's name.
    Process *start(std::string name, std::function<void()> body, bool daemon = false);
    // Waits until the children have ended.
    void join(const std::vector<Process *> &children);
    // Waits until the run is over and its threads have ended, at most `ms` milliseconds; then the state is `running`.
    State wait(int ms);
    void stop();

    // Depth of a channel, by its name: the one that the run prescribes, else `own`.
    std::size_t depth(const std::string &name, std::size_t own) const;

    // Results, valid after the run.
    const std::vector<Wait> &waits() const { return waits_; }
    const std::vector<Count> &counts() const { return counts_; }
    const std::vector<Held> &held() const { return held_; }
    const std::string &error() const { return error_; }

  private:
    friend class Channel;
    friend class Process;
    friend void wait_any(const std::vector<Channel *> &sources);
    using Lock = std::unique_lock<std::mutex>;

    static void *enter(void *process);
    // The caller holds the lock of these.
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
    std::vector<Held> held_;
    std::string error_;
};

}  // namespace rsn::csim

#endif  // RSN_CSIM_MACHINE_H
