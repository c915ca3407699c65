// A scratchpad buffer that is filled and emptied at a beat a cycle, whatever the shape of a beat.
//
// A word of off-chip memory is 2 rows x 16 columns, a beat to or from an MME 4 x 8. So a buffer is cut into patches of
// 4 x 16 elements, these into 2 x 2 cells of 2 x 8, and cell (i, j) of a patch lies in bank i ^ j of two: then both
// cells of a word, and both of a beat, lie in different banks. A word that is transposed on its way is 16 x 2; where
// that happens, a patch is 16 x 16, has 8 x 8 cells of 2 x 2, and cell (i, j) lies in bank reversed(i) ^ j of eight.
//
// Either way the crossbar between a beat and the banks is an exclusive or of numbers, which is a butterfly.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_PL_BUFFER_H
#define RSN_PL_BUFFER_H

#include "types.h"

#ifdef RSN_CSIM
#include <limits>
#endif

namespace rsn::xnn {

constexpr unsigned plain = 2, turning = 8;  // banks

// Two rows; as a vector, one after the other.
template <unsigned Banks>
using Cell = hls::vector<float, beat_floats / Banks>;

// Cells in a bank of a buffer of so many elements.
constexpr unsigned depth_of(unsigned rows, unsigned cols) { return rows * cols / beat_floats; }

// The bits of a row of cells in reverse order: its lowest bits then decide about whole halves of the banks.
template <unsigned Banks>
constexpr unsigned reversed(unsigned i) {
    static_assert(Banks == plain || Banks == turning, "one bit, or three");
    return Banks == plain ? i : i / 4 | (i & 2) | i % 2 * 4;
}

// Shapes. Cell k of one lies in bank k ^ swap(i, j), in row of cells line(k, i); (i, j) is its first.
template <unsigned Banks>
struct Word2x16 {
    static constexpr unsigned swap(unsigned i, unsigned) { return reversed<Banks>(i); }
    static constexpr unsigned line(unsigned, unsigned i) { return i; }
};
template <unsigned Banks>
struct Word16x2 {  // cell k is in row reversed(k)
    static constexpr unsigned swap(unsigned, unsigned j) { return j; }
    static constexpr unsigned line(unsigned k, unsigned) { return reversed<Banks>(k); }
};
template <unsigned Banks>
struct Beat4x8 {  // i is even; half of the cells are in its row, half in the next
    static constexpr unsigned swap(unsigned i, unsigned j) { return reversed<Banks>(i) ^ j; }
    static constexpr unsigned line(unsigned k, unsigned i) { return i + k / (Banks / 2); }
};
template <unsigned Banks>
struct Beat8x4 {  // of eight banks: i is a multiple of four; two cells are in each of four rows
    static constexpr unsigned swap(unsigned i, unsigned j) { return reversed<Banks>(i) ^ j; }
    static constexpr unsigned line(unsigned k, unsigned i) { return i + reversed<Banks>(k & ~1u); }
};

// Where a shape that begins at (row, col) lies: which cell a bank has, and at which address.
template <template <unsigned> class Shape, unsigned Cols, unsigned Banks>
struct Place {
    static constexpr unsigned width = 16 / Banks;  // of a cell
    const unsigned i, patch, swap;

    Place(unsigned row, unsigned col)
        : i(row / 2 % Banks),
          patch(row / (2 * Banks) * (Cols / 16) + col / 16),
          swap(Shape<Banks>::swap(i, col / width % Banks)) {}

    unsigned cell(unsigned bank) const { return bank ^ swap; }
    unsigned address(unsigned bank, unsigned depth) const {
        return (patch * Banks + Shape<Banks>::line(bank ^ swap, i)) % depth;  // an address has no more bits
    }
};

template <template <unsigned> class Shape, unsigned Cols, unsigned Banks, unsigned Depth>
void get(const Cell<Banks> (&buffer)[Banks][Depth], unsigned row, unsigned col, Cell<Banks> cells[Banks]) {
#pragma HLS INLINE
    const Place<Shape, Cols, Banks> at(row, col);
    Cell<Banks> data[Banks];
#pragma HLS ARRAY_PARTITION variable=data complete
get_banks:
    for (unsigned b = 0; b < Banks; ++b) {
#pragma HLS UNROLL
        data[b] = buffer[b][at.address(b, Depth)];
    }
get_cells:
    for (unsigned k = 0; k < Banks; ++k) {
#pragma HLS UNROLL
        cells[k] = data[at.cell(k)];
    }
}

template <template <unsigned> class Shape, unsigned Cols, unsigned Banks, unsigned Depth>
void put(Cell<Banks> (&buffer)[Banks][Depth], unsigned row, unsigned col, const Cell<Banks> cells[Banks]) {
#pragma HLS INLINE
    const Place<Shape, Cols, Banks> at(row, col);
put_banks:
    for (unsigned b = 0; b < Banks; ++b) {
#pragma HLS UNROLL
        buffer[b][at.address(b, Depth)] = cells[at.cell(b)];
    }
}

// Orders of a beat: by_rows(r, c) is where element (r, c) is in it. They are types, and so arguments of the templates
// below, where HLS has no function pointers.
//
// Lanes count rows first; the two floats of a lane are four columns apart.
struct by_rows {
    constexpr by_rows(unsigned r, unsigned c) : place(2 * (4 * r + c % 4) + c / 4) {}
    constexpr operator unsigned() const { return place; }
    unsigned place;
};
// The same of a right operand, whose lanes count columns first.
struct by_cols {
    constexpr by_cols(unsigned r, unsigned c) : place(2 * (4 * (c % 4) + r) + c / 4) {}
    constexpr operator unsigned() const { return place; }
    unsigned place;
};

// A 4x8 beat in this order, of its cells, and its cells.
template <typename Order, unsigned Banks>
Beat beat_of(const Cell<Banks> cells[Banks]) {
#pragma HLS INLINE
    constexpr unsigned width = 16 / Banks;
    Beat beat;
beat_of_floats:
    for (unsigned n = 0; n < beat_floats; ++n) {
#pragma HLS UNROLL
        const unsigned r = n / 8, c = n % 8;
        beat[Order(r, c)] = cells[r / 2 * (Banks / 2) + c / width][r % 2 * width + c % width];
    }
    return beat;
}

template <typename Order, unsigned Banks>
void cells_of(const Beat &beat, Cell<Banks> cells[Banks]) {
#pragma HLS INLINE
    constexpr unsigned width = 16 / Banks;
cells_of_floats:
    for (unsigned n = 0; n < beat_floats; ++n) {
#pragma HLS UNROLL
        const unsigned r = n / 8, c = n % 8;
        cells[r / 2 * (Banks / 2) + c / width][r % 2 * width + c % width] = beat[Order(r, c)];
    }
}

template <typename Order, unsigned Cols, unsigned Banks, unsigned Depth>
Beat get_beat(const Cell<Banks> (&buffer)[Banks][Depth], unsigned row, unsigned col) {
#pragma HLS INLINE
    Cell<Banks> cells[Banks];
#pragma HLS ARRAY_PARTITION variable=cells complete
    get<Beat4x8, Cols>(buffer, row, col, cells);
    return beat_of<Order, Banks>(cells);
}

template <typename Order, unsigned Cols, unsigned Banks, unsigned Depth>
void put_beat(Cell<Banks> (&buffer)[Banks][Depth], unsigned row, unsigned col, const Beat &beat) {
#pragma HLS INLINE
    Cell<Banks> cells[Banks];
#pragma HLS ARRAY_PARTITION variable=cells complete
    cells_of<Order, Banks>(beat, cells);
    put<Beat4x8, Cols>(buffer, row, col, cells);
}

// The transpose of the 8x4 elements at (row, col), as a 4x8 beat in this order.
template <typename Order, unsigned Cols, unsigned Depth>
Beat get_beat_transposed(const Cell<turning> (&buffer)[turning][Depth], unsigned row, unsigned col) {
#pragma HLS INLINE
    Cell<turning> cells[turning];
#pragma HLS ARRAY_PARTITION variable=cells complete
    get<Beat8x4, Cols>(buffer, row, col, cells);
    Beat beat;
get_transposed_floats:
    for (unsigned n = 0; n < beat_floats; ++n) {
#pragma HLS UNROLL
        const unsigned r = n / 4, c = n % 4;
        beat[Order(c, r)] = cells[reversed<turning>(r / 2) | c / 2][r % 2 * 2 + c % 2];
    }
    return beat;
}

// A word of off-chip memory: 16 columns of an even row from port 0, of the next one from port 1.
template <unsigned Banks>
Beat word_of(const Cell<Banks> cells[Banks]) {
#pragma HLS INLINE
    constexpr unsigned width = 16 / Banks;
    Beat word;
word_of_floats:
    for (unsigned n = 0; n < beat_floats; ++n) {
#pragma HLS UNROLL
        const unsigned r = n / line_floats, c = n % line_floats;
        word[n] = cells[c / width][r * width + c % width];
    }
    return word;
}

template <unsigned Cols, unsigned Banks, unsigned Depth>
Beat get_word(const Cell<Banks> (&buffer)[Banks][Depth], unsigned row, unsigned col) {
#pragma HLS INLINE
    Cell<Banks> cells[Banks];
#pragma HLS ARRAY_PARTITION variable=cells complete
    get<Word2x16, Cols>(buffer, row, col, cells);
    return word_of<Banks>(cells);
}

template <unsigned Cols, unsigned Banks, unsigned Depth>
void put_word(Cell<Banks> (&buffer)[Banks][Depth], unsigned row, unsigned col, const Beat &word) {
#pragma HLS INLINE
    constexpr unsigned width = 16 / Banks;
    Cell<Banks> cells[Banks];
#pragma HLS ARRAY_PARTITION variable=cells complete
put_word_floats:
    for (unsigned n = 0; n < beat_floats; ++n) {
#pragma HLS UNROLL
        const unsigned r = n / line_floats, c = n % line_floats;
        cells[c / width][r * width + c % width] = word[n];
    }
    put<Word2x16, Cols>(buffer, row, col, cells);
}

// Its two rows become two columns.
template <unsigned Cols, unsigned Depth>
void put_word_transposed(Cell<turning> (&buffer)[turning][Depth], unsigned row, unsigned col, const Beat &word) {
#pragma HLS INLINE
    Cell<turning> cells[turning];
#pragma HLS ARRAY_PARTITION variable=cells complete
put_transposed_floats:
    for (unsigned n = 0; n < beat_floats; ++n) {
#pragma HLS UNROLL
        const unsigned c = n / line_floats, r = n % line_floats;
        cells[reversed<turning>(r / 2)][r % 2 * 2 + c] = word[n];
    }
    put<Word16x2, Cols>(buffer, row, col, cells);
}

// Natively a buffer starts as NaN, so that reading what nobody has written shows in the result.
template <unsigned Banks, unsigned Depth>
void poison([[maybe_unused]] Cell<Banks> (&buffer)[Banks][Depth]) {
#ifdef RSN_CSIM
    for (auto &bank : buffer)
        for (Cell<Banks> &cell : bank) cell = Cell<Banks>(std::numeric_limits<float>::quiet_NaN());
#endif
}
template <unsigned Depth>
void poison([[maybe_unused]] float (&numbers)[Depth]) {
#ifdef RSN_CSIM
    for (auto &number : numbers) number = std::numeric_limits<float>::quiet_NaN();
#endif
}

}  // namespace rsn::xnn

#endif  // RSN_PL_BUFFER_H
