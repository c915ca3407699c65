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
#ifndef __SYNTHESIS__
#include <vector>

#include "channels.h"
#endif

#include <hls_stream.h>
#include <hls_vector.h>

#if defined(__SYNTHESIS__) || !defined(__SIZEOF_INT128__)
#include <ap_int.h>
#endif

#ifdef RSN_NATIVE
#include <process.h>
#include <stdexcept>
#include <string>
// The statement at this line of the user's file begins.
#define RSN_AT(line) (rsn::csim::Process::current->uop = (line))
// A process of the dataflow region, under the name of its unit.
#define RSN_TASK(name, ...) rsn_region.start(name, [&] { __VA_ARGS__; })
#else
#define RSN_AT(line) static_cast<void>(line)
#define RSN_TASK(name, ...) __VA_ARGS__
#define RSN_DATAFLOW()
#endif
// A size that each run gives. The checker of HLS sources takes a constant in place of what is given.
#ifndef RSN_SIZE
#define RSN_SIZE(name, given) (given)
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

// Elements are not cleared where a tile or a word of them is declared, as those of C++ are not: in HLS that is a loop.

// bfloat16: the upper half of a float, rounded to nearest, ties to even.
struct bf16 {
    std::uint16_t bits;

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
    std::uint16_t bits;

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

// -- integers of 4 bits ------------------------------------------------------------------------------------------------

// Kept: an integer that holds the value.
template <class Kept>
struct Nibble {
#if defined(__SYNTHESIS__)
    std::conditional_t<std::is_signed<Kept>::value, ap_int<4>, ap_uint<4>> value;
    operator int() const { return static_cast<int>(value); }
#else
    Kept value;
    operator int() const { return value; }
#endif

    Nibble() = default;
    template <class T, class = std::enable_if_t<std::is_integral<T>::value>>
    explicit Nibble(T x) {  // the low bits
        const int bits = static_cast<int>(static_cast<std::uint64_t>(x) & 15u);
        value = static_cast<Kept>(std::is_signed<Kept>::value && bits > 7 ? bits - 16 : bits);
    }
};
using i4 = Nibble<std::int8_t>;
using u4 = Nibble<std::uint8_t>;

template <class T>
struct IsNibble : std::false_type {};
template <class Kept>
struct IsNibble<Nibble<Kept>> : std::true_type {};

// Bits of an element off the chip.
template <class T>
constexpr std::size_t bits_of_element = IsNibble<T>::value ? 4 : 8 * sizeof(T);

// Nibbles as they lie off the chip: two in a byte, the first one in its low half.
template <class T, std::size_t N>
struct Nibbles {
    using Bytes = hls::vector<std::uint8_t, N / 2>;
    Bytes bytes = Bytes(std::uint8_t(0));

    T get(std::size_t k) const { return T(bytes[k / 2] >> k % 2 * 4); }
    void set(std::size_t k, const T &x) {
        const unsigned kept = bytes[k / 2] & (k % 2 ? 0x0Fu : 0xF0u), bits = static_cast<unsigned>(int(x)) & 15u;
        bytes[k / 2] = static_cast<std::uint8_t>(kept | bits << k % 2 * 4);
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
    else if constexpr ((std::is_integral<T>::value || IsNibble<T>::value) && std::is_floating_point<X>::value) return Convert<T>::of(static_cast<double>(x));
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

// Sizes of the axes of a tile, the last one innermost. A tile lies as rows of its last axis.
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
    static constexpr std::size_t columns = size(rank ? rank - 1 : 0);
    static constexpr std::size_t rows = count / columns;
};

// So many elements of a tile at once: rows and columns, which divide those of the tile.
template <std::size_t Rows, std::size_t Columns>
struct Word {
    static constexpr std::size_t rows = Rows, columns = Columns, count = Rows * Columns;
};

// Calls body(row, column) for each element of a tile, a word of them in a cycle.
template <class W, class Sizes, class Body>
void each_word(Body body) {
    for (std::size_t row = 0; row < Sizes::rows; row += W::rows)
        for (std::size_t column = 0; column < Sizes::columns; column += W::columns) {
#pragma HLS pipeline II=1 style=flp
            for (std::size_t y = 0; y < W::rows; ++y) {
#pragma HLS unroll
                for (std::size_t x = 0; x < W::columns; ++x) {
#pragma HLS unroll
                    body(row + y, column + x);
                }
            }
        }
}

#ifdef RSN_NATIVE
// Large tiles do not fit on the stack of a thread.
template <class T, std::size_t Rows, std::size_t Columns>
struct Elements {
    std::vector<T> values = std::vector<T>(Rows * Columns);
    T *operator[](std::size_t row) { return values.data() + row * Columns; }
    const T *operator[](std::size_t row) const { return values.data() + row * Columns; }
};
template <std::size_t Rows, std::size_t Columns>
struct Elements<bool, Rows, Columns> {
    std::vector<std::uint8_t> values = std::vector<std::uint8_t>(Rows * Columns);
    bool *operator[](std::size_t row) { return reinterpret_cast<bool *>(values.data() + row * Columns); }
    const bool *operator[](std::size_t row) const {
        return reinterpret_cast<const bool *>(values.data() + row * Columns);
    }
};
template <class T, std::size_t Rows, std::size_t Columns>
using Storage = std::conditional_t<(Rows * Columns * sizeof(T) > 1024), Elements<T, Rows, Columns>, T[Rows][Columns]>;
#else
template <class T, std::size_t Rows, std::size_t Columns>
using Storage = T[Rows][Columns];
#endif

inline std::size_t within(std::int64_t index, std::size_t size) {
    require(index >= 0 && index < static_cast<std::int64_t>(size), "an index outside its axis");
    return static_cast<std::size_t>(index);
}
inline std::size_t within(const Int &index, std::size_t size) {
    return within(static_cast<std::int64_t>(index), size);
}

#ifndef RSN_FLOAT_ADD
#define RSN_FLOAT_ADD 1
#endif
// Cycles of an addition of floats: what reads a sum again so soon waits for it.
constexpr std::size_t FLOAT_ADD = RSN_FLOAT_ADD;

// A value with a shape: a tile, or an expression of tiles whose elements are computed where they are needed. It has the
// element at a row and a column as operator().
struct Shaped {};

template <class T, std::size_t... Sizes>
struct Tile : Shaped {
    using Element = T;
    using Sizes_ = Shape<Sizes...>;
    Storage<T, Sizes_::rows, Sizes_::columns> v;

    T &operator()(std::size_t row, std::size_t column) { return v[row][column]; }
    const T &operator()(std::size_t row, std::size_t column) const { return v[row][column]; }
    // The element at an index of each axis.
    template <class... Indices>
    T &at(Indices... indices) {
        const std::size_t k = place(0, indices...);
        return v[k / Sizes_::columns][k % Sizes_::columns];
    }
    template <class... Indices>
    const T &at(Indices... indices) const {
        const std::size_t k = place(0, indices...);
        return v[k / Sizes_::columns][k % Sizes_::columns];
    }
    template <class First, class... Rest>
    static std::size_t place(std::size_t axis, First first, Rest... rest) {
        return within(first, Sizes_::size(axis)) * Sizes_::stride(axis) + place(axis + 1, rest...);
    }
    static std::size_t place(std::size_t) { return 0; }
};

template <class X>
struct IsShaped : std::is_base_of<Shaped, X> {};

// Stores the elements of a value in a tile.
template <class W, class Out, class X>
void assign(Out &out, const X &x) {
    each_word<W, typename Out::Sizes_>([&](std::size_t row, std::size_t column) {
        out(row, column) = static_cast<typename Out::Element>(x(row, column));
    });
}

// The pointers to a tensor: one for each memory channel in which it lies.
template <class Port, std::size_t Count>
struct Pointers {
    Port *first;
    Pointers<Port, Count - 1> rest;
};
template <class Port>
struct Pointers<Port, 1> {
    Port *first;
};

// Word `at` of a channel, chosen in the run.
template <class Port, std::size_t Count>
std::remove_const_t<Port> read_from(const Pointers<Port, Count> &memory, std::size_t channel, std::size_t at) {
    if constexpr (Count > 1)
        if (channel != 0) return read_from(memory.rest, channel - 1, at);
    return memory.first[at];
}
template <class Port, std::size_t Count>
void write_to(const Pointers<Port, Count> &memory, std::size_t channel, std::size_t at, const Port &value) {
    if constexpr (Count > 1)
        if (channel != 0) return write_to(memory.rest, channel - 1, at, value);
    memory.first[at] = value;
}

// The part of a tensor off the chip that a task instance sees. Whole: sizes of the tensor; Part: of the shard. The port
// moves words of Packed elements; with more than one, all accesses begin at a multiple of them. In several memory
// channels the tensor lies in turns: 64 bytes in the first, the next 64 bytes in the second one.
template <class T, class Whole, class Part, std::size_t Packed = 1, std::size_t Channels = 1>
struct Shard {
    using Element = std::remove_const_t<T>;
    using Sizes_ = Part;
    using Whole_ = Whole;
    // A word of the memory has one element of 4 bits beside the one that the port moves, if it moves single elements.
    static constexpr std::size_t packed = Packed, held = IsNibble<Element>::value && Packed == 1 ? 2 : Packed;
    using Held = std::conditional_t<IsNibble<Element>::value, Nibbles<Element, held>,
                                    std::conditional_t<held == 1, Element, hls::vector<Element, held>>>;
    using Port = std::conditional_t<std::is_const<T>::value, const Held, Held>;
    using Access = std::conditional_t<held == packed, Held, Element>;
    // Elements of a word of a port, of 64 bytes, and of 64 bytes in each channel.
    static constexpr std::size_t turn = 512 / bits_of_element<Element>, round = turn * Channels;
    Pointers<Port, Channels> memory;
    std::size_t offset;

    // The place of a word of the memory: its channel, and which word of it.
    static constexpr std::size_t channel_of(std::size_t word) { return word / (turn / held) % Channels; }
    static constexpr std::size_t place_in_channel(std::size_t word) {
        return word / (turn / held) / Channels * (turn / held) + word % (turn / held);
    }
    decltype(auto) read_held(std::size_t word) const {
        if constexpr (Channels == 1) return (memory.first[word]);
        else return read_from(memory, channel_of(word), place_in_channel(word));
    }
    void write_held(std::size_t word, const Held &value) const {
        if constexpr (Channels == 1) memory.first[word] = value;
        else write_to(memory, channel_of(word), place_in_channel(word), value);
    }
    // What the port moves as one: `packed` elements.
    decltype(auto) read(std::size_t number) const {
        if constexpr (held == packed) return read_held(number);
        else return read_held(number / held).get(number % held);
    }
    void write(std::size_t number, const Access &value) const {
        if constexpr (held == packed) {
            write_held(number, value);
        } else {
            Held word = read_held(number / held);
            word.set(number % held, value);
            write_held(number / held, word);
        }
    }
    template <class... Indices>
    decltype(auto) at(Indices... indices) const {
        static_assert(Packed == 1, "single elements");
        return read(offset + place(0, indices...));
    }
    template <class... Indices>
    void set(const Element &value, Indices... indices) const {
        static_assert(Packed == 1, "single elements");
        write(offset + place(0, indices...), value);
    }
    template <class First, class... Rest>
    static std::size_t place(std::size_t axis, First first, Rest... rest) {
        return within(first, Part::size(axis)) * Whole::stride(axis) + place(axis + 1, rest...);
    }
    static std::size_t place(std::size_t) { return 0; }
};

// Where an element is.
struct TilePlace {
    std::size_t row, column;
};

// Where the element at a row and a column of a part is in `Source`. The part has an axis for each axis of the source that
// Steps does not drop (0); on that axis it takes as many elements as Part says, each Steps behind the one before.
// Whole: the sizes of the tensor of which the source is a shard.
template <class Part, class Source, class Whole, std::size_t Axis, std::size_t OfPart, int Step, int... Steps,
          class Start, class... Starts>
TilePlace place_from(std::size_t row, std::size_t column, Start start, Starts... starts) {
    std::size_t index = static_cast<std::size_t>(static_cast<std::int64_t>(start));
    if constexpr (Step != 0 && OfPart + 1 == Part::rank) index += column * Step;
    if constexpr (Step != 0 && OfPart + 1 < Part::rank) {
        constexpr std::size_t below = Part::stride(OfPart) / Part::columns, size = Part::size(OfPart);
        index += row / below % size * Step;
    }
    require(index < Source::size(Axis), "an index outside its axis");
    if constexpr (sizeof...(Steps) == 0) return {0, index};
    else {
        constexpr std::size_t stride = Whole::stride(Axis) / Whole::columns;
        const TilePlace rest =
            place_from<Part, Source, Whole, Axis + 1, OfPart + (Step != 0), Steps...>(row, column, starts...);
        return {index * stride + rest.row, rest.column};
    }
}
template <class Part, class Source, class Whole, int... Steps, class... Starts>
TilePlace place_of(std::size_t row, std::size_t column, Starts... starts) {
    return place_from<Part, Source, Whole, 0, 0, Steps...>(row, column, starts...);
}

// An expression: what `function` computes of a row and a column.
template <class T, class Sizes, class Function>
struct Computed : Shaped {
    using Element = T;
    using Sizes_ = Sizes;
    Function function;

    explicit Computed(const Function &f) : function(f) {}
    T operator()(std::size_t row, std::size_t column) const { return static_cast<T>(function(row, column)); }
};
template <class T, class Sizes, class Function>
Computed<T, Sizes, Function> computed(const Function &function) {
    return Computed<T, Sizes, Function>(function);
}

// A part of a tile.
template <class Out, int... Steps, class Source, class... Starts>
auto part(const Source &source, Starts... starts) {
    using In = typename Source::Sizes_;
    return computed<typename Out::Element, typename Out::Sizes_>([&source, starts...](std::size_t row, std::size_t column) {
        const TilePlace at = place_of<typename Out::Sizes_, In, In, Steps...>(row, column, starts...);
        return source(at.row, at.column);
    });
}

// -- kernels on elements --------------------------------------------------------------------------------------------------

// What an operand has at a row and a column of a result of shape Out: of axes of size 1, or that it lacks, always the
// same; a number everywhere.
template <class Out, class In, std::size_t Back = 2>
std::size_t spread_row(std::size_t row) {
    if constexpr (Back > Out::rank || Back > In::rank) return 0;
    else {
        constexpr std::size_t size = Out::size(Out::rank - Back), stride = In::stride(In::rank - Back) / In::columns;
        const std::size_t at = In::size(In::rank - Back) == 1 ? 0 : row % size * stride;
        return at + spread_row<Out, In, Back + 1>(row / size);
    }
}
template <class Out, class X>
auto element(const X &x, std::size_t row, std::size_t column) {
    if constexpr (!IsShaped<X>::value) return x;
    else {
        using In = typename X::Sizes_;
        if constexpr (std::is_same<Out, In>::value) return x(row, column);
        else return x(spread_row<Out, In>(row), In::columns == 1 ? 0 : column);
    }
}

// An operand as expressions keep it: tiles by their place, numbers and expressions by value.
template <class X>
struct Kept {
    using Type = X;
};
template <class T, std::size_t... Sizes>
struct Kept<Tile<T, Sizes...>> {
    using Type = const Tile<T, Sizes...> &;
};

// Compute: the type in which each pair of elements is computed. Out: a tile, or a number.
template <class Compute, class Sizes, class Op, class A, class B>
struct Pairs {
    typename Kept<A>::Type a;
    typename Kept<B>::Type b;
    auto operator()(std::size_t row, std::size_t column) const {
        return Op()(element_as<Compute>(element<Sizes>(a, row, column)),
                    element_as<Compute>(element<Sizes>(b, row, column)));
    }
};
template <class Out, class Compute, class Op, class A, class B>
auto zip(Op op, const A &a, const B &b) {
    if constexpr (IsShaped<Out>::value) {
        using Sizes = typename Out::Sizes_;
        return computed<typename Out::Element, Sizes>(Pairs<Compute, Sizes, Op, A, B>{a, b});
    } else {
        return static_cast<Out>(op(element_as<Compute>(a), element_as<Compute>(b)));
    }
}

template <class T, class Op, class X>
struct Each {
    typename Kept<X>::Type x;
    auto operator()(std::size_t row, std::size_t column) const { return Op()(element_as<T>(x(row, column))); }
};
template <class Out, class Op, class X>
auto map(Op op, const X &x) {
    if constexpr (IsShaped<Out>::value)
        return computed<typename Out::Element, typename Out::Sizes_>(Each<typename Out::Element, Op, X>{x});
    else
        return static_cast<Out>(op(element_as<Out>(x)));
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

// A signed integer of exactly so many bits, in hardware; here one that holds it.
#if defined(__SYNTHESIS__)
template <std::size_t Bits>
using Signed = ap_int<Bits>;
#else
template <std::size_t Bits>
using Signed = std::conditional_t<(Bits > 32), std::int64_t, std::int32_t>;
#endif

// A product of integers of so many bits.
template <std::size_t A, std::size_t B>
Signed<A + B> multiplied(const Signed<A> &a, const Signed<B> &b) {
#pragma HLS inline
    return static_cast<Signed<A + B>>(static_cast<Signed<A + B>>(a) * static_cast<Signed<A + B>>(b));
}

// -- kernels on floats ----------------------------------------------------------------------------------------------------

// x = powers * ln 2 + rest, of an x between the smallest one of exp and 0.
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

// exp in the middle of each of the parts, 1 / 512 wide, of [0, ln 2], with 26 bits behind the point.
struct ExpTable {
    static constexpr std::size_t rows = 355;
    std::uint32_t of[rows] = {};

    constexpr ExpTable() {
        for (std::size_t k = 0; k < rows; ++k) {
            const double x = (2 * k + 1) / 1024.0;
            double term = 1.0, sum = 1.0;
            for (int n = 1; n < 20; ++n) sum += term *= x / n;
            of[k] = static_cast<std::uint32_t>(sum * (1 << 26) + 0.5);
        }
    }
};

// e to the power of x, with integers that have 26 bits behind the point: a multiplication of floats takes as many
// multipliers as these three together. x = power * ln 2 + middle + rest; the table has exp of the middle.
struct Exp {
    static constexpr float smallest = -104.0f, largest = 88.722831f;

    float operator()(float x) const {
        static constexpr ExpTable table;
#pragma HLS bind_storage variable=table.of type=rom_np impl=lutram
        if (x != x) return x;
        if (x > largest) return std::numeric_limits<float>::infinity();
        if (x < smallest) return 0.0f;
        const std::uint32_t bits = bits_of(x);
        const int shift = static_cast<int>(bits >> 23 & 255u) - 124;
        const Signed<35> significand = (bits & 0x7FFFFFu) | 0x800000u;
        const Signed<35> size = shift > 0 ? significand << shift : significand >> (shift < -31 ? 31 : -shift);
        const Signed<35> fixed = bits >> 31 ? static_cast<Signed<35>>(-size) : size;
        const Signed<18> upper = static_cast<Signed<18>>(fixed >> 16);
        Signed<9> power = static_cast<Signed<9>>((multiplied<18, 16>(upper, 23637) - (1 << 14)) >> 24);
        const Signed<35> whole = static_cast<Signed<35>>((multiplied<9, 35>(power, 11908177887) + (1 << 7)) >> 8);
        Signed<28> rest = static_cast<Signed<28>>(fixed - whole);
        constexpr int ln2 = 46516320;
        if (rest >= ln2) {
            rest -= ln2;
            power += 1;
        }
        const Signed<28> middle = table.of[static_cast<std::size_t>(rest >> 17)];
        const Signed<18> behind = static_cast<Signed<18>>((rest & 0x1FFFF) - (1 << 16)), half = behind >> 7;
        const Signed<18> series = behind + static_cast<Signed<18>>((multiplied<11, 11>(half, half) + (1 << 12)) >> 13);
        const Signed<27> factor = middle >> 1;
        const Signed<28> more = static_cast<Signed<28>>((multiplied<27, 18>(factor, series) + (1 << 24)) >> 25);
        const std::uint32_t made = static_cast<std::uint32_t>(middle + more);
        const unsigned less = power < -126 ? static_cast<unsigned>(-126 - power) : 0u, last = 3 + less;
        const std::uint32_t rounded = (made + (1u << (last - 1))) >> last;
        return float_of(rounded + (static_cast<std::uint32_t>(power < -126 ? 0 : power + 126) << 23));
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
// The nearest whole number, the even one of two: the sum with 2^23, or of double with 2^52, has no bits behind the point.
struct Rint {
    template <class T>
    T operator()(T x) const {
        const T large = T(1ull << (std::numeric_limits<T>::digits - 1)), size = std::fabs(x);
        return size < large ? std::copysign((size + large) - large, x) : x;
    }
};

// -- kernels on tiles -----------------------------------------------------------------------------------------------------

// A tile of one value.
template <class Out, class X>
auto full(const X &value) {
    const auto kept = static_cast<typename Out::Element>(value);
    return computed<typename Out::Element, typename Out::Sizes_>([kept](std::size_t, std::size_t) { return kept; });
}

struct Same {
    template <class T>
    T operator()(const T &x) const {
        return x;
    }
};

// A tile of another element type.
template <class Out, class X>
auto convert_tile(const X &x) {
    return map<Out>(Same(), x);
}

// A tile of another shape with the same elements in the same order.
template <class Out, class X>
auto reshape(const X &x) {
    using In = typename X::Sizes_;
    return computed<typename Out::Element, typename Out::Sizes_>([&x](std::size_t row, std::size_t column) {
        const std::size_t at = row * Out::Sizes_::columns + column;
        return x(at / In::columns, at % In::columns);
    });
}

// The first row of the matrix of an operand that makes matrix `number` of a batch. Axes of size 1, or that it lacks,
// repeat.
template <class Out, class In>
std::size_t matrix_of(std::size_t number) {
    std::size_t at = 0;
    for (std::size_t back = 3; back <= Out::rank; ++back) {
        const std::size_t size = Out::size(Out::rank - back);
        if (back <= In::rank && In::size(In::rank - back) != 1)
            at += number % size * (In::stride(In::rank - back) / In::columns);
        number /= size;
    }
    return at;
}

constexpr std::size_t ceil_divided(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

// Cycles between two steps of a loop that adds to Count sums in turn: a sum is read, added to and written.
template <class T>
constexpr std::size_t sum_interval(std::size_t count) {
    return ceil_divided((std::is_floating_point<T>::value ? FLOAT_ADD : 0) + 2, count);
}

// Words of sums between two additions to one of them. A product of one word of a stream becomes registers, and of these
// HLS cannot tell that a step adds to others than the one before.
constexpr std::size_t words_in_turn(std::size_t sums, std::size_t at_once) { return sums <= 64 ? 1 : sums / at_once; }

// Cycles between two steps of a product. Sums of integers that are all added to in each step are registers, of which each
// has an adder of its own.
template <class T>
constexpr std::size_t product_interval(std::size_t turns) {
    return std::is_integral<T>::value && turns == 1 ? 1 : sum_interval<T>(turns);
}

// Bits of a signed integer that has every value of an element of X, a tile, an expression of tiles or an element type.
template <class X>
struct SignedBits {
    static constexpr std::size_t value = bits_of_element<X> + std::is_unsigned<X>::value;
};
template <>
struct SignedBits<u4> {
    static constexpr std::size_t value = 5;
};
template <class T, std::size_t... Sizes>
struct SignedBits<Tile<T, Sizes...>> : SignedBits<T> {};
template <class T, class Sizes, class Function>
struct SignedBits<Computed<T, Sizes, Function>> : SignedBits<T> {};
template <class T, class Sizes, class X>
struct SignedBits<Computed<T, Sizes, Each<T, Same, X>>> {
    static constexpr std::size_t own = SignedBits<T>::value, of = SignedBits<X>::value, value = of < own ? of : own;
};
template <std::size_t Own, class A, class B>
struct SignedBitsOfSum {
    static constexpr std::size_t a = SignedBits<A>::value, b = SignedBits<B>::value, most = (a > b ? a : b) + 1;
    static constexpr std::size_t value = most < Own ? most : Own;
};
template <class T, class Sizes, class A, class B>
struct SignedBits<Computed<T, Sizes, Pairs<T, Sizes, Add, A, B>>> : SignedBitsOfSum<SignedBits<T>::value, A, B> {};
template <class T, class Sizes, class A, class B>
struct SignedBits<Computed<T, Sizes, Pairs<T, Sizes, Sub, A, B>>> : SignedBitsOfSum<SignedBits<T>::value, A, B> {};

// An operand of a multiplication of integers, in the bits that its values have.
template <std::size_t Bits, class X>
Signed<Bits> narrowed(const X &x) {
    if constexpr (IsNibble<X>::value) return static_cast<Signed<Bits>>(static_cast<int>(x));
    else return static_cast<Signed<Bits>>(x);
}

// The sums of the products of two numbers with a third one, over the steps of a cycle, by one multiplication for each
// step: `high` stands above `low` in the wide operand, so far that both sums have a field of their own. They are added up
// as a chain of multipliers does, and taken apart once: what is above the lower field takes its sign back.
template <std::size_t Bits, std::size_t OfShared>
class TwoProducts {
    static constexpr std::size_t wide = 27, field = wide - Bits - 1, whole = 48;
    static_assert(OfShared <= 18, "a multiplier of 27 x 18 bits, with a sum of 48");
    // The least operand is that of the least two numbers, which has a bit more than both fields.
    static_assert((std::int64_t(1) << (Bits - 1)) * ((std::int64_t(1) << field) + 1) <= std::int64_t(1) << (wide - 1), "");
    Signed<whole> sum = 0;

public:
    // The most steps with which the lower sum stays in its field.
    static constexpr std::size_t most = ((std::size_t(1) << (field - 1)) - 1) >> (Bits - 1 + OfShared - 1);

    void add(const Signed<Bits> &of_low, const Signed<Bits> &of_high, const Signed<OfShared> &shared) {
        using Made = Signed<wide + OfShared>;
        const Signed<wide> both = static_cast<Signed<wide>>(of_high) * (std::int32_t(1) << field) + of_low;
        sum += static_cast<Made>(static_cast<Made>(both) * static_cast<Made>(shared));
    }
    std::int32_t low() const {
        constexpr std::int64_t above = std::int64_t(1) << field;
        const std::int64_t rest = static_cast<std::int64_t>(sum) & (above - 1);
        return static_cast<std::int32_t>(rest >> (field - 1) ? rest - above : rest);
    }
    std::int32_t high() const {
        const std::int64_t whole_sum = static_cast<std::int64_t>(sum);
        return static_cast<std::int32_t>((whole_sum >> field) + (whole_sum >> (field - 1) & 1));
    }
};
// Whether two numbers of so many bits share the multiplications of so many steps (`TwoProducts`), with sums of 32 bits.
template <std::size_t Bits, std::size_t OfShared, std::size_t Steps>
constexpr bool shares_multiplication() {
    if constexpr (Bits <= 4 && OfShared <= 12) return Steps <= TwoProducts<Bits, OfShared>::most;
    else return false;
}

// A product of integers that takes no multiplier.
template <std::size_t Bits, class A, class B>
Signed<Bits> multiplied_in_fabric(const A &a, const B &b) {
#pragma HLS inline
    const Signed<Bits> made = a * b;
#pragma HLS bind_op variable=made op=mul impl=fabric
    return made;
}

// Adds the products of elements of a column and of a row, number k of the sum, to the sums of a word. The sums begin with
// the first product, or go on from what they are. Fabric: the last columns of the word, whose products are in LUTs.
// OfColumn, OfRow: bits of the elements, if these are integers. Steps: of each sum of integers that are added up first;
// column(y, s) and row(x, s) are the elements of step k + s.
template <class W, bool Begin, std::size_t Fabric, std::size_t OfColumn, std::size_t OfRow, std::size_t Steps, class Out,
          class Column, class Row>
void add_products(Out &out, std::size_t i, std::size_t j, std::size_t k, Column column, Row row) {
    using T = typename Out::Element;
    constexpr bool narrow = std::is_integral<T>::value && OfColumn + OfRow <= 32;
    constexpr bool shared = narrow && shares_multiplication<OfRow, OfColumn, Steps>() && W::columns % 2 == 0;
    constexpr std::size_t multiplied = W::columns - (narrow ? Fabric : 0), pairs = shared ? multiplied : 0;
    const auto add = [&](T &sum, T made) { sum = Add()(Begin && k == 0 ? T(0) : sum, made); };
    for (std::size_t y = 0; y < W::rows; ++y) {
#pragma HLS unroll
        if constexpr (shared) {
            for (std::size_t x = 0; x < pairs; x += 2) {
#pragma HLS unroll
                TwoProducts<OfRow, OfColumn> made;
                for (std::size_t s = 0; s < Steps; ++s) {
#pragma HLS unroll
                    made.add(narrowed<OfRow>(row(x, s)), narrowed<OfRow>(row(x + 1, s)),
                             narrowed<OfColumn>(column(y, s)));
                }
                add(out(i + y, j + x), static_cast<T>(made.low()));
                add(out(i + y, j + x + 1), static_cast<T>(made.high()));
            }
        }
        for (std::size_t x = pairs; x < multiplied; ++x) {
#pragma HLS unroll
            if constexpr (narrow) {
                T sum = 0;
                for (std::size_t s = 0; s < Steps; ++s) {
#pragma HLS unroll
                    const Signed<OfColumn + OfRow> made = narrowed<OfColumn>(column(y, s)) * narrowed<OfRow>(row(x, s));
                    sum += static_cast<T>(made);
                }
                add(out(i + y, j + x), sum);
            } else {
                T sum = Mul()(static_cast<T>(column(y, 0)), static_cast<T>(row(x, 0)));
                for (std::size_t s = 1; s < Steps; ++s) {
#pragma HLS unroll
                    sum = Add()(sum, Mul()(static_cast<T>(column(y, s)), static_cast<T>(row(x, s))));
                }
                add(out(i + y, j + x), sum);
            }
        }
        if constexpr (multiplied < W::columns) {
            for (std::size_t x = multiplied; x < W::columns; ++x) {
#pragma HLS unroll
                T sum = 0;
                for (std::size_t s = 0; s < Steps; ++s) {
#pragma HLS unroll
                    const auto left = narrowed<OfColumn>(column(y, s));
                    const auto right = narrowed<OfRow>(row(x, s));
                    sum += static_cast<T>(multiplied_in_fabric<OfColumn + OfRow>(left, right));
                }
                add(out(i + y, j + x), sum);
            }
        }
    }
}

// The product of two matrices, or of each two of a batch; the sum runs over k in order. W: the sums that are added to in a
// cycle. Begin: false to add the product to what the result is. Fabric: as for `add_products`.
template <class W, bool Begin = true, std::size_t Fabric = 0, class Out, class A, class B>
void matmul(Out &out, const A &a, const B &b) {
    using T = typename Out::Element;
    using Sizes = typename Out::Sizes_;
    constexpr std::size_t rows = Sizes::size(Sizes::rank - 2), columns = Sizes::columns;
    constexpr std::size_t depth = A::Sizes_::columns, batch = Sizes::count / (rows * columns);
    constexpr std::size_t turns = words_in_turn(rows * columns, W::count), interval = product_interval<T>(turns);
    for (std::size_t n = 0; n < batch; ++n) {
        const std::size_t at_a = matrix_of<Sizes, typename A::Sizes_>(n), at_b = matrix_of<Sizes, typename B::Sizes_>(n);
        for (std::size_t k = 0; k < depth; ++k)
            for (std::size_t i = 0; i < rows; i += W::rows)
                for (std::size_t j = 0; j < columns; j += W::columns) {
#pragma HLS pipeline II=interval style=flp
#pragma HLS dependence variable=out.v type=inter direction=raw distance=turns dependent=true
                    add_products<W, Begin, Fabric, SignedBits<A>::value, SignedBits<B>::value, 1>(
                        out, n * rows + i, j, k, [&](std::size_t y, std::size_t) { return a(at_a + i + y, k); },
                        [&](std::size_t x, std::size_t) { return b(at_b + k, j + x); });
                }
    }
}

// The product of a matrix and one that comes over a stream in words Word, row by row: each step of the sum takes a row.
// Steps: of all sums in a cycle, which divide the rows of a word.
template <class W, class Word, bool Begin = true, std::size_t Fabric = 0, std::size_t Steps = 1, class Out, class A,
          class T, std::size_t N>
void matmul_from(Out &out, const A &a, hls::stream<hls::vector<T, N>> &stream) {
    using Sizes = typename Out::Sizes_;
    constexpr std::size_t rows = Sizes::rows, columns = Sizes::columns, depth = A::Sizes_::columns;
    constexpr std::size_t turns = words_in_turn(rows * columns, W::count);
    constexpr std::size_t interval = product_interval<typename Out::Element>(turns);
    Tile<T, Word::rows, columns> row;
#pragma HLS array_partition variable=row.v dim=0 complete
    static_assert(Steps == 1 || turns == 1, "several steps in a cycle are those of all sums");
    // The products of these steps are added up from multiplier to multiplier.
#pragma HLS expression_balance off
    for (std::size_t k = 0; k < depth; k += Steps)
        for (std::size_t i = 0; i < rows; i += W::rows)
            for (std::size_t j = 0; j < columns; j += W::columns) {
#pragma HLS pipeline II=interval style=flp
#pragma HLS dependence variable=out.v type=inter direction=raw distance=turns dependent=true
                if (i == 0 && k % Word::rows == 0 && j % Word::columns == 0) {
                    const hls::vector<T, N> word = stream.read();
                    for (std::size_t e = 0; e < N; ++e) {
#pragma HLS unroll
                        row(e / Word::columns, j + e % Word::columns) = word[e];
                    }
                }
                add_products<W, Begin, Fabric, SignedBits<A>::value, SignedBits<T>::value, Steps>(
                    out, i, j, k, [&](std::size_t y, std::size_t s) { return a(i + y, k + s); },
                    [&](std::size_t x, std::size_t s) { return row(k % Word::rows + s, j + x); });
            }
}

// Where an element of a result is in an operand, whose axis Axis of the result and the ones behind it are Axes.
template <class Out, class In, std::size_t Axis, std::size_t First, std::size_t... Axes>
TilePlace turned(std::size_t row, std::size_t column) {
    std::size_t index = column;
    if constexpr (Axis + 1 < Out::rank) {
        constexpr std::size_t below = Out::stride(Axis) / Out::columns, size = Out::size(Axis);
        index = row / below;
        if constexpr (Axis > 0) index %= size;
    }
    TilePlace rest = {0, 0};
    if constexpr (sizeof...(Axes) > 0) rest = turned<Out, In, Axis + 1, Axes...>(row, column);
    if constexpr (First + 1 == In::rank) return {rest.row, index};
    else return {rest.row + index * (In::stride(First) / In::columns), rest.column};
}

// Axis k of the result is axis Axes[k] of the operand.
template <class Out, std::size_t... Axes, class X>
auto transpose(const X &x) {
    using In = typename X::Sizes_;
    return computed<typename Out::Element, typename Out::Sizes_>([&x](std::size_t row, std::size_t column) {
        const TilePlace at = turned<typename Out::Sizes_, In, 0, Axes...>(row, column);
        return x(at.row, at.column);
    });
}

// The values of a word, combined pair by pair: neighbours first, then neighbours of these. N: a power of 2. From: the first.
template <std::size_t N, class T, class Op, class Value, std::size_t From = 0>
T combined(Op op, Value value) {
    if constexpr (N == 1) {
        return static_cast<T>(value(From));
    } else {
        const T first = combined<N / 2, T, Op, Value, From>(op, value);
        return op(first, combined<N / 2, T, Op, Value, From + N / 2>(op, value));
    }
}

// The product of a matrix and the transpose of one that comes over a stream in words Word of whole rows: these are columns
// of what is multiplied, so a word is enough for some sums, of integers in any order. W: the sums of a cycle. Begin: as
// for `matmul`. Steps: of each sum in a cycle, a power of 2.
template <class W, class Word, std::size_t Steps, bool Begin, class Out, class A, class T, std::size_t N>
void matmul_turned_from(Out &out, const A &a, hls::stream<hls::vector<T, N>> &stream) {
    using Sum = typename Out::Element;
    using Sizes = typename Out::Sizes_;
    constexpr std::size_t rows = Sizes::rows, columns = Sizes::columns, depth = A::Sizes_::columns;
    constexpr std::size_t of_row = SignedBits<A>::value, of_column = SignedBits<T>::value;
    static_assert(Word::columns == depth && std::is_integral<Sum>::value, "whole rows of integers");
    hls::vector<T, N> word;
    Sum sums[W::rows][W::columns];
#pragma HLS array_partition variable=sums dim=0 complete
    for (std::size_t j = 0; j < columns; j += W::columns)
        for (std::size_t i = 0; i < rows; i += W::rows)
            for (std::size_t k = 0; k < depth; k += Steps) {
#pragma HLS pipeline II=1 style=flp
#pragma HLS dependence variable=out.v type=inter dependent=false
                if (i == 0 && k == 0 && j % Word::rows == 0) word = stream.read();
                for (std::size_t y = 0; y < W::rows; ++y) {
#pragma HLS unroll
                    for (std::size_t x = 0; x < W::columns; ++x) {
#pragma HLS unroll
                        const Sum made = combined<Steps, Sum>(Add(), [&](std::size_t s) {
                            const auto left = a(i + y, k + s);
                            const auto right = word[(j % Word::rows + x) * depth + k + s];
                            if constexpr (of_row + of_column > 32) {
                                return Mul()(static_cast<Sum>(left), static_cast<Sum>(right));
                            } else {
                                const Signed<of_row + of_column> made =
                                    narrowed<of_row>(left) * narrowed<of_column>(right);
                                return static_cast<Sum>(made);
                            }
                        });
                        sums[y][x] = k == 0 ? made : Add()(sums[y][x], made);
                        if (k + Steps == depth)
                            out(i + y, j + x) = Begin ? sums[y][x] : Add()(out(i + y, j + x), sums[y][x]);
                    }
                }
            }
}

constexpr std::size_t levels_of(std::size_t parts) { return parts ? 1 + levels_of(parts / 2) : 0; }

// Of each of Count results Parts values, combined pair by pair: neighbours first, then neighbours of these, what is left
// over last. A pair is combined as soon as it is there, so only one value of each level waits. What waits at a level goes
// to the next one only: no sum is added to, so a part is taken in each cycle. value(part, result); At: results in a cycle.
template <std::size_t Parts, std::size_t Count, std::size_t At, class T, class Op, class Value, class Result>
void combine(Op op, Value value, Result result) {
    constexpr std::size_t levels = levels_of(Parts);
    T waiting[levels][Count];
#pragma HLS array_partition variable=waiting dim=1 complete
#pragma HLS array_partition variable=waiting dim=2 cyclic factor=At
    for (std::size_t part = 0; part < Parts; ++part)
        for (std::size_t first = 0; first < Count; first += At) {
#pragma HLS pipeline II=1 style=flp
            for (std::size_t y = 0; y < At; ++y) {
#pragma HLS unroll
                T made = value(part, first + y);
                bool open = true;
                for (std::size_t level = 0; level < levels; ++level) {
#pragma HLS unroll
                    T &other = waiting[level][first + y];
                    const bool pair = part >> level & 1;
                    if (open && pair) made = op(other, made);
                    if (open && !pair) other = made;
                    open = open && pair;
                }
            }
        }
    for (std::size_t first = 0; first < Count; first += At) {
#pragma HLS pipeline II=1 style=flp
        for (std::size_t y = 0; y < At; ++y) {
#pragma HLS unroll
            T made = T();
            bool any = false;
            for (std::size_t level = 0; level < levels; ++level) {
#pragma HLS unroll
                if (Parts >> level & 1) {
                    made = any ? op(waiting[level][first + y], made) : waiting[level][first + y];
                    any = true;
                }
            }
            if (std::is_same<Op, Add>::value) made = op(T(0), made);  // a sum of -0 is 0
            result(first + y, made);
        }
    }
}

// Combines the elements of each row; W::columns is a power of 2. value(row, column); result(row, what).
template <class W, class Sizes, class T, class Op, class Value, class Result>
void combine_rows(Op op, Value value, Result result) {
    combine<Sizes::columns / W::columns, Sizes::rows, W::rows, T>(
        op,
        [&](std::size_t part, std::size_t row) {
            return combined<W::columns, T>(op, [&](std::size_t k) { return value(row, part * W::columns + k); });
        },
        result);
}

// Reduction along an axis: neighbours first. W: the elements in a cycle.
template <class W, std::size_t Axis, class T, class Op, class X, class Result>
void reduce(Op op, const X &x, Result result) {
    using In = typename X::Sizes_;
    constexpr std::size_t inner = In::stride(Axis), length = In::size(Axis), outer = In::count / (inner * length);
    if constexpr (Axis + 1 == In::rank) {
        combine_rows<W, In, T>(op, [&](std::size_t row, std::size_t column) { return static_cast<T>(x(row, column)); },
                               result);
    } else {
        for (std::size_t o = 0; o < outer; ++o)
            combine<length, inner, W::columns, T>(
                op,
                [&](std::size_t k, std::size_t i) {
                    const std::size_t row = (o * length + k) * (inner / In::columns) + i / In::columns;
                    return static_cast<T>(x(row, i % In::columns));
                },
                [&](std::size_t i, T all) { result(o * inner + i, all); });
    }
}
template <class W, std::size_t Axis, class Op, class Out, class X>
void reduce_tile(Out &out, Op op, const X &x) {
    using T = typename Out::Element;
    constexpr std::size_t n = Out::Sizes_::columns;
    reduce<W, Axis, T>(op, x, [&](std::size_t k, T all) { out(k / n, k % n) = all; });
}
template <class W, std::size_t Axis, class T, class Op, class X>
T reduce_all(Op op, const X &x) {
    T out = T();
    reduce<W, Axis, T>(op, x, [&](std::size_t, T all) { out = all; });
    return out;
}

// The larger elements of rows first, then exp and its sums; the quotient is taken where the result is read.
template <class W, class X>
void softmax(X &out, const X &x) {
    using Sizes = typename X::Sizes_;
    float most[Sizes::rows], sum[Sizes::rows];
#pragma HLS array_partition variable=most cyclic factor=W::rows
#pragma HLS array_partition variable=sum cyclic factor=W::rows
    combine_rows<W, Sizes, float>(
        Larger(), [&](std::size_t row, std::size_t column) { return x(row, column); },
        [&](std::size_t row, float all) { most[row] = all; });
    combine_rows<W, Sizes, float>(
        Add(),
        [&](std::size_t row, std::size_t column) {
            return out(row, column) = Exp()(x(row, column) - most[row]);
        },
        [&](std::size_t row, float all) { sum[row] = all; });
    each_word<W, Sizes>([&](std::size_t row, std::size_t column) { out(row, column) = out(row, column) / sum[row]; });
}

// x where first <= column - row <= last, and minus infinity elsewhere.
template <class X>
auto banded(const X &x, std::int64_t first, std::int64_t last) {
    using T = typename X::Element;
    constexpr std::size_t rows = X::Sizes_::size(X::Sizes_::rank - 2);
    return computed<T, typename X::Sizes_>([&x, first, last](std::size_t row, std::size_t column) {
        const std::int64_t diagonal = static_cast<std::int64_t>(column) - static_cast<std::int64_t>(row % rows);
        return diagonal >= first && diagonal <= last ? x(row, column) : -std::numeric_limits<T>::infinity();
    });
}

// x with the row at an index replaced; an index of no row changes nothing.
template <class X, class Row>
auto replace_row(const X &x, const Row &row, std::int64_t index) {
    return computed<typename X::Element, typename X::Sizes_>([&x, &row, index](std::size_t at, std::size_t column) {
        return static_cast<std::int64_t>(at) == index ? row(0, column) : x(at, column);
    });
}

template <class W, class X>
void layernorm(X &out, const X &x, typename X::Element eps) {
    using T = typename X::Element;
    using Sizes = typename X::Sizes_;
    T mean[Sizes::rows], deviation[Sizes::rows];
#pragma HLS array_partition variable=mean cyclic factor=W::rows
#pragma HLS array_partition variable=deviation cyclic factor=W::rows
    combine_rows<W, Sizes, T>(
        Add(), [&](std::size_t row, std::size_t column) { return x(row, column); },
        [&](std::size_t row, T all) { mean[row] = all / T(Sizes::columns); });
    combine_rows<W, Sizes, T>(
        Add(),
        [&](std::size_t row, std::size_t column) {
            const T centred = x(row, column) - mean[row];
            out(row, column) = centred;
            return centred * centred;
        },
        [&](std::size_t row, T all) { deviation[row] = std::sqrt(all / T(Sizes::columns) + eps); });
    each_word<W, Sizes>(
        [&](std::size_t row, std::size_t column) { out(row, column) = out(row, column) / deviation[row]; });
}

template <class W, class X>
void rmsnorm(X &out, const X &x, typename X::Element eps) {
    using T = typename X::Element;
    using Sizes = typename X::Sizes_;
    T size[Sizes::rows];
#pragma HLS array_partition variable=size cyclic factor=W::rows
    combine_rows<W, Sizes, T>(
        Add(), [&](std::size_t row, std::size_t column) { return x(row, column) * x(row, column); },
        [&](std::size_t row, T all) { size[row] = std::sqrt(all / T(Sizes::columns) + eps); });
    each_word<W, Sizes>([&](std::size_t row, std::size_t column) { out(row, column) = x(row, column) / size[row]; });
}

// Tiles one after the other along an axis. at: where the first goes, in elements of that axis.
template <class W, std::size_t Axis, class Out, class X>
void place_tile(Out &out, const X &x, std::size_t at) {
    using In = typename X::Sizes_;
    using Whole = typename Out::Sizes_;
    constexpr std::size_t inner = In::stride(Axis), length = In::size(Axis);
    each_word<W, In>([&](std::size_t row, std::size_t column) {
        const std::size_t from = row * In::columns + column, o = from / (length * inner), rest = from % (length * inner);
        const std::size_t to = o * Whole::size(Axis) * inner + at * inner + rest;
        out(to / Whole::columns, to % Whole::columns) = element_as<typename Out::Element>(x(row, column));
    });
}

// Store into a part of a tile. Part: sizes of the part; the value repeats where it has fewer.
template <class W, class Part, int... Steps, class Target, class X, class... Starts>
void store_part(Target &target, const X &value, Starts... starts) {
    using T = typename Target::Element;
    using Sizes = typename Target::Sizes_;
    each_word<W, Part>([&](std::size_t row, std::size_t column) {
        const TilePlace at = place_of<Part, Sizes, Sizes, Steps...>(row, column, starts...);
        target(at.row, at.column) = element_as<T>(element<Part>(value, row, column));
    });
}

// -- functions of libraries -------------------------------------------------------------------------------------------------

// A tile whose matrices lie by columns. X: a tile with a row for each of these columns. Sizes: as it is read. OfRows: of a
// matrix.
template <class X, class Sizes, std::size_t OfRows>
struct ByColumns : Shaped {
    using Element = typename X::Element;
    using Sizes_ = Sizes;
    static constexpr std::size_t rows = OfRows, columns = Sizes::columns;
    X &stored;
    auto &operator()(std::size_t row, std::size_t column) const {
        return stored(row / rows * columns + column, row % rows);
    }
};

// A tile that lies in blocks, by rows of blocks; the elements of a block lie by rows. X: a tile with a row for each block.
// Sizes: as it is read. OfRows, OfColumns: of a block.
template <class X, class Sizes, std::size_t OfRows, std::size_t OfColumns>
struct ByBlocks : Shaped {
    using Element = typename X::Element;
    using Sizes_ = Sizes;
    static constexpr std::size_t rows = OfRows, columns = OfColumns, across = Sizes::columns / OfColumns;
    static_assert(Sizes::rows % rows == 0 && Sizes::columns % columns == 0, "whole blocks");
    X &stored;
    // Element (i, j) from the first one of a block on. block_row, block_column: of blocks.
    auto &from(std::size_t block_row, std::size_t block_column, std::size_t i, std::size_t j) const {
        const std::size_t block = (block_row + i / rows) * across + block_column + j / columns;
        return stored(block, i % rows * columns + j % columns);
    }
};
// Copies a tile to one that lies in blocks. W: elements in a cycle: of a row of a block, or rows of blocks beside each other.
template <class W, class Out, class X>
void assign_blocks(const Out &out, const X &x) {
    using Sizes = typename Out::Sizes_;
    constexpr std::size_t across = W::columns > Out::columns ? W::columns / Out::columns : 1;
    for (std::size_t row = 0; row < Sizes::rows / Out::rows; ++row)
        for (std::size_t i = 0; i < Out::rows; i += W::rows)
            for (std::size_t column = 0; column < Out::across; column += across)
                for (std::size_t j = 0; j < Out::columns; j += W::columns) {
#pragma HLS pipeline II=1 style=flp
                    for (std::size_t n = 0; n < W::count; ++n) {
#pragma HLS unroll
                        const std::size_t down = n / W::columns, right = n % W::columns;
                        const std::size_t block = row * Out::across + column + right / Out::columns;
                        out.stored(block, (i + down) * Out::columns + j + right % Out::columns) =
                            x(row * Out::rows + i + down, column * Out::columns + j + right);
                    }
                }
}

// How a tile lies. line: its elements that lie behind each other, of a row or a column of it or of a block. stride: elements
// from one row to the next one; from one column, or row of blocks, of those that lie so.
struct Rows {};
struct Columns {};
template <std::size_t OfRows, std::size_t OfColumns>
struct Blocks {};
template <class X>
struct Lies {
    using Layout = Rows;
    static constexpr std::size_t line = X::Sizes_::columns, stride = line;
};
template <class X, class Sizes, std::size_t OfRows>
struct Lies<ByColumns<X, Sizes, OfRows>> {
    using Layout = Columns;
    static constexpr std::size_t line = OfRows, stride = line;
};
template <class X, class Sizes, std::size_t OfRows, std::size_t OfColumns>
struct Lies<ByBlocks<X, Sizes, OfRows, OfColumns>> {
    using Layout = Blocks<OfRows, OfColumns>;
    static constexpr std::size_t line = OfColumns, stride = OfRows * Sizes::columns;
};
// Whether an operand lies so, in whole vectors. Numbers do.
template <class X, class Layout, std::size_t Vector>
constexpr bool lies() {
    if constexpr (IsShaped<X>::value)
        return std::is_same<typename Lies<X>::Layout, Layout>::value && Lies<X>::line % Vector == 0;
    else return true;
}

// Element (i, j) from a row and a column on, which begin a block.
template <class X>
auto &element_from(X &x, std::size_t row, std::size_t column, std::size_t i, std::size_t j) {
    return x(row + i, column + j);
}
template <class X, class Sizes, std::size_t OfRows, std::size_t OfColumns>
auto &element_from(const ByBlocks<X, Sizes, OfRows, OfColumns> &x, std::size_t row, std::size_t column, std::size_t i,
                   std::size_t j) {
    return x.from(row / OfRows, column / OfColumns, i, j);
}

// What a function of a library takes in a call: so many rows and columns of an operand, or of the result, from a row and a
// column on. Its elements are (row, column); data() is where the first one lies.
template <class X, std::size_t Rows, std::size_t Columns>
struct CallTile {
    using Element = typename X::Element;
    static constexpr std::size_t rows = Rows, columns = Columns, stride = Lies<std::remove_const_t<X>>::stride;
    X &whole;
    std::size_t row, column;
    auto &operator()(std::size_t i, std::size_t j) const { return element_from(whole, row, column, i, j); }
    auto *data() const { return &(*this)(0, 0); }
};
template <std::size_t Rows, std::size_t Columns, class X>
auto call_tile(X &whole, std::size_t row, std::size_t column) {
    if constexpr (!IsShaped<std::remove_const_t<X>>::value) return whole;
    else if constexpr (X::Sizes_::rank == 1) return CallTile<X, 1, Columns>{whole, 0, column};
    else return CallTile<X, Rows, Columns>{whole, row, column};
}

// -- memory off the chip ----------------------------------------------------------------------------------------------------

// Calls body(row, column, place, word) for each word of a port in a part of a shard, one in a cycle, in the order of
// words W of the part. place: of its first element in the word W. word: its number in the tensor.
template <class W, class Part, int... Steps, class Shard, class Body, class... Starts>
void each_port_word(const Shard &shard, Body body, Starts... starts) {
    using Whole = typename Shard::Whole_;
    for (std::size_t row = 0; row < Part::rows; row += W::rows)
        for (std::size_t column = 0; column < Part::columns; column += W::columns)
            for (std::size_t y = 0; y < W::rows; ++y)
                for (std::size_t x = 0; x < W::columns; x += Shard::packed) {
#pragma HLS pipeline II=1 style=flp
                    const TilePlace at =
                        place_of<Part, typename Shard::Sizes_, Whole, Steps...>(row + y, column + x, starts...);
                    const std::size_t word = at.row * (Whole::columns / Shard::packed) + at.column / Shard::packed;
                    body(row + y, column + x, y * W::columns + x, shard.offset / Shard::packed + word);
                }
}
template <class Part>
using RowOf = Word<1, Part::columns>;

// Element k of what a port moves.
template <class T>
const T &of_word(const T &word, std::size_t) {
    return word;
}
template <class T, std::size_t N>
const T &of_word(const hls::vector<T, N> &word, std::size_t k) {
    return word[k];
}
template <class T, std::size_t N>
T of_word(const Nibbles<T, N> &word, std::size_t k) {
    return word.get(k);
}
template <class T>
void set_of_word(T &word, std::size_t, const T &value) {
    word = value;
}
template <class T, std::size_t N>
void set_of_word(hls::vector<T, N> &word, std::size_t k, const T &value) {
    word[k] = value;
}
template <class T, std::size_t N>
void set_of_word(Nibbles<T, N> &word, std::size_t k, const T &value) {
    word.set(k, value);
}

// Loads a part of a shard into a tile.
template <class Out, int... Steps, class Shard, class... Starts>
void load(Out &out, const Shard &shard, Starts... starts) {
    using Part = typename Out::Sizes_;
    each_port_word<RowOf<Part>, Part, Steps...>(
        shard,
        [&](std::size_t row, std::size_t column, std::size_t, std::size_t number) {
            const auto &word = shard.read(number);
            for (std::size_t k = 0; k < Shard::packed; ++k) {
#pragma HLS unroll
                out(row, column + k) = static_cast<typename Out::Element>(of_word(word, k));
            }
        },
        starts...);
}

// Stores a value into a part of a shard.
template <class Part, int... Steps, class Shard, class X, class... Starts>
void save(const Shard &shard, const X &value, Starts... starts) {
    using T = typename Shard::Element;
    each_port_word<RowOf<Part>, Part, Steps...>(
        shard,
        [&](std::size_t row, std::size_t column, std::size_t, std::size_t number) {
            typename Shard::Access made;
            for (std::size_t k = 0; k < Shard::packed; ++k) {
#pragma HLS unroll
                set_of_word(made, k, element_as<T>(element<Part>(value, row, column + k)));
            }
            shard.write(number, made);
        },
        starts...);
}

// Writes a part of a shard to a stream: its tiles are not kept.
template <class W, class Part, int... Steps, class T, std::size_t N, class Shard, class... Starts>
void send(hls::stream<hls::vector<T, N>> &stream, const Shard &shard, Starts... starts) {
    hls::vector<T, N> made;
    each_port_word<W, Part, Steps...>(
        shard,
        [&](std::size_t, std::size_t, std::size_t place, std::size_t number) {
            const auto &word = shard.read(number);
            for (std::size_t k = 0; k < Shard::packed; ++k) {
#pragma HLS unroll
                made[place + k] = of_word(word, k);
            }
            if (place + Shard::packed == N) stream.write(made);
        },
        starts...);
}

// Stores a tile of a stream into a part of a shard as it comes.
template <class W, class Part, int... Steps, class T, std::size_t N, class Shard, class... Starts>
void receive(hls::stream<hls::vector<T, N>> &stream, const Shard &shard, Starts... starts) {
    hls::vector<T, N> got;
    each_port_word<W, Part, Steps...>(
        shard,
        [&](std::size_t, std::size_t, std::size_t place, std::size_t number) {
            if (place == 0) got = stream.read();
            typename Shard::Access made;
            for (std::size_t k = 0; k < Shard::packed; ++k) {
#pragma HLS unroll
                set_of_word(made, k, got[place + k]);
            }
            shard.write(number, made);
        },
        starts...);
}

// -- memory channels ------------------------------------------------------------------------------------------------------

// A part of a shard in several memory channels that lies in one piece of whole rounds of words moves by one word of each
// channel in a cycle. Where other accesses of the process make its words narrower, it moves word by word.
template <class Shard>
constexpr bool by_rounds = Shard::packed == Shard::turn;

// The number of the first round of words of a part.
template <class Part, int... Steps, class Shard, class... Starts>
std::size_t first_round(const Shard &shard, Starts... starts) {
    using Whole = typename Shard::Whole_;
    const TilePlace at = place_of<Part, typename Shard::Sizes_, Whole, Steps...>(0, 0, starts...);
    use(place_of<Part, typename Shard::Sizes_, Whole, Steps...>(Part::rows - 1, Part::columns - 1, starts...));
    return (shard.offset + at.row * Whole::columns + at.column) / Shard::round;
}

// Calls body(channel, pointer) for each channel.
template <std::size_t Channel = 0, class Port, std::size_t Count, class Body>
void each_channel(const Pointers<Port, Count> &memory, Body body) {
    body(Channel, memory.first);
    if constexpr (Count > 1) each_channel<Channel + 1>(memory.rest, body);
}

// What an iteration of a loop moves between rounds and words of a stream, whole numbers of both, and its interval.
template <std::size_t Elements, std::size_t Interval>
struct Moved {
    static constexpr std::size_t elements = Elements, interval = Interval;
};

template <class W, class Each, class Part, int... Steps, class T, std::size_t N, class Shard, class... Starts>
void send_rounds(hls::stream<hls::vector<T, N>> &stream, const Shard &shard, Starts... starts) {
    if constexpr (!by_rounds<Shard>) {
        send<W, Part, Steps...>(stream, shard, starts...);
    } else {
        constexpr std::size_t interval = Each::interval, rounds = Each::elements / Shard::round;
        constexpr std::size_t words = Each::elements / N;
        const std::size_t first = first_round<Part, Steps...>(shard, starts...);
        hls::vector<T, N> made[words];
#pragma HLS array_partition variable=made complete
        for (std::size_t k = 0; k < Part::count / Each::elements; ++k) {
#pragma HLS pipeline II=interval style=flp
            for (std::size_t y = 0; y < rounds; ++y) {
#pragma HLS unroll
                each_channel(shard.memory, [&](std::size_t channel, const auto *memory) {
                    const auto word = memory[first + k * rounds + y];
                    for (std::size_t x = 0; x < Shard::packed; ++x) {
#pragma HLS unroll
                        const std::size_t at = y * Shard::round + channel * Shard::packed + x;
                        made[at / N][at % N] = of_word(word, x);
                    }
                });
            }
            for (std::size_t y = 0; y < words; ++y) {
#pragma HLS unroll
                stream.write(made[y]);
            }
        }
    }
}

template <class W, class Each, class Part, int... Steps, class T, std::size_t N, class Shard, class... Starts>
void receive_rounds(hls::stream<hls::vector<T, N>> &stream, const Shard &shard, Starts... starts) {
    if constexpr (!by_rounds<Shard>) {
        receive<W, Part, Steps...>(stream, shard, starts...);
    } else {
        constexpr std::size_t interval = Each::interval, rounds = Each::elements / Shard::round;
        constexpr std::size_t words = Each::elements / N;
        const std::size_t first = first_round<Part, Steps...>(shard, starts...);
        hls::vector<T, N> got[words];
#pragma HLS array_partition variable=got complete
        for (std::size_t k = 0; k < Part::count / Each::elements; ++k) {
#pragma HLS pipeline II=interval style=flp
            for (std::size_t y = 0; y < words; ++y) {
#pragma HLS unroll
                got[y] = stream.read();
            }
            for (std::size_t y = 0; y < rounds; ++y) {
#pragma HLS unroll
                each_channel(shard.memory, [&](std::size_t channel, auto *memory) {
                    typename Shard::Access made;
                    for (std::size_t x = 0; x < Shard::packed; ++x) {
#pragma HLS unroll
                        const std::size_t at = y * Shard::round + channel * Shard::packed + x;
                        set_of_word(made, x, got[at / N][at % N]);
                    }
                    memory[first + k * rounds + y] = made;
                });
            }
        }
    }
}

// W: the elements of a round, as a word of the tile.
template <class W, class Out, int... Steps, class Shard, class... Starts>
void load_rounds(Out &out, const Shard &shard, Starts... starts) {
    if constexpr (!by_rounds<Shard>) {
        load<Out, Steps...>(out, shard, starts...);
    } else {
        using Part = typename Out::Sizes_;
        std::size_t round = first_round<Part, Steps...>(shard, starts...);
        for (std::size_t row = 0; row < Part::rows; row += W::rows)
            for (std::size_t column = 0; column < Part::columns; column += W::columns) {
#pragma HLS pipeline II=1 style=flp
                each_channel(shard.memory, [&](std::size_t channel, const auto *memory) {
                    const auto word = memory[round];
                    for (std::size_t x = 0; x < Shard::packed; ++x) {
#pragma HLS unroll
                        const std::size_t at = channel * Shard::packed + x;
                        out(row + at / W::columns, column + at % W::columns) =
                            static_cast<typename Out::Element>(of_word(word, x));
                    }
                });
                ++round;
            }
    }
}

template <class W, class Part, int... Steps, class Shard, class X, class... Starts>
void save_rounds(const Shard &shard, const X &value, Starts... starts) {
    if constexpr (!by_rounds<Shard>) {
        save<Part, Steps...>(shard, value, starts...);
    } else {
        using T = typename Shard::Element;
        std::size_t round = first_round<Part, Steps...>(shard, starts...);
        for (std::size_t row = 0; row < Part::rows; row += W::rows)
            for (std::size_t column = 0; column < Part::columns; column += W::columns) {
#pragma HLS pipeline II=1 style=flp
                each_channel(shard.memory, [&](std::size_t channel, auto *memory) {
                    typename Shard::Access made;
                    for (std::size_t x = 0; x < Shard::packed; ++x) {
#pragma HLS unroll
                        const std::size_t at = channel * Shard::packed + x;
                        const auto value_at = element<Part>(value, row + at / W::columns, column + at % W::columns);
                        set_of_word(made, x, element_as<T>(value_at));
                    }
                    memory[round] = made;
                });
                ++round;
            }
    }
}

// -- ends of streams --------------------------------------------------------------------------------------------------------

// A tile goes over a stream in words, row by row of them.
template <class W, class T, class Out>
void get(hls::stream<T> &stream, Out &out) {
    using Sizes = typename Out::Sizes_;
    for (std::size_t row = 0; row < Sizes::rows; row += W::rows)
        for (std::size_t column = 0; column < Sizes::columns; column += W::columns) {
#pragma HLS pipeline II=1 style=flp
            const T word = stream.read();
            for (std::size_t y = 0; y < W::rows; ++y) {
#pragma HLS unroll
                for (std::size_t x = 0; x < W::columns; ++x) {
#pragma HLS unroll
                    out(row + y, column + x) = static_cast<typename Out::Element>(word[y * W::columns + x]);
                }
            }
        }
}
// Part: the elements of a word that are computed in a cycle.
template <class Part, class W, class T, std::size_t N, class X>
void put(hls::stream<hls::vector<T, N>> &stream, const X &value) {
    using Sizes = typename X::Sizes_;
    hls::vector<T, N> word;
    for (std::size_t row = 0; row < Sizes::rows; row += W::rows)
        for (std::size_t column = 0; column < Sizes::columns; column += W::columns)
            for (std::size_t y = 0; y < W::rows; y += Part::rows)
                for (std::size_t x = 0; x < W::columns; x += Part::columns) {
#pragma HLS pipeline II=1 style=flp
                    for (std::size_t j = 0; j < Part::rows; ++j) {
#pragma HLS unroll
                        for (std::size_t i = 0; i < Part::columns; ++i) {
#pragma HLS unroll
                            word[(y + j) * W::columns + x + i] = element_as<T>(value(row + y + j, column + x + i));
                        }
                    }
                    if (y + Part::rows == W::rows && x + Part::columns == W::columns) stream.write(word);
                }
}
// Moves a tile from a stream to another one as it comes, with the row at an index replaced.
template <class W, class Sizes, class T, std::size_t N, class Row>
void replace_row_from(hls::stream<hls::vector<T, N>> &to, hls::stream<hls::vector<T, N>> &from, const Row &row,
                      std::int64_t index) {
    for (std::size_t at = 0; at < Sizes::rows; at += W::rows)
        for (std::size_t column = 0; column < Sizes::columns; column += W::columns) {
#pragma HLS pipeline II=1 style=flp
            hls::vector<T, N> word = from.read();
            for (std::size_t y = 0; y < W::rows; ++y) {
#pragma HLS unroll
                for (std::size_t x = 0; x < W::columns; ++x) {
#pragma HLS unroll
                    if (static_cast<std::int64_t>(at + y) == index)
                        word[y * W::columns + x] = element_as<T>(row(0, column + x));
                }
            }
            to.write(word);
        }
}
// A single access outside of pipelines is a state of its own, so that it waits for no other stream.
template <class Stream>
auto read(Stream &stream) {
    return stream.read();
}
template <class Stream>
auto read_apart(Stream &stream) {
#pragma HLS inline off
    return stream.read();
}
template <class Stream, class X>
void write(Stream &stream, const X &value) {
    stream.write(value);
}
template <class Stream, class X>
void write_apart(Stream &stream, const X &value) {
#pragma HLS inline off
    stream.write(value);
}
template <class W, class T, class Out>
void get_apart(hls::stream<T> &stream, Out &out) {
#pragma HLS inline off
    get<W>(stream, out);
}
// A tile of one word: Part is all of it.
template <class Part, class W, class T, std::size_t N, class X>
void put_apart(hls::stream<hls::vector<T, N>> &stream, const X &value) {
    hls::vector<T, N> word;
    for (std::size_t k = 0; k < N; ++k) {
#pragma HLS unroll
        word[k] = element_as<T>(value(k / W::columns, k % W::columns));
    }
    write_apart(stream, word);
}

template <class Tile, class W, class Stream, class X>
void put_packed(Stream &stream, const X &value) {
    Tile made;
    assign<W>(made, value);
    stream.write(made);
}

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
