// What the generated tasks are made of: Python's integers, 16-bit floats, tiles, shards of tensors, library kernels.
//
// Every kernel computes what the toolchain's own run computes, operation by operation in the same order; natively it
// must be compiled with -ffp-contract=off. RSN_NATIVE: built to run on this computer, each process a thread.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_STREAMS_KERNELS_H
#define RSN_STREAMS_KERNELS_H

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include <hls_stream.h>
#include <hls_vector.h>

#if defined(__SYNTHESIS__) || !defined(__SIZEOF_INT128__)
#include <ap_int.h>
#endif

#ifdef RSN_NATIVE
#include <process.h>
#include <stdexcept>
#include <string>
#include <vector>
// The statement at this line of the user's file begins.
#define RSN_AT(line) (rsn::csim::Process::current->uop = (line))
// A process of the dataflow region, under the name of its unit.
#define RSN_TASK(name, ...) rsn_region.start(name, [&] { __VA_ARGS__; })
#else
#define RSN_AT(line) static_cast<void>(line)
#define RSN_TASK(name, ...) __VA_ARGS__
#define RSN_DATAFLOW()
#endif

namespace rsn {

// What the toolchain's run refuses, such as an index outside a tile. Hardware has no checks.
inline void require(bool holds, const char *what) {
#ifdef RSN_NATIVE
    if (!holds) throw std::runtime_error("@" + std::to_string(rsn::csim::Process::current->uop) + " " + what);
#else
    static_cast<void>(holds);
    static_cast<void>(what);
#endif
}

template <class... Values>
void use(const Values &...) {}

// -- integers ---------------------------------------------------------------------------------------------------------

#if defined(__SYNTHESIS__) || !defined(__SIZEOF_INT128__)
using Wide = ap_int<128>;
using UnsignedWide = ap_uint<128>;
inline std::int64_t low64(const Wide &x) { return x.to_int64(); }
inline double nearest_double(const Wide &x) { return x.to_double(); }
#else
using Wide = __int128;
using UnsignedWide = unsigned __int128;
inline std::int64_t low64(Wide x) { return static_cast<std::int64_t>(static_cast<std::uint64_t>(x)); }
inline double nearest_double(Wide x) { return static_cast<double>(x); }
#endif

// An integer of Python, of which 128 bits are kept. They are what a put or a store needs, however large the integer
// is. What depends on all bits (comparison, division, shift to the right) needs one that fits: natively that is checked.
class Int {
  public:
    Int() = default;
    template <class T, class = std::enable_if_t<std::is_integral<T>::value>>
    Int(T value) : value_(value) {}
    static Int of(const Wide &value, bool exact = true) {
        Int out;
        out.value_ = value;
        out.exact_ = exact;
        return out;
    }
    static Int of_words(std::uint64_t high, std::uint64_t low) {
        return of(static_cast<Wide>((static_cast<UnsignedWide>(high) << 64) | static_cast<UnsignedWide>(low)));
    }

    std::int64_t low() const { return low64(value_); }
    bool exact() const { return exact_; }
    const Wide &bits() const { return value_; }
    const Wide &value() const {
        require(exact_, "this integer needs more than 128 bits");
        return value_;
    }
    explicit operator bool() const { return value() != 0; }
    explicit operator std::int64_t() const {
        require(value() >= std::numeric_limits<std::int64_t>::min() &&
                    value() <= std::numeric_limits<std::int64_t>::max(),
                "this integer needs more than 64 bits");
        return low();
    }

    friend Int operator+(const Int &a, const Int &b) {
        const Wide out = static_cast<Wide>(static_cast<UnsignedWide>(a.value_) + static_cast<UnsignedWide>(b.value_));
        const bool fits = ((a.value_ ^ out) & (b.value_ ^ out)) >= 0;
        return of(out, fits && a.exact_ && b.exact_);
    }
    friend Int operator-(const Int &a, const Int &b) {
        const Wide out = static_cast<Wide>(static_cast<UnsignedWide>(a.value_) - static_cast<UnsignedWide>(b.value_));
        const bool fits = ((a.value_ ^ b.value_) & (a.value_ ^ out)) >= 0;
        return of(out, fits && a.exact_ && b.exact_);
    }
    friend Int operator*(const Int &a, const Int &b) {
        const Wide out = static_cast<Wide>(static_cast<UnsignedWide>(a.value_) * static_cast<UnsignedWide>(b.value_));
#ifdef RSN_NATIVE
        Wide checked;
        const bool fits = !__builtin_mul_overflow(a.value_, b.value_, &checked);
#else
        const bool fits = true;
#endif
        return of(out, fits && a.exact_ && b.exact_);
    }
    friend Int operator&(const Int &a, const Int &b) {
        const bool masked = (a.exact_ && a.value_ >= 0) || (b.exact_ && b.value_ >= 0);
        return of(a.value_ & b.value_, (a.exact_ && b.exact_) || masked);
    }
    friend Int operator|(const Int &a, const Int &b) { return of(a.value_ | b.value_, a.exact_ && b.exact_); }
    friend Int operator^(const Int &a, const Int &b) { return of(a.value_ ^ b.value_, a.exact_ && b.exact_); }
    Int operator-() const { return Int(0) - *this; }
    Int operator~() const { return of(~value_, exact_); }
    friend bool operator==(const Int &a, const Int &b) { return a.value() == b.value(); }
    friend bool operator!=(const Int &a, const Int &b) { return a.value() != b.value(); }
    friend bool operator<(const Int &a, const Int &b) { return a.value() < b.value(); }
    friend bool operator<=(const Int &a, const Int &b) { return a.value() <= b.value(); }
    friend bool operator>(const Int &a, const Int &b) { return a.value() > b.value(); }
    friend bool operator>=(const Int &a, const Int &b) { return a.value() >= b.value(); }

  private:
    Wide value_ = 0;
#ifdef RSN_NATIVE
    bool exact_ = true;
#else
    struct Always {  // hardware keeps no such bit
        Always &operator=(bool) { return *this; }
        operator bool() const { return true; }
    };
    Always exact_;
#endif
};

// Division towards minus infinity, and its remainder, which has the sign of the divisor.
inline std::int64_t floordiv(std::int64_t a, std::int64_t b) {
    require(b != 0, "division by zero");
    const std::int64_t q = a / b;
    return q - ((a % b != 0) && ((a < 0) != (b < 0)));
}
inline std::int64_t floormod(std::int64_t a, std::int64_t b) {
    require(b != 0, "division by zero");
    const std::int64_t r = a % b;
    return r + ((r != 0) && ((r < 0) != (b < 0)) ? b : 0);
}
inline Int floordiv(const Int &a, const Int &b) {
    require(b.value() != 0, "division by zero");
    const Wide q = a.value() / b.value(), r = a.value() % b.value();
    return Int::of(q - ((r != 0) && ((r < 0) != (b.value() < 0)) ? 1 : 0));
}
inline Int floormod(const Int &a, const Int &b) {
    require(b.value() != 0, "division by zero");
    const bool power = b.value() > 0 && (b.value() & (b.value() - 1)) == 0;
    if (power) return Int::of(a.bits() & (b.value() - 1));  // its low bits are those of any integer
    const Wide r = a.value() % b.value();
    return Int::of((r != 0) && ((r < 0) != (b.value() < 0)) ? Wide(r + b.value()) : r);
}
inline Int shl(const Int &a, std::int64_t places) {
    require(places >= 0 && places <= 64, "a shift by less than 0 or more than 64 places");
    Int out = a;
    for (int k = 0; k < 64; ++k)
        if (k < places) out = out + out;
    return out;
}
inline Int shr(const Int &a, std::int64_t places) {
    require(places >= 0, "a shift by less than 0 places");
    return Int::of(a.value() >> (places > 127 ? 127 : static_cast<int>(places)));
}
inline Int power(const Int &a, std::int64_t exponent) {
    require(exponent >= 0 && exponent <= 64, "an exponent of less than 0 or more than 64");
    Int out = 1;
    for (int k = 0; k < 64; ++k)
        if (k < exponent) out = out * a;
    return out;
}
inline std::int64_t absolute(std::int64_t a) { return a < 0 ? -a : a; }
inline Int absolute(const Int &a) { return a < Int(0) ? -a : a; }
inline double quotient(const Int &a, const Int &b) {
    const Wide limit = Wide(1) << 53;
    require(b.value() != 0, "division by zero");
    require(a.value() <= limit && a.value() >= -limit && b.value() <= limit && b.value() >= -limit,
            "a quotient of integers of more than 53 bits");
    return nearest_double(a.value()) / nearest_double(b.value());
}
// The nearest float of an integer that is computed with floats, and of one that becomes a float type.
inline double to_double(const Int &a) { return nearest_double(a.value()); }
inline float to_float(const Int &a) { return static_cast<float>(nearest_double(a.value())); }
inline float rounded_to_float(const Int &a) {
    const Wide x = a.value();
    if (x >= std::numeric_limits<std::int64_t>::min() && x <= std::numeric_limits<std::int64_t>::max())
        return static_cast<float>(low64(x));
    if (x >= 0 && x <= static_cast<Wide>(std::numeric_limits<std::uint64_t>::max()))
        return static_cast<float>(static_cast<std::uint64_t>(low64(x)));
    return static_cast<float>(nearest_double(x));
}
// The integer part. Of floats from 2^117 on, the low 64 bits are 0.
inline Int truncated(double x) {
    require(x == x && x <= std::numeric_limits<double>::max() && x >= std::numeric_limits<double>::lowest(),
            "a float that is no number becomes an integer");
    const double limit = 166153499473114484112975882535043072.0;  // 2^117
    if (x >= limit || x <= -limit) return Int::of(0, false);
    return Int::of(static_cast<Wide>(x));
}

// -- floats of 16 bits ------------------------------------------------------------------------------------------------

inline std::uint32_t bits_of(float x) {
    std::uint32_t out;
    std::memcpy(&out, &x, sizeof out);
    return out;
}
inline float float_of(std::uint32_t bits) {
    float out;
    std::memcpy(&out, &bits, sizeof out);
    return out;
}
inline std::uint64_t bits_of(double x) {
    std::uint64_t out;
    std::memcpy(&out, &x, sizeof out);
    return out;
}

// bfloat16: the upper half of a float, rounded to nearest, ties to even.
struct bf16 {
    std::uint16_t bits = 0;

    bf16() = default;
    explicit bf16(float x) {
        const std::uint32_t b = bits_of(x);
        const bool nan = (b & 0x7FFFFFFFu) > 0x7F800000u;
        bits = static_cast<std::uint16_t>((nan ? b | 0x400000u : b + 0x7FFFu + (b >> 16 & 1u)) >> 16);
    }
    explicit bf16(double x) : bf16(static_cast<float>(x)) {}
    operator float() const { return float_of(static_cast<std::uint32_t>(bits) << 16); }
};

// IEEE half precision.
struct f16 {
    std::uint16_t bits = 0;

    f16() = default;
    explicit f16(double x) : f16(static_cast<float>(x)) {}
    explicit f16(float x) {
        const std::uint64_t b = bits_of(static_cast<double>(x));
        const std::uint16_t sign = static_cast<std::uint16_t>(b >> 48 & 0x8000u);
        const int power = static_cast<int>(b >> 52 & 0x7FFu) - 1023;
        const std::uint64_t fraction = b & 0xFFFFFFFFFFFFFull;
        if (power == 1024 && fraction) bits = static_cast<std::uint16_t>(sign | 0x7E00u | (fraction >> 42));
        else if (power > 15) bits = static_cast<std::uint16_t>(sign | 0x7C00u);
        else if (power < -25) bits = sign;
        else {
            // With the leading one, cut to the places that are left; a carry into the exponent is right.
            const std::uint64_t whole = fraction | 1ull << 52;
            const int cut = power >= -14 ? 42 : 42 + (-14 - power);
            std::uint64_t kept = whole >> cut;
            const std::uint64_t rest = whole & ((1ull << cut) - 1), half = 1ull << (cut - 1);
            kept += rest > half || (rest == half && (kept & 1));
            bits = static_cast<std::uint16_t>(sign | (power >= -14 ? kept + (static_cast<std::uint64_t>(power + 14) << 10) : kept));
        }
    }
    operator float() const {
        const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16, fraction = bits & 0x3FFu;
        const std::uint32_t power = bits >> 10 & 0x1Fu;
        if (power == 31) return float_of(sign | 0x7F800000u | fraction << 13);
        if (power) return float_of(sign | (power + 112) << 23 | fraction << 13);
        const float small = static_cast<float>(fraction) * float_of(0x33800000u);  // 2^-24
        return sign ? -small : small;
    }
};

// -- values that become an element type ---------------------------------------------------------------------------------

template <class T>
struct Convert {  // integers: the low bits
    static T of(const Int &x) { return static_cast<T>(static_cast<std::uint64_t>(x.low())); }
    static T of(double x) { return of(truncated(x)); }
};
template <>
struct Convert<bool> {
    static bool of(const Int &x) { return static_cast<bool>(x); }
    static bool of(double x) { return x != 0; }
};
template <>
struct Convert<float> {
    static float of(const Int &x) { return rounded_to_float(x); }
    static float of(double x) { return static_cast<float>(x); }
};
template <>
struct Convert<double> {
    static double of(const Int &x) { return to_double(x); }
    static double of(double x) { return x; }
};
template <>
struct Convert<f16> {
    static f16 of(const Int &x) { return f16(rounded_to_float(x)); }
    static f16 of(double x) { return f16(x); }
};
template <>
struct Convert<bf16> {
    static bf16 of(const Int &x) { return bf16(rounded_to_float(x)); }
    static bf16 of(double x) { return bf16(x); }
};

// A number as an element type: integers wrap, floats round.
template <class T, class X>
T convert(const X &x) {
    using Number = std::conditional_t<std::is_integral<X>::value || std::is_same<X, Int>::value, Int, double>;
    return Convert<T>::of(static_cast<Number>(x));
}

// An element of a tile as another element type.
template <class T, class X>
T element_as(const X &x) {
    if constexpr (std::is_same<T, X>::value) return x;
    else if constexpr (std::is_same<T, bool>::value) return static_cast<float>(x) != 0;
    else if constexpr (std::is_integral<T>::value && std::is_floating_point<X>::value) return Convert<T>::of(static_cast<double>(x));
    else if constexpr ((std::is_same<T, f16>::value || std::is_same<T, bf16>::value) && std::is_integral<X>::value)
        return T(static_cast<float>(x));
    else return static_cast<T>(x);
}
template <>
inline bool element_as<bool, double>(const double &x) {
    return x != 0;
}
template <>
inline bool element_as<bool, std::int64_t>(const std::int64_t &x) {
    return x != 0;
}
template <>
inline bool element_as<bool, std::uint64_t>(const std::uint64_t &x) {
    return x != 0;
}

// A number of Python beside a tile of T: it must be one that T has.
template <class T, class X>
T beside(const X &number) {
    if constexpr (std::is_floating_point<T>::value) {
        if constexpr (std::is_same<X, Int>::value) return static_cast<T>(to_double(number));
        else return static_cast<T>(static_cast<double>(number));
    } else {
        const Int x(number);
        require(x >= Int(std::numeric_limits<T>::min()) && x <= Int(std::numeric_limits<T>::max()),
                "an integer that the element type of the tile does not have");
        return static_cast<T>(x.low());
    }
}

// -- tiles --------------------------------------------------------------------------------------------------------------

constexpr std::size_t product() { return 1; }
template <class... Sizes>
constexpr std::size_t product(std::size_t first, Sizes... rest) {
    return first * product(rest...);
}

#ifdef RSN_NATIVE
// Large tiles do not fit on the stack of a thread.
template <class T, std::size_t N>
struct Elements {
    std::vector<T> values = std::vector<T>(N);
    T &operator[](std::size_t k) { return values[k]; }
    const T &operator[](std::size_t k) const { return values[k]; }
};
template <std::size_t N>
struct Elements<bool, N> {
    std::vector<std::uint8_t> values = std::vector<std::uint8_t>(N);
    bool &operator[](std::size_t k) { return reinterpret_cast<bool &>(values[k]); }
    const bool &operator[](std::size_t k) const { return reinterpret_cast<const bool &>(values[k]); }
};
template <class T, std::size_t N>
using Storage = std::conditional_t<(N * sizeof(T) > 1024), Elements<T, N>, T[N]>;
#else
template <class T, std::size_t N>
using Storage = T[N];
#endif

// Sizes of the axes of a tile, the last one innermost.
template <std::size_t... Sizes>
struct Shape {
    static constexpr std::size_t rank = sizeof...(Sizes);
    static constexpr std::size_t count = product(Sizes...);
    static constexpr std::size_t size(std::size_t axis) {
        constexpr std::size_t sizes[] = {Sizes..., 1};
        return sizes[axis];
    }
    static constexpr std::size_t stride(std::size_t axis) {
        std::size_t out = 1;
        for (std::size_t k = axis + 1; k < rank; ++k) out *= size(k);
        return out;
    }
};

inline std::size_t within(std::int64_t index, std::size_t size) {
    require(index >= 0 && index < static_cast<std::int64_t>(size), "an index outside its axis");
    return static_cast<std::size_t>(index);
}
inline std::size_t within(const Int &index, std::size_t size) {
    return within(static_cast<std::int64_t>(index), size);
}

template <class T, std::size_t... Sizes>
struct Tile {
    using Element = T;
    using Sizes_ = Shape<Sizes...>;
    static constexpr std::size_t count = Sizes_::count;
    Storage<T, count> v = {};

    T &operator[](std::size_t k) { return v[k]; }
    const T &operator[](std::size_t k) const { return v[k]; }
    // The element at an index of each axis.
    template <class... Indices>
    T &at(Indices... indices) {
        return v[place(0, indices...)];
    }
    template <class... Indices>
    const T &at(Indices... indices) const {
        return v[place(0, indices...)];
    }
    template <class First, class... Rest>
    static std::size_t place(std::size_t axis, First first, Rest... rest) {
        return within(first, Sizes_::size(axis)) * Sizes_::stride(axis) + place(axis + 1, rest...);
    }
    static std::size_t place(std::size_t) { return 0; }
};

template <class X>
struct IsTile : std::false_type {};
template <class T, std::size_t... Sizes>
struct IsTile<Tile<T, Sizes...>> : std::true_type {};

// The part of a tensor off the chip that a task instance sees. Whole: sizes of the tensor; Part: of the shard.
template <class T, class Whole, class Part>
struct Shard {
    using Element = std::remove_const_t<T>;
    using Sizes_ = Part;
    T *memory;
    std::size_t offset;

    // The element at this place of the shard, as if it were dense.
    T &operator[](std::size_t k) const {
        std::size_t at = offset;
        for (std::size_t axis = Part::rank; axis-- > 0;) {
            at += k % Part::size(axis) * Whole::stride(axis);
            k /= Part::size(axis);
        }
        return memory[at];
    }
    template <class... Indices>
    T &at(Indices... indices) const {
        return memory[offset + place(0, indices...)];
    }
    template <class First, class... Rest>
    static std::size_t place(std::size_t axis, First first, Rest... rest) {
        return within(first, Part::size(axis)) * Whole::stride(axis) + place(axis + 1, rest...);
    }
    static std::size_t place(std::size_t) { return 0; }
};

// The element of `source` that element k of a part is. The part has an axis for each axis of `source` that Steps does
// not drop (0); on that axis it takes as many elements as Part says, each Steps behind the one before.
template <class Part, class Source, int... Steps, class... Starts>
std::size_t place_of(std::size_t k, Starts... starts) {
    constexpr int steps[] = {Steps...};
    const std::size_t from[] = {static_cast<std::size_t>(static_cast<std::int64_t>(starts))...};
    std::size_t out = 0, axis_of_part = Part::rank;
    for (std::size_t axis = sizeof...(Steps); axis-- > 0;) {
        std::size_t index = from[axis];
        if (steps[axis]) {
            --axis_of_part;
            index += k % Part::size(axis_of_part) * steps[axis];
            k /= Part::size(axis_of_part);
        }
        require(index < Source::size(axis), "an index outside its axis");
        out += index * Source::stride(axis);
    }
    return out;
}

// A part of a tile or shard as a tile.
template <class Out, int... Steps, class Source, class... Starts>
Out part(const Source &source, Starts... starts) {
    Out out;
    for (std::size_t k = 0; k < Out::count; ++k) {
#pragma HLS pipeline
        const std::size_t at = place_of<typename Out::Sizes_, typename Source::Sizes_, Steps...>(k, starts...);
        out[k] = static_cast<typename Out::Element>(source[at]);
    }
    return out;
}

// -- kernels on elements --------------------------------------------------------------------------------------------------

// Where element k of a result of shape Out is in an operand whose axes of size 1, or that it lacks, repeat.
template <class Out, class In>
std::size_t spread(std::size_t k) {
    if (std::is_same<Out, In>::value) return k;
    std::size_t at = 0;
    for (std::size_t back = 1; back <= Out::rank; ++back) {
        const std::size_t index = k % Out::size(Out::rank - back);
        k /= Out::size(Out::rank - back);
        if (back <= In::rank && In::size(In::rank - back) != 1) at += index * In::stride(In::rank - back);
    }
    return at;
}

template <class Out, class X>
const X &element(const X &x, std::size_t, std::false_type) {
    return x;
}
template <class Out, class X>
const typename X::Element &element(const X &x, std::size_t k, std::true_type) {
    return x[spread<Out, typename X::Sizes_>(k)];
}

// Compute: the type in which each pair of elements is computed. Out: a tile, or a number.
template <class Out, class Compute, class Op, class A, class B>
Out zip(Op op, const A &a, const B &b) {
    if constexpr (IsTile<Out>::value) {
        using Sizes = typename Out::Sizes_;
        Out out;
        for (std::size_t k = 0; k < Out::count; ++k) {
#pragma HLS pipeline
            out[k] = static_cast<typename Out::Element>(op(element_as<Compute>(element<Sizes>(a, k, IsTile<A>())),
                                                           element_as<Compute>(element<Sizes>(b, k, IsTile<B>()))));
        }
        return out;
    } else {
        return static_cast<Out>(op(element_as<Compute>(a), element_as<Compute>(b)));
    }
}

template <class Out, class Op, class X>
Out map(Op op, const X &x) {
    if constexpr (IsTile<Out>::value) {
        Out out;
        for (std::size_t k = 0; k < Out::count; ++k) {
#pragma HLS pipeline
            out[k] = op(element_as<typename Out::Element>(x[k]));
        }
        return out;
    } else {
        return op(element_as<Out>(x));
    }
}

template <class T>
using Bits = std::conditional_t<std::is_integral<T>::value, std::uint64_t, T>;

// clang-format off
struct Add { template <class T> T operator()(T a, T b) const { return static_cast<T>(Bits<T>(a) + Bits<T>(b)); } };
struct Sub { template <class T> T operator()(T a, T b) const { return static_cast<T>(Bits<T>(a) - Bits<T>(b)); } };
struct Mul { template <class T> T operator()(T a, T b) const { return static_cast<T>(Bits<T>(a) * Bits<T>(b)); } };
struct Div { template <class T> T operator()(T a, T b) const { return a / b; } };
struct And { template <class T> T operator()(T a, T b) const { return static_cast<T>(a & b); } };
struct Or { template <class T> T operator()(T a, T b) const { return static_cast<T>(a | b); } };
struct Xor { template <class T> T operator()(T a, T b) const { return static_cast<T>(a ^ b); } };
struct Eq { template <class T> bool operator()(T a, T b) const { return a == b; } };
struct Ne { template <class T> bool operator()(T a, T b) const { return a != b; } };
struct Lt { template <class T> bool operator()(T a, T b) const { return a < b; } };
struct Le { template <class T> bool operator()(T a, T b) const { return a <= b; } };
struct Gt { template <class T> bool operator()(T a, T b) const { return a > b; } };
struct Ge { template <class T> bool operator()(T a, T b) const { return a >= b; } };
struct Neg { template <class T> T operator()(T a) const { return negated(a, std::is_integral<T>()); }
  private:
    template <class T> static T negated(T a, std::true_type) { return static_cast<T>(0 - static_cast<std::uint64_t>(a)); }
    template <class T> static T negated(T a, std::false_type) { return -a; } };
struct Not { template <class T> T operator()(T a) const { return static_cast<T>(std::is_same<T, bool>::value ? !a : ~static_cast<std::uint64_t>(a)); } };
struct Abs { template <class T> T operator()(T a) const { return absolute_of(a, std::is_integral<T>()); }
  private:
    template <class T> static T absolute_of(T a, std::true_type) { return a < T(0) ? Neg()(a) : a; }
    template <class T> static T absolute_of(T a, std::false_type) { return std::fabs(a); } };
// clang-format on

// The larger, or smaller, of two; of a NaN and a number the NaN; +0 is larger than -0.
template <class T>
bool negative_zero(T a) {
    return std::is_floating_point<T>::value && a == T(0) && std::signbit(static_cast<double>(a));
}
struct Larger {
    template <class T>
    T operator()(T a, T b) const {
        return (a >= b && !negative_zero(a)) || a > b || a != a ? a : b;
    }
};
struct Smaller {
    template <class T>
    T operator()(T a, T b) const {
        return (a <= b && !negative_zero(b)) || a < b || a != a ? a : b;
    }
};

// Integers in tiles: what is divided by zero is 0. Floats: towards minus infinity.
struct FloorDiv {
    template <class T>
    T operator()(T a, T b) const {
        return divided(a, b, std::is_integral<T>());
    }

  private:
    template <class T>
    static T divided(T a, T b, std::true_type) {
        if (b == T(0)) return T(0);
        if (std::is_signed<T>::value && b == static_cast<T>(-1)) return Neg()(a);
        const T q = static_cast<T>(a / b), r = static_cast<T>(a % b);
        return static_cast<T>(q - ((r != T(0)) && ((r < T(0)) != (b < T(0)))));
    }
    template <class T>
    static T divided(T a, T b, std::false_type) {
        if (b == T(0)) return a / b;
        T rest = std::fmod(a, b), whole = (a - rest) / b;
        if (rest != T(0) && (b < T(0)) != (rest < T(0))) whole -= T(1);
        if (whole == T(0)) return std::copysign(T(0), a / b);
        const T down = std::floor(whole);
        return whole - down > T(0.5) ? down + T(1) : down;
    }
};
struct FloorMod {
    template <class T>
    T operator()(T a, T b) const {
        return rest(a, b, std::is_integral<T>());
    }

  private:
    template <class T>
    static T rest(T a, T b, std::true_type) {
        if (b == T(0) || (std::is_signed<T>::value && b == static_cast<T>(-1))) return T(0);
        const T r = static_cast<T>(a % b);
        return static_cast<T>(r + ((r != T(0)) && ((r < T(0)) != (b < T(0))) ? b : T(0)));
    }
    template <class T>
    static T rest(T a, T b, std::false_type) {
        const T r = std::fmod(a, b);
        if (b == T(0) || r != r) return r;
        if (r == T(0)) return std::copysign(T(0), b);
        return (b < T(0)) != (r < T(0)) ? r + b : r;
    }
};
struct ShiftLeft {
    template <class T>
    T operator()(T a, T b) const {
        const bool in_range = b >= T(0) && static_cast<std::uint64_t>(b) < 8 * sizeof(T);
        return in_range ? static_cast<T>(static_cast<std::uint64_t>(a) << b) : T(0);
    }
};
struct ShiftRight {
    template <class T>
    T operator()(T a, T b) const {
        const bool in_range = b >= T(0) && static_cast<std::uint64_t>(b) < 8 * sizeof(T);
        return in_range ? static_cast<T>(a >> b) : static_cast<T>(a < T(0) ? -1 : 0);
    }
};

// -- kernels on floats ----------------------------------------------------------------------------------------------------

// x = powers * ln 2 + rest, of an x between the ends of exp.
struct PowerOfTwo {
    int powers;
    float rest;

    explicit PowerOfTwo(float x) {
        const float whole = std::rint(x * 1.44269504f);
        rest = x - whole * 0.693359375f;
        rest = rest - whole * -2.12194440e-4f;
        powers = static_cast<int>(whole);
    }
    // (exp(rest) - 1) / rest: a polynomial of degree 6, for |rest| <= ln 2 / 2.
    float series() const {
        float out = static_cast<float>(1.0 / 5040);
        out = out * rest + static_cast<float>(1.0 / 720);
        out = out * rest + static_cast<float>(1.0 / 120);
        out = out * rest + static_cast<float>(1.0 / 24);
        out = out * rest + static_cast<float>(1.0 / 6);
        out = out * rest + 0.5f;
        return out * rest + 1.0f;
    }
    // x times the power of two, by two factors that are normal numbers, so that a subnormal result is rounded once.
    float scaled(float x) const {
        const int half = powers / 2;
        return x * power(half) * power(powers - half);
    }

  private:
    static float power(int exponent) { return float_of(static_cast<std::uint32_t>(exponent + 127) << 23); }
};

// e to the power of x. Hardware takes subnormal numbers for 0.
struct Exp {
    static constexpr float smallest = -104.0f, largest = 88.722831f;

    float operator()(float x) const {
        if (x != x) return x;
        if (x > largest) return std::numeric_limits<float>::infinity();
        if (x < smallest) return 0.0f;
        const PowerOfTwo of(x);
        return of.scaled(of.series() * of.rest + 1.0f);
    }
};

// The error function: Abramowitz and Stegun, formula 7.1.26.
inline float error_function(float x) {
    const float size = std::fabs(x);
    const float t = 1.0f / (1.0f + 0.3275911f * size);
    float series = 1.061405429f;
    series = series * t + -1.453152027f;
    series = series * t + 1.421413741f;
    series = series * t + -0.284496736f;
    series = series * t + 0.254829592f;
    const float tail = series * t * Exp()(-(size * size));
    return x < 0 ? tail - 1.0f : 1.0f - tail;
}
struct Gelu {
    float operator()(float x) const { return x * 0.5f * (1.0f + error_function(x * 0.70710678f)); }
};
struct Silu {
    float operator()(float x) const { return x / (1.0f + Exp()(-x)); }
};
// -t / (2 + t), t = exp(-2 |x|) - 1.
struct Tanh {
    float operator()(float x) const {
        if (x != x) return x;
        const float twice = std::fabs(x) * -2.0f;
        const PowerOfTwo of(twice < Exp::smallest ? Exp::smallest : twice);
        const float less = of.scaled(of.series() * of.rest) + (of.scaled(1.0f) - 1.0f);
        return std::copysign(-less / (2.0f + less), x);
    }
};
struct Relu {
    template <class T>
    T operator()(T x) const {
        return x < T(0) ? T(0) : x;  // NaN and -0 stay as they are
    }
};
struct Sqrt {
    template <class T>
    T operator()(T x) const {
        return std::sqrt(x);
    }
};

// -- kernels on tiles -----------------------------------------------------------------------------------------------------

template <class Out, class X>
Out full(const X &value) {
    Out out;
    for (std::size_t k = 0; k < Out::count; ++k) out[k] = static_cast<typename Out::Element>(value);
    return out;
}

// A tile of another element type, or of another shape with the same elements in the same order.
template <class Out, class X>
Out convert_tile(const X &x) {
    Out out;
    for (std::size_t k = 0; k < Out::count; ++k) {
#pragma HLS pipeline
        out[k] = element_as<typename Out::Element>(x[k]);
    }
    return out;
}

// Where the matrix of an operand begins that makes matrix `number` of a batch. Axes of size 1, or that it lacks, repeat.
template <class Out, class In>
std::size_t matrix_of(std::size_t number) {
    std::size_t at = 0;
    for (std::size_t back = 3; back <= Out::rank; ++back) {
        const std::size_t size = Out::size(Out::rank - back);
        if (back <= In::rank && In::size(In::rank - back) != 1) at += number % size * In::stride(In::rank - back);
        number /= size;
    }
    return at;
}

// The product of two matrices, or of each two of a batch; the sum runs over k in order. Integers are summed in 64 bits.
template <class Out, class A, class B>
Out matmul(const A &a, const B &b) {
    using T = typename Out::Element;
    using Sizes = typename Out::Sizes_;
    constexpr std::size_t rows = Sizes::size(Sizes::rank - 2), columns = Sizes::size(Sizes::rank - 1);
    constexpr std::size_t depth = A::Sizes_::size(A::Sizes_::rank - 1), batch = Sizes::count / (rows * columns);
    Out out;
    for (std::size_t n = 0; n < batch; ++n) {
        const std::size_t at_a = matrix_of<Sizes, typename A::Sizes_>(n), at_b = matrix_of<Sizes, typename B::Sizes_>(n);
        for (std::size_t i = 0; i < rows; ++i)
            for (std::size_t j = 0; j < columns; ++j) {
                T sum = 0;
                for (std::size_t k = 0; k < depth; ++k) {
#pragma HLS pipeline
                    const T x = static_cast<T>(a[at_a + i * depth + k]);
                    const T y = static_cast<T>(b[at_b + k * columns + j]);
                    sum = Add()(sum, Mul()(x, y));
                }
                out[(n * rows + i) * columns + j] = sum;
            }
    }
    return out;
}

// Axis k of the result is axis Axes[k] of the operand.
template <class Out, std::size_t... Axes, class X>
Out transpose(const X &x) {
    using In = typename X::Sizes_;
    constexpr std::size_t axes[] = {Axes...};
    Out out;
    for (std::size_t k = 0; k < Out::count; ++k) {
#pragma HLS pipeline
        std::size_t rest = k, at = 0;
        for (std::size_t axis = In::rank; axis-- > 0;) {
            at += rest % In::size(axes[axis]) * In::stride(axes[axis]);
            rest /= In::size(axes[axis]);
        }
        out[k] = x[at];
    }
    return out;
}

// Reduction along an axis, from the first element to the last; a sum begins with 0.
template <class Out, std::size_t Axis, class Op, class X>
Out reduce(Op op, const X &x) {
    using In = typename X::Sizes_;
    constexpr std::size_t inner = In::stride(Axis), length = In::size(Axis), outer = In::count / (inner * length);
    const auto along = [&](std::size_t o, std::size_t i, auto zero) {
        using T = decltype(zero);
        T all = static_cast<T>(x[o * length * inner + i]);
        if (std::is_same<Op, Add>::value) all = op(T(0), all);
        for (std::size_t k = 1; k < length; ++k) all = op(all, static_cast<T>(x[(o * length + k) * inner + i]));
        return all;
    };
    if constexpr (IsTile<Out>::value) {
        Out out;
        for (std::size_t o = 0; o < outer; ++o)
            for (std::size_t i = 0; i < inner; ++i) out[o * inner + i] = along(o, i, typename Out::Element());
        return out;
    } else {
        return along(0, 0, Out());
    }
}

// The rows of a tile: its last axis. All kernels below work on each of them.
template <class X>
constexpr std::size_t columns_of() {
    return X::Sizes_::size(X::Sizes_::rank - 1);
}

template <class X>
X softmax(const X &x) {
    constexpr std::size_t n = columns_of<X>();
    X out;
    for (std::size_t row = 0; row < X::count; row += n) {
        float most = x[row];
        for (std::size_t k = 1; k < n; ++k) most = Larger()(most, x[row + k]);
        for (std::size_t k = 0; k < n; ++k) out[row + k] = Exp()(x[row + k] - most);
        float sum = 0;
        for (std::size_t k = 0; k < n; ++k) sum = sum + out[row + k];
        for (std::size_t k = 0; k < n; ++k) out[row + k] = out[row + k] / sum;
    }
    return out;
}

// x where first <= column - row <= last, and minus infinity elsewhere.
template <class X>
X banded(const X &x, std::int64_t first, std::int64_t last) {
    using T = typename X::Element;
    constexpr std::size_t n = columns_of<X>(), rows = X::Sizes_::size(X::Sizes_::rank - 2);
    X out;
    for (std::size_t k = 0; k < X::count; ++k) {
#pragma HLS pipeline
        const std::int64_t diagonal = static_cast<std::int64_t>(k % n) - static_cast<std::int64_t>(k / n % rows);
        out[k] = diagonal >= first && diagonal <= last ? x[k] : -std::numeric_limits<T>::infinity();
    }
    return out;
}

template <class X>
X layernorm(const X &x, typename X::Element eps) {
    using T = typename X::Element;
    constexpr std::size_t n = columns_of<X>();
    X out;
    for (std::size_t row = 0; row < X::count; row += n) {
        T sum = 0;
        for (std::size_t k = 0; k < n; ++k) sum = sum + x[row + k];
        const T mean = sum / T(n);
        for (std::size_t k = 0; k < n; ++k) out[row + k] = x[row + k] - mean;
        T square = out[row] * out[row];
        for (std::size_t k = 1; k < n; ++k) square = square + out[row + k] * out[row + k];
        const T deviation = std::sqrt(square / T(n) + eps);
        for (std::size_t k = 0; k < n; ++k) out[row + k] = out[row + k] / deviation;
    }
    return out;
}

template <class X>
X rmsnorm(const X &x, typename X::Element eps) {
    using T = typename X::Element;
    constexpr std::size_t n = columns_of<X>();
    X out;
    for (std::size_t row = 0; row < X::count; row += n) {
        T square = x[row] * x[row];
        for (std::size_t k = 1; k < n; ++k) square = square + x[row + k] * x[row + k];
        const T size = std::sqrt(square / T(n) + eps);
        for (std::size_t k = 0; k < n; ++k) out[row + k] = x[row + k] / size;
    }
    return out;
}

// Tiles one after the other along an axis. at: where the first goes, in elements of that axis.
template <std::size_t Axis, class Out, class X>
void place_tile(Out &out, const X &x, std::size_t at) {
    using In = typename X::Sizes_;
    constexpr std::size_t inner = In::stride(Axis), length = In::size(Axis), outer = In::count / (inner * length);
    constexpr std::size_t whole = Out::Sizes_::size(Axis);
    for (std::size_t o = 0; o < outer; ++o)
        for (std::size_t k = 0; k < length * inner; ++k)
            out[o * whole * inner + at * inner + k] =
                element_as<typename Out::Element>(x[o * length * inner + k]);
}
template <class Out, std::size_t Axis, class... X>
Out concat(const X &...x) {
    Out out;
    std::size_t at = 0;
    ((place_tile<Axis>(out, x, at), at += X::Sizes_::size(Axis)), ...);
    return out;
}

// Store into a part of a tile or shard. Part: sizes of the part; the value repeats where it has fewer.
template <class Part, int... Steps, class Target, class X, class... Starts>
void store_part(Target &target, const X &value, Starts... starts) {
    using T = typename Target::Element;
    for (std::size_t k = 0; k < Part::count; ++k) {
#pragma HLS pipeline
        const std::size_t at = place_of<Part, typename Target::Sizes_, Steps...>(k, starts...);
        target[at] = element_as<T>(element<Part>(value, k, IsTile<X>()));
    }
}

// -- ends of streams --------------------------------------------------------------------------------------------------------

// The end of a stream that moves several elements at a time.
template <class T, std::size_t Packing>
class PackedOut {
  public:
    explicit PackedOut(hls::stream<hls::vector<T, Packing>> &stream) : stream_(stream) {}
    void write(const T &value) {
        held_[count_++] = value;
        if (count_ == Packing) {
            stream_.write(held_);
            count_ = 0;
        }
    }

  private:
    hls::stream<hls::vector<T, Packing>> &stream_;
    hls::vector<T, Packing> held_;
    std::size_t count_ = 0;
};

template <class T, std::size_t Packing>
class PackedIn {
  public:
    explicit PackedIn(hls::stream<hls::vector<T, Packing>> &stream) : stream_(stream) {}
    T read() {
        if (count_ == 0) held_ = stream_.read();
        const T out = held_[count_];
        count_ = count_ + 1 == Packing ? 0 : count_ + 1;
        return out;
    }

  private:
    hls::stream<hls::vector<T, Packing>> &stream_;
    hls::vector<T, Packing> held_;
    std::size_t count_ = 0;
};

// Bits that only the run tells: what data() draws. Given with the inputs, in the order in which a task instance draws.
class Draws {
  public:
    Draws(const bool *bits, std::size_t count) : bits_(bits), count_(count) {}
    bool next() {
#ifdef RSN_NATIVE
        if (used_ == count_) throw std::runtime_error("@draws");
#endif
        return bits_[used_++];
    }

  private:
    const bool *bits_;
    std::size_t count_, used_ = 0;
};

}  // namespace rsn

#endif  // RSN_STREAMS_KERNELS_H
