// Stands in for AMD's graph library where it is not installed: what graphs and kernels use, so that the same graph runs
// natively, a thread to each kernel. Windows are double-buffered and filled by DMAs of their own, a stream that forks
// goes on when all of its branches have room, as in the array. A merge of packets has no order: it takes any window
// that is there, and puts a header in front of it, with an ID that nobody may count on.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_CSIM_ADF_H
#define RSN_CSIM_ADF_H

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <hls_stream.h>
#include <hls_vector.h>

#include "../machine.h"

using int8 = std::int8_t;
using uint8 = std::uint8_t;
using int16 = std::int16_t;
using int32 = std::int32_t;
using uint32 = std::uint32_t;

// Tags of accumulators.
struct accfloat {};
struct acc48 {};

namespace adf {

struct input {};
struct output {};
struct cascade {};
struct pktstream {};
struct ratio {};
enum plio_type { plio_32_bits = 32, plio_64_bits = 64, plio_128_bits = 128 };

struct PLIO {};
struct buffer {};
struct stack {};

// Places in the array.
struct tile {
    tile(int of_column, int of_row) : column(of_column), row(of_row) {}
    int column, row;
};
struct shim {
    shim(int column, int channel) : column(column), channel(channel) {}
    int column, channel;
};
struct address {
    address(int column, int row, int offset) : column(column), row(row), offset(offset) {}
    int column, row, offset;
};

template <unsigned... N>
struct extents;
template <unsigned N>
struct extents<N> {
    static constexpr std::size_t size = N;
};

namespace native {

using Word = hls::vector<float, 8>;  // of a cascade

// The same, by the tag of the accumulators: 384 bit are eight sums of either kind.
template <typename Tag>
struct Cascade {
    using Word = native::Word;
};
template <>
struct Cascade<acc48> {
    using Word = hls::vector<std::int64_t, 8>;
};

constexpr std::size_t buffers = 2;
// The array's holds four words. As long as it is less than what a tile hands on, nobody can tell the difference, except
// that threads take turns less often.
constexpr std::size_t cascade_depth = 64;

// An end of a net, and what it leads on to.
struct Node {
    std::vector<Node *> next;
    std::string plio;                             // the name, of one that is a PLIO
    unsigned bits = 0;                            // of a beat of a PLIO, and
    double mhz = 0;                               // its clock, 0 for that of all
    std::vector<shim> place;                      // of a PLIO
    bool merges = false;                          // of a PLIO: its stream has packets
    std::size_t window = 0;                       // of a buffer: words of 32 bits, as floats whatever they hold
    std::size_t count = buffers;                  // of a buffer: how many it has
    std::vector<address> addresses;               // of a buffer: one for each of these
    std::shared_ptr<hls::stream<float>> buffer;   // of a buffer
    std::shared_ptr<void> cascade;                // of a cascade: a stream of its words, and
    std::shared_ptr<void> (*open_cascade)() = nullptr;  // what makes it, where it begins
    std::vector<uint32> values;                   // of a parameter
    bool asynchronous = false, written = false;   // of a parameter

    // Where it leads to: itself, if it is an end.
    void ends(std::vector<Node *> &out) {
        for (Node *node : next) node->ends(out);
        if (next.empty()) out.push_back(this);
    }
};

// An array of a kernel's source that the graph has a place for.
struct Array {
    std::size_t bytes = 0;
    std::vector<address> place;
};

struct Kernel {
    std::vector<std::unique_ptr<Node>> in, out;
    std::function<void()> run;
    std::vector<tile> place;
    std::vector<address> stack;
    std::size_t stack_bytes = 0, heap_bytes = 1024;
    std::vector<std::shared_ptr<Array>> arrays;

    Node &add(std::vector<std::unique_ptr<Node>> &to) {
        to.push_back(std::make_unique<Node>());
        return *to.back();
    }
    // Named after a stream that leaves it, or after the next one of the cascade that it belongs to.
    std::string name(const std::map<Node *, Kernel *> &owner) const {
        std::vector<Node *> ends;
        for (const auto &node : out) node->ends(ends);
        for (const Node *end : ends)
            if (!end->plio.empty()) return end->plio;
        return owner.at(ends[0])->name(owner);
    }
};

// What a graph is made of, as its constructor goes along.
struct Design {
    std::vector<std::shared_ptr<Kernel>> kernels;
    std::vector<std::shared_ptr<Node>> inputs, outputs;  // PLIOs

    static inline thread_local Design *current = nullptr;

    // A kernel of the array waits for the first value of its parameter, and a run keeps the value that it has found.
    void require_values() const {
        for (const auto &kernel : kernels)
            for (const auto &node : kernel->in)
                if (!node->values.empty() && !node->written)
                    throw std::logic_error("a kernel has a parameter without a value: update it before the run");
    }

    // Starts everything in `region`. bind: the stream of a PLIO, by name. A stream of another width than its PLIO
    // stands for both and the converter between them. runs: of each tile's kernel; negative for ever.
    template <typename Region, typename Bind>
    void start(Region &region, const Bind &bind, int runs) {
        require_values();
        std::map<Node *, Kernel *> owner;
        for (const auto &kernel : kernels)
            for (const auto &node : kernel->in) owner[node.get()] = kernel.get();
        for (const auto &plio : inputs) {
            std::vector<Node *> ends;
            plio->ends(ends);
            for (Node *node : ends) open(*node, plio->plio);
            region.start(plio->plio.c_str(), [ends, &from = bind(plio->plio)] { fill(from, ends); }, true);
        }
        std::map<Node *, std::vector<Node *>> leave;  // by PLIO
        for (const auto &kernel : kernels) {
            for (const auto &node : kernel->out) {
                std::vector<Node *> ends;
                node->ends(ends);
                if (!node->window) {
                    node->cascade = ends[0]->cascade = node->open_cascade();
                } else if (ends[0]->plio.empty()) {
                    open(*node, kernel->name(owner));
                    ends[0]->buffer = node->buffer;
                } else {
                    open(*node, ends[0]->plio);
                    leave[ends[0]].push_back(node.get());
                }
            }
        }
        for (std::size_t i = 0; i < outputs.size(); ++i) {
            Node &plio = *outputs[i];
            const std::vector<Node *> &from = leave.at(&plio);
            if (from.size() > 1 && !plio.merges) throw std::logic_error(plio.plio + " has several streams, no packets");
            region.start(plio.plio.c_str(), [from, i, merges = plio.merges, &to = bind(plio.plio)] {
                if (merges) merge(from, static_cast<unsigned>(i), to);
                else drain(*from[0], to);
            }, true);
        }
        for (const auto &kernel : kernels) {
            const auto run = [&once = kernel->run, runs] { for (int i = 0; i != runs; i += runs > 0) once(); };
            region.start(kernel->name(owner).c_str(), run, runs < 0);
        }
    }

  private:
    static void open(Node &node, const std::string &name) {
        node.buffer = std::make_shared<hls::stream<float>>();
        node.buffer->open(name.c_str(), node.count * node.window);
    }
    template <typename Beat>
    static void fill(hls::stream<Beat> &from, const std::vector<Node *> &to) {
        constexpr std::size_t each = sizeof(Beat) / sizeof(float);
        const std::size_t words = to[0]->window;
        for (;;) {
            std::vector<float *> windows;
            for (Node *node : to) windows.push_back(node->buffer->window_to_write(words));
            for (std::size_t i = 0; i < words; i += each) {
                const Beat beat = from.read();
                std::memcpy(windows[0] + i, &beat, sizeof beat);
            }
            for (float *window : windows)
                if (window != windows[0]) std::memcpy(window, windows[0], words * sizeof(float));
            for (Node *node : to) node->buffer->written(words);
        }
    }
    template <typename Beat>
    static void put(const float *words, std::size_t count, hls::stream<Beat> &to) {
        constexpr std::size_t each = sizeof(Beat) / sizeof(float);
        for (std::size_t i = 0; i < count; i += each) {
            Beat beat = {};
            std::memcpy(static_cast<void *>(&beat), words + i, std::min(each, count - i) * sizeof(float));
            to.write(beat);
        }
    }
    template <typename Beat>
    static void drain(Node &from, hls::stream<Beat> &to) {
        for (;;) {
            put(from.buffer->window_to_read(from.window), from.window, to);
            from.buffer->taken(from.window);
        }
    }
    // plio: its number, so that IDs are others in each.
    template <typename Beat>
    static void merge(const std::vector<Node *> &from, unsigned plio, hls::stream<Beat> &to) {
        const unsigned count = static_cast<unsigned>(from.size());
        std::vector<rsn::csim::Channel *> all;
        for (Node *node : from) all.push_back(&node->buffer->channel());
        for (unsigned next = 0;; next = rsn::csim::Process::current->next(next, count)) {
            rsn::csim::wait_any(all);
            Node &node = *from[next];
            if (!all[next]->ask(rsn::csim::Channel::get)) continue;
            const std::uint32_t header = header_of((plio + count - 1 - next) % count, node.addresses);
            std::vector<float> packet(1 + node.window);
            std::memcpy(packet.data(), &header, sizeof header);
            std::memcpy(&packet[1], node.buffer->window_to_read(node.window), node.window * sizeof(float));
            node.buffer->taken(node.window);
            put(packet.data(), packet.size(), to);
        }
    }
    // ID, row and column of the tile whose DMA sends, and odd parity (UG1079, "Packet Stream Operations").
    static std::uint32_t header_of(unsigned id, const std::vector<address> &at) {
        const auto row = static_cast<unsigned>(at.at(0).row), column = static_cast<unsigned>(at.at(0).column);
        const std::uint32_t header = id | row << 16 | column << 21;
        return header | (__builtin_parity(header) ? 0 : 1u << 31);
    }
};

}  // namespace native

// -- what a kernel sees

template <typename T, typename Extents>
struct input_async_buffer {
    static constexpr std::size_t floats = Extents::size * sizeof(T) / sizeof(float);

    native::Node &node;
    const T *at = nullptr;

    void acquire() { at = reinterpret_cast<const T *>(node.buffer->window_to_read(floats)); }
    void release() { node.buffer->taken(floats); }
    const T *data() const { return at; }
};

template <typename T, typename Extents>
struct output_async_buffer {
    static constexpr std::size_t floats = Extents::size * sizeof(T) / sizeof(float);

    native::Node &node;
    T *at = nullptr;

    void acquire() { at = reinterpret_cast<T *>(node.buffer->window_to_write(floats)); }
    void release() { node.buffer->written(floats); }
    T *data() { return at; }
};

}  // namespace adf

template <typename T>
struct input_cascade {
    hls::stream<typename adf::native::Cascade<T>::Word> *stream;
};

template <typename T>
struct output_cascade {
    hls::stream<typename adf::native::Cascade<T>::Word> *stream;
};

namespace adf {

namespace native {

// An argument of a kernel function: its node, and how the function gets to see it.
template <typename T>
struct Argument;

template <typename T, typename E>
struct Argument<input_async_buffer<T, E> &> {
    Node &node;
    input_async_buffer<T, E> value{node};
    explicit Argument(Kernel &kernel) : node(kernel.add(kernel.in)) { node.window = value.floats; }
    input_async_buffer<T, E> &get() { return value; }
};

template <typename T, typename E>
struct Argument<output_async_buffer<T, E> &> {
    Node &node;
    output_async_buffer<T, E> value{node};
    explicit Argument(Kernel &kernel) : node(kernel.add(kernel.out)) { node.window = value.floats; }
    output_async_buffer<T, E> &get() { return value; }
};

template <typename T>
struct Argument<input_cascade<T> *> {
    Node &node;
    input_cascade<T> value{};
    explicit Argument(Kernel &kernel) : node(kernel.add(kernel.in)) {}
    input_cascade<T> *get() {
        value.stream = static_cast<decltype(value.stream)>(node.cascade.get());
        return &value;
    }
};

template <typename T>
struct Argument<output_cascade<T> *> {
    Node &node;
    output_cascade<T> value{};
    explicit Argument(Kernel &kernel) : node(kernel.add(kernel.out)) {
        node.open_cascade = []() -> std::shared_ptr<void> {
            auto made = std::make_shared<hls::stream<typename Cascade<T>::Word>>();
            made->open("cascade", cascade_depth);
            return made;
        };
    }
    output_cascade<T> *get() {
        value.stream = static_cast<decltype(value.stream)>(node.cascade.get());
        return &value;
    }
};

template <std::size_t N>
struct Argument<const uint32 (&)[N]> {
    Node &node;
    explicit Argument(Kernel &kernel) : node(kernel.add(kernel.in)) { node.values.resize(N); }
    const uint32 (&get())[N] { return *reinterpret_cast<const uint32(*)[N]>(node.values.data()); }
};

}  // namespace native

// -- what a graph is written with

template <typename Direction>
class port {
  public:
    native::Node &node() const { return *node_; }
    const std::shared_ptr<native::Node> &shared() const { return node_; }

  private:
    std::shared_ptr<native::Node> node_ = std::make_shared<native::Node>();
};
using input_port = port<input>;
using output_port = port<output>;

class kernel {
  public:
    // Its ports: in[i] and out[i].
    struct Ends {
        const std::vector<std::unique_ptr<native::Node>> *nodes = nullptr;
        struct End {
            native::Node *at;
            native::Node &node() const { return *at; }
        };
        End operator[](std::size_t i) const { return {nodes->at(i).get()}; }
    };
    Ends in, out;
    std::shared_ptr<native::Kernel> made;

    template <typename... Args>
    static kernel create(void (*function)(Args...)) {
        auto made = std::make_shared<native::Kernel>();
        auto arguments = std::make_shared<Arguments<Args...>>(*made);
        made->run = [function, arguments] { arguments->call(function); };
        native::Design::current->kernels.push_back(made);
        kernel out;
        out.in.nodes = &made->in;
        out.out.nodes = &made->out;
        out.made = made;
        return out;
    }

  private:
    // One after the other, so that ports are numbered from the left.
    template <typename... Args>
    struct Arguments {
        explicit Arguments(native::Kernel &) {}
        template <typename F, typename... Got>
        void call(F function, Got &&...got) {
            function(std::forward<Got>(got)...);
        }
    };
    template <typename First, typename... Rest>
    struct Arguments<First, Rest...> {
        native::Argument<First> first;
        Arguments<Rest...> rest;
        explicit Arguments(native::Kernel &kernel) : first(kernel), rest(kernel) {}
        template <typename F, typename... Got>
        void call(F function, Got &&...got) {
            rest.call(function, std::forward<Got>(got)..., static_cast<First>(first.get()));
        }
    };
};

template <typename Direction>
class plio {
  public:
    port<Direction> in[1], out[1];

    static plio create(const std::string &name, plio_type type, const std::string & = "", double mhz = 0) {
        plio made;
        constexpr bool inwards = std::is_same_v<Direction, input>;
        auto &design = *native::Design::current;
        const auto &node = (inwards ? made.out : made.in)[0].shared();
        node->plio = name;
        node->bits = type;
        node->mhz = mhz;
        (inwards ? design.inputs : design.outputs).push_back(node);
        return made;
    }

    native::Node &end() const { return (std::is_same_v<Direction, input> ? out : in)[0].node(); }
};
using input_plio = plio<input>;
using output_plio = plio<output>;

// Makes one stream of packets of N, in any order, each with a header.
template <unsigned N>
class pktmerge {
    static_assert(N >= 1 && N <= 32, "an ID has five bits");

  public:
    port<input> in[N];
    port<output> out[1];

    static pktmerge create() {
        pktmerge made;
        for (const auto &one : made.in) one.node().next.push_back(&made.out[0].node());
        return made;
    }
};

// An array of a kernel's source, which is single and the kernel's own; as a type, what a host updates.
class parameter {
  public:
    std::shared_ptr<native::Array> made;

    template <typename T, std::size_t N>
    static parameter array(T (&)[N]) {
        parameter out;
        out.made = std::make_shared<native::Array>();
        out.made->bytes = N * sizeof(T);
        return out;
    }
};

template <typename Kind = void, typename From, typename To>
void connect(const From &from, const To &to) {
    from.node().next.push_back(&to.node());
    if constexpr (std::is_same_v<Kind, pktstream>) to.node().merges = true;
}
template <typename Kind = void>
void connect(const parameter &array, kernel &to) {
    to.made->arrays.push_back(array.made);
}

// Of both ends of a connection that is a buffer, in place of two.
template <typename End>
void single_buffer(const End &end) {
    end.node().count = 1;
}

// A parameter that keeps its value from run to run, until it is updated.
template <typename End>
const End &async(const End &end) {
    end.node().asynchronous = true;
    return end;
}

// For AMD's tools alone.
struct Ignored {
    template <typename T>
    void operator=(const T &) const {}
};
inline Ignored source(kernel &) { return {}; }
template <typename Kind>
Ignored runtime(kernel &) {
    return {};
}

inline std::size_t &stack_size(kernel &of) { return of.made->stack_bytes; }
inline std::size_t &heap_size(kernel &of) { return of.made->heap_bytes; }

// Where something lies: the places that are assigned to it are kept.
template <typename Place>
struct Located {
    std::vector<Place> &at;
    void operator=(const Place &place) { at = {place}; }
    void operator=(std::initializer_list<Place> places) { at = places; }
};
template <typename Kind>
auto location(kernel &of) {
    static_assert(std::is_same_v<Kind, kernel> || std::is_same_v<Kind, stack>);
    if constexpr (std::is_same_v<Kind, kernel>) return Located<tile>{of.made->place};
    else return Located<address>{of.made->stack};
}
template <typename Kind, typename Direction>
Located<shim> location(plio<Direction> &of) {
    static_assert(std::is_same_v<Kind, PLIO>);
    return {of.end().place};
}
template <typename Kind>
Located<address> location(parameter &of) {
    static_assert(std::is_same_v<Kind, parameter>);
    return {of.made->place};
}
template <typename Kind>
Located<address> location(const kernel::Ends::End &of) {
    static_assert(std::is_same_v<Kind, buffer>);
    return {of.node().addresses};
}

class graph {
  public:
    // An array parameter. Natively before the start: a run takes the value that it finds.
    void update(const input_port &to, const uint32 *values, std::size_t count) {
        std::vector<native::Node *> ends;
        to.node().ends(ends);
        for (native::Node *end : ends) {
            end->values.assign(values, values + count);
            end->written = true;
        }
    }
};

}  // namespace adf

#endif  // RSN_CSIM_ADF_H
