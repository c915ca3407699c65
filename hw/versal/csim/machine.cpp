// SPDX-License-Identifier: Apache-2.0
#include "machine.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <utility>

#include <sched.h>
#include <unistd.h>

namespace rsn::csim {

namespace {

// Units keep their buffers on their stack.
constexpr std::size_t stack_bytes = 8u << 20;

constexpr unsigned deepest_pipeline = 64;

// A number that depends on all bits of both (splitmix64's finalizer).
std::uint64_t mixed(std::uint64_t a, std::uint64_t b) {
    std::uint64_t x = a + (b + 1) * 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

constexpr Channel::Direction opposite(Channel::Direction d) { return d == Channel::get ? Channel::put : Channel::get; }

}  // namespace

thread_local Process *Process::current = nullptr;
thread_local Machine *Machine::current = nullptr;

// -- channels

void Channel::open(const char *name, std::size_t depth) {
    machine_ = Machine::current;
    name_ = name;
    depth_ = machine_->depth(name_, depth);
    stride_ = std::max<std::uint64_t>(depth_ / 2, 1);
    if (machine_->stalls) {
        stalls_ = true;
        stride_ = 1 + mixed(machine_->stalls, std::hash<std::string>{}(name_)) % depth_;
    }
    side_[put].limit = depth_;
    Machine::Lock lock(machine_->mutex_);
    machine_->channels_.push_back(this);
}

Channel::~Channel() {
    if (!machine_) return;
    if (side_[get].listed || side_[put].listed) Process::current->tell_all();  // a stream of one process, which is here
    Machine::Lock lock(machine_->mutex_);
    auto &all = machine_->channels_;
    all.erase(std::find(all.begin(), all.end(), this));
    if (!machine_->halted_) machine_->counts_.push_back(count());
}

Count Channel::count() const { return {name_, depth_, side_[put].told, side_[get].told, last_}; }

std::uint64_t Channel::limit(Direction d) const { return side_[opposite(d)].told + (d == get ? 0 : depth_); }

std::uint64_t Channel::ask(Direction d) {
    side_[d].limit = limit(d);
    return known(d);
}

void Channel::list(Direction d) {
    side_[d].listed = true;
    Process::current->untold_.emplace_back(this, d);
}

void Channel::tell(Direction d) {
    if (d == put) last_ = Process::current->uop;
    side_[d].told = side_[d].moved;
    Side &other = side_[opposite(d)];
    if (!other.waits) return;
    Machine::Lock lock(machine_->mutex_);
    Process *sleeper = other.waits;
    if (!sleeper || !sleeper->parked_ || limit(opposite(d)) < other.wanted) return;
    other.waits = nullptr;
    sleeper->parked_ = false;
    ++machine_->running_;
    sleeper->woken_.notify_one();
}

void Channel::park(Direction d, std::uint64_t count) {
    Process &self = *Process::current;
    Side &side = side_[d];
    self.tell_all();
    Machine::Lock lock(machine_->mutex_);
    if (machine_->halted_) throw Stopped();
    side.wanted = side.moved + count;
    side.waits = &self;
    // No wake-up is lost: the other side either publishes before limit() looks, or sees `waits` when it publishes.
    if (limit(d) < side.wanted) {
        self.parked_ = true;
        self.need_ = {this, d, count};
        machine_->pause();
        self.woken_.wait(lock, [&] { return !self.parked_ || machine_->halted_; });
        side.waits = nullptr;  // first: after a halt this process may be gone before the other side tells
        if (machine_->halted_) throw Stopped();
    }
    side.waits = nullptr;
    side.limit = limit(d);
}

// -- processes

void Process::begin(long number) {
    if (machine.halted_) throw Stopped();
    tell_all();
    uop = number;
}

void Process::tell_all() {
    for (auto [channel, direction] : untold_) {
        channel->side_[direction].listed = false;
        channel->tell(direction);
    }
    untold_.clear();
}

std::uint64_t Process::random() { return random_ = mixed(random_, 0); }

void Process::pause() {
    const std::uint64_t what = random();
    if (what % 64 == 0) sched_yield();
    if (what % 97 == 0) tell_all();
    if (what % 4096 == 0) usleep(static_cast<useconds_t>(what / 4096 % 100));
}

unsigned Process::next(unsigned before, unsigned count) {
    return static_cast<unsigned>((machine.stalls ? random() : before + 1) % count);
}

void Process::enter_loop() {
    if (machine.stalls) stages_ = static_cast<unsigned>(1 + random() % deepest_pipeline);
}

void Process::leave_loop() {
    for (auto &[channel, release] : held_) release();
    held_.clear();
    stages_ = 0;
}

void wait_all(const std::vector<Need> &needs) {
    Process::current->needs_ = &needs;
    for (const auto &[channel, direction, count] : needs) channel->wait(direction, count);
    Process::current->needs_ = nullptr;
}

void wait_any(const std::vector<Channel *> &sources) {
    for (Channel *source : sources)
        if (source->ask(Channel::get)) return;
    Process &self = *Process::current;
    Machine &machine = self.machine;
    self.tell_all();
    Machine::Lock lock(machine.mutex_);
    if (machine.halted_) throw Stopped();
    bool any = false;
    for (Channel *source : sources) {
        Side &side = source->side_[Channel::get];
        side.wanted = side.moved + 1;
        side.waits = &self;
        any = any || source->limit(Channel::get) >= side.wanted;
    }
    if (!any) {
        self.parked_ = self.serves_ = true;
        machine.pause();
        self.woken_.wait(lock, [&] { return !self.parked_ || machine.halted_; });
        self.serves_ = false;
    }
    for (Channel *source : sources) source->side_[Channel::get].waits = nullptr;
    if (machine.halted_) throw Stopped();
}

void *Machine::enter(void *process) {
    Process &self = *static_cast<Process *>(process);
    Machine &machine = self.machine;
    Process::current = &self;
    Machine::current = &machine;
    try {
        self.body_();
        self.tell_all();
    } catch (const Stopped &) {
    } catch (const std::exception &e) {
        Lock lock(machine.mutex_);
        machine.fail(self.name + ": " + e.what());
    }
    self.body_ = nullptr;
    Lock lock(machine.mutex_);
    machine.leave(self);
    return nullptr;
}

Process *Machine::start(std::string name, std::function<void()> body, bool daemon) {
    Process *parent = Process::current;
    if (name.empty()) name = parent->name;
    auto process = std::make_unique<Process>(*this, std::move(name), daemon, std::move(body));
    Process *out = process.get();
    out->parent_ = parent;
    if (stalls) {
        out->random_ = mixed(stalls, std::hash<std::string>{}(out->name));
        if (parent) out->random_ = mixed(out->random_, mixed(static_cast<std::uint64_t>(parent->uop), parent->started_));
    }
    if (parent) {
        ++parent->started_;
        out->uop = parent->uop;
        parent->tell_all();  // the child may go on using its channels
    }
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, stack_bytes);
    Lock lock(mutex_);
    const int failed = pthread_create(&out->thread_, &attributes, enter, out);
    pthread_attr_destroy(&attributes);
    if (failed) {
        fail("no thread to be had for " + out->name);
        throw Stopped();
    }
    processes_.push_back(std::move(process));
    if (parent) ++parent->children_;
    ++running_;
    ++alive_;
    return out;
}

void Machine::join(const std::vector<Process *> &children) {
    Process &self = *Process::current;
    self.tell_all();
    {
        Lock lock(mutex_);
        if (self.children_) {
            self.joining_ = true;
            pause();
            self.woken_.wait(lock, [&] { return !self.joining_; });
        }
    }
    for (Process *child : children) pthread_join(child->thread_, nullptr);
    Lock lock(mutex_);
    for (Process *child : children) {
        const auto it = std::find_if(
            processes_.rbegin(), processes_.rend(), [child](const auto &other) { return other.get() == child; });
        processes_.erase(std::next(it).base());
    }
}

void Machine::leave(Process &process) {
    if (Process *parent = process.parent_; parent && !--parent->children_ && parent->joining_) {
        parent->joining_ = false;
        ++running_;
        parent->woken_.notify_one();
    }
    pause();
    if (!--alive_) ended_.notify_all();
}

// -- the run

// One process stops running. If it was the last, none can move again: the run is over.
void Machine::pause() {
    if (!--running_ && !halted_) settle();
}

void Machine::settle() {
    for (const auto &process : processes_) {
        if (!process->parked_ || process->serves_ || process->daemon) continue;
        const std::vector<Need> alone = {process->need_};
        for (const auto &[channel, direction, count] : process->needs_ ? *process->needs_ : alone)
            if (channel->limit(direction) < channel->side_[direction].moved + count)
                waits_.push_back({process->name, process->uop, direction, channel->name(), count});
        for (const auto &[channel, release] : process->held_)
            held_.push_back({process->name, process->uop, channel->name(), channel->held, process->stages_});
    }
    for (const Channel *channel : channels_) counts_.push_back(channel->count());
    halt(waits_.empty() ? State::done : State::deadlock);
}

void Machine::halt(State state) {
    if (halted_) return;
    state_ = state;
    halted_ = true;
    for (const auto &process : processes_)
        if (process->parked_) process->woken_.notify_one();
}

void Machine::fail(std::string why) {
    if (!halted_) error_ = std::move(why);
    halt(State::failed);
}

void Machine::stop() {
    Lock lock(mutex_);
    halt(State::stopped);
}

Machine::State Machine::wait(int ms) {
    Lock lock(mutex_);
    const bool ended = ended_.wait_for(lock, std::chrono::milliseconds(ms), [this] { return !alive_; });
    return ended ? state_ : State::running;
}

Machine::~Machine() {
    stop();
    Lock lock(mutex_);
    ended_.wait(lock, [this] { return !alive_; });
    lock.unlock();
    for (const auto &process : processes_)
        if (!process->parent_) pthread_join(process->thread_, nullptr);
}

std::size_t Machine::depth(const std::string &name, std::size_t own) const {
    // Keys are prefixes: "mOP FIFO" stands for all mOP FIFOs.
    for (const auto &[prefix, depth] : depths_)
        if (name.compare(0, prefix.size(), prefix) == 0) return depth;
    return own;
}

}  // namespace rsn::csim
