// Three engines of 8x8 pairs of AIE tiles: 96 streams in, of which 18 have 64 bit at twice the PL kernel's clock, all
// others 128, and 48 out; 384 of the 400 tiles of a VC1902.
//
// A row of pairs is a row of the array. Its two streams of rows lead along it, one to the first tiles of all pairs, one
// to the last ones; the two streams of weights of a column of pairs lead up to the tiles of all rows. A pair's cascade
// runs eastwards in rows 0, 2, 4 and 6 and westwards in the others, and what comes back lies in the memory of the first
// tile, which both reach. Results of every other pair of a row, each by two ports, are packets of one stream.
//
// Everything has its place: tiles, PLIOs (placement.h), and in each tile's own memory the buffers, the sums and the
// stack (kernels.h), so that the compiler's mapper has little left to search. UG1079, "Mapping Constraints".
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_XNN8_GRAPH_H
#define RSN_XNN8_GRAPH_H

#include <string>
#include <utility>

#include <adf.h>

#include "kernels.h"
#include "placement.h"

#ifndef RSN_PL_HZ
#define RSN_PL_HZ 220000000
#endif

namespace rsn::xnn8 {

using placement::engines, placement::lanes, placement::pairs;
constexpr unsigned tiles = 2, ports = 2;  // of a pair: tiles, ports of results
constexpr unsigned merged = pairs / 2 * ports;
constexpr double narrow_mhz = 2e-6 * RSN_PL_HZ;

class Pair : public adf::graph {
  public:
    adf::kernel first, last;
    adf::parameter sums[tiles];
    adf::port<adf::input> a[tiles], b[tiles];
    adf::port<adf::output> c[ports];

    template <unsigned column>
    void make(int array_column, int row) {
        first = adf::kernel::create(pair_first<column>);
        last = adf::kernel::create(pair_last<column>);
        const int east = array_column + 1, west = array_column;
        begin(first, 0, row % 2 ? east : west, row);
        begin(last, 1, row % 2 ? west : east, row);
        adf::connect<adf::cascade>(first.out[0], last.in[2]);
        adf::connect(last.out[0], first.in[2]);
        adf::single_buffer(last.out[0]);
        adf::single_buffer(first.in[2]);
        const auto in_first = [&](int offset) { return adf::address(row % 2 ? east : west, row, offset); };
        const auto in_last = [&](int offset) { return adf::address(row % 2 ? west : east, row, offset); };
        adf::location<adf::buffer>(last.out[0]) = {in_first(memory::handed)};
        adf::location<adf::buffer>(last.out[1]) = {in_first(memory::c[0]), in_first(memory::c[1])};
        adf::location<adf::buffer>(last.out[2]) = {in_last(memory::c[0]), in_last(memory::c[1])};
        for (unsigned i = 0; i < ports; ++i) adf::connect(last.out[1 + i], c[i]);
    }

  private:
    // What both tiles have alike.
    void begin(adf::kernel &k, unsigned tile, int column, int row) {
        const auto own = [&](int offset) { return adf::address(column, row, offset); };
        adf::source(k) = "kernels.cc";
        adf::runtime<adf::ratio>(k) = 1.0;
        adf::stack_size(k) = stack_bytes;
        adf::heap_size(k) = heap_bytes;
        adf::connect(a[tile], k.in[0]);
        adf::connect(b[tile], k.in[1]);
        sums[tile] = adf::parameter::array(rsn_xnn8_sums);
        adf::connect(sums[tile], k);
        adf::location<adf::kernel>(k) = adf::tile(column, row);
        adf::location<adf::buffer>(k.in[0]) = {own(memory::a[0]), own(memory::a[1])};
        adf::location<adf::buffer>(k.in[1]) = {own(memory::b[0]), own(memory::b[1])};
        adf::location<adf::parameter>(sums[tile]) = {own(memory::sums)};
        adf::location<adf::stack>(k) = own(memory::stack);
    }
};

class Engines : public adf::graph {
  public:
    Pair of[engines][lanes][pairs];
    adf::input_plio a[engines][lanes][tiles], b[engines][pairs][tiles];
    adf::output_plio c[engines][lanes][2];         // of even and of odd columns
    adf::pktmerge<merged> packets[engines][lanes][2];

    Engines() {
        for (unsigned e = 0; e < engines; ++e) {
            for (unsigned r = 0; r < lanes; ++r) {
                const int column = placement::first_column + static_cast<int>(tiles * pairs * e);
                make_row(of[e][r], column, static_cast<int>(r), std::make_integer_sequence<unsigned, pairs>());
            }
            for (unsigned i = 0; i < tiles; ++i) {
                for (unsigned r = 0; r < lanes; ++r) {
                    const bool wide = r < placement::wide_lanes[e];
                    input(a[e][r][i], name("A", e, r, i), wide, placement::a[e][r][i]);
                    for (Pair &pair : of[e][r]) adf::connect(a[e][r][i].out[0], pair.a[i]);
                }
                for (unsigned n = 0; n < pairs; ++n) {
                    input(b[e][n][i], name("B", e, n, i), true, placement::b[e][n][i]);
                    for (auto &row : of[e]) adf::connect(b[e][n][i].out[0], row[n].b[i]);
                }
                for (unsigned r = 0; r < lanes; ++r) results(e, r, i);
            }
        }
    }

  private:
    static std::string name(const char *operand, unsigned engine, unsigned number, unsigned tile) {
        return operand + std::to_string(engine) + "_" + std::to_string(number) + "_" + std::to_string(tile);
    }

    template <unsigned... column>
    static void make_row(
        Pair (&row)[pairs], int first_column, int number, std::integer_sequence<unsigned, column...>
    ) {
        (row[column].make<column>(first_column + static_cast<int>(tiles * column), number), ...);
    }

    static void input(adf::input_plio &made, const std::string &name, bool wide, const placement::Shim &at) {
        if (wide) made = adf::input_plio::create(name, adf::plio_128_bits, name + ".txt");
        else made = adf::input_plio::create(name, adf::plio_64_bits, name + ".txt", narrow_mhz);
        adf::location<adf::PLIO>(made) = adf::shim(at.column, at.channel);
    }

    // Of a row, the results of even columns, or of odd ones.
    void results(unsigned engine, unsigned row, unsigned odd) {
        const std::string c_name = name("C", engine, row, odd);
        adf::output_plio &made = c[engine][row][odd];
        auto &merge = packets[engine][row][odd];
        made = adf::output_plio::create(c_name, adf::plio_128_bits, c_name + ".txt");
        merge = adf::pktmerge<merged>::create();
        for (unsigned i = 0; i < merged; ++i)
            adf::connect(of[engine][row][i / ports * 2 + odd].c[i % ports], merge.in[i]);
        adf::connect<adf::pktstream>(merge.out[0], made.in[0]);
        const placement::Shim &at = placement::c[engine][row][odd];
        adf::location<adf::PLIO>(made) = adf::shim(at.column, at.channel);
    }
};

}  // namespace rsn::xnn8

#endif  // RSN_XNN8_GRAPH_H
