// Stands in for AMD's graph library where it is not installed: what aie/graph.h and aie/kernels.h use, so that the same
// graph runs natively, a thread to each kernel. Windows are double-buffered and filled by DMAs of their own, a stream
// that forks goes on when all of its branches have room, as in the array.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_CSIM_ADF_H
#define RSN_CSIM_ADF_H

#include <cstdint>
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
struct parameter {};
struct ratio {};
enum plio_type { plio_32_bits, plio_64_bits, plio_128_bits };

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

using Lane = hls::vector<float, 2>;
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
    std::vector<shim> place;                      // of a PLIO
    std::size_t window = 0;                       // of a buffer: words of 32 bits, as floats whatever they hold
    std::vector<address> addresses;               // of a buffer: one for each of its two
    std::unique_ptr<hls::stream<float>> buffer;   // of a buffer
    hls::stream<Word> *cascade = nullptr;         // of a cascade, and
    std::unique_ptr<hls::stream<Word>> owned;     // where it begins
    std::vector<uint32> values;                   // of a parameter
    bool asynchronous = false, written = false;   // of a parameter

    // Where it leads to.
    void ends(std::vector<Node *> &out) {
        for (Node *node : next) node->ends(out);
        if (next.empty()) out.push_back(this);
    }
};

struct Kernel {
    std::vector<std::unique_ptr<Node>> in, out;
    std::function<void()> run;
    std::vector<tile> place;
    std::vector<address> stack;
    std::size_t stack_bytes = 0;

    Node &add(std::vector<std::unique_ptr<Node>> &to) {
        to.push_back(std::make_unique<Node>());
        return *to.back();
    }
    // Named after the stream that leaves it, or the cascade that it belongs to.
    std::string name(const std::map<Node *, Kernel *> &owner) const {
        std::vector<Node *> ends;
        out[0]->ends(ends);
        return ends[0]->plio.empty() ? owner.at(ends[0])->name(owner) : ends[0]->plio;
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

    // Starts everything in `region`. bind: the stream of a PLIO, by name.
    template <typename Region>
    void start(Region &region, const std::function<hls::stream<Lane> &(const std::string &)> &bind) {
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
        for (const auto &kernel : kernels) {
            for (const auto &node : kernel->out) {
                std::vector<Node *> ends;
                node->ends(ends);
                if (node->window) {
                    open(*node, ends[0]->plio);
                    region.start(
                        ends[0]->plio.c_str(), [&n = *node, &to = bind(ends[0]->plio)] { drain(n, to); }, true);
                } else {
                    node->owned = std::make_unique<hls::stream<Word>>();
                    node->owned->open("cascade", cascade_depth);
                    node->cascade = ends[0]->cascade = node->owned.get();
                }
            }
        }
        for (const auto &kernel : kernels) region.start(kernel->name(owner).c_str(), kernel->run);
    }

  private:
    static void open(Node &node, const std::string &name) {
        node.buffer = std::make_unique<hls::stream<float>>();
        node.buffer->open(name.c_str(), buffers * node.window);
    }
    static void fill(hls::stream<Lane> &from, const std::vector<Node *> &to) {
        for (;;) {
            const Lane lane = from.read();
            for (Node *node : to) {
                node->buffer->write(lane[0]);
                node->buffer->write(lane[1]);
            }
        }
    }
    static void drain(Node &from, hls::stream<Lane> &to) {
        for (;;) {
            Lane lane;
            lane[0] = from.buffer->read();
            lane[1] = from.buffer->read();
            to.write(lane);
        }
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
        value.stream = node.cascade;
        return &value;
    }
};

template <typename T>
struct Argument<output_cascade<T> *> {
    Node &node;
    output_cascade<T> value{};
    explicit Argument(Kernel &kernel) : node(kernel.add(kernel.out)) {}
    output_cascade<T> *get() {
        value.stream = node.cascade;
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

    static plio create(const std::string &name, plio_type type, const std::string & = "") {
        if (type != plio_64_bits) throw std::invalid_argument(name + ": natively a PLIO has 64 bits");
        plio made;
        constexpr bool inwards = std::is_same_v<Direction, input>;
        auto &design = *native::Design::current;
        const auto &node = (inwards ? made.out : made.in)[0].shared();
        node->plio = name;
        (inwards ? design.inputs : design.outputs).push_back(node);
        return made;
    }

    native::Node &end() const { return (std::is_same_v<Direction, input> ? out : in)[0].node(); }
};
using input_plio = plio<input>;
using output_plio = plio<output>;

template <typename Kind = void, typename From, typename To>
void connect(const From &from, const To &to) {
    from.node().next.push_back(&to.node());
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
