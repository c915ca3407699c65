// Six MMEs of 4x4x4 AIE tiles: 192 streams in, 96 out, each 64 bit wide; 384 of the 400 tiles of a VC1902.
//
// An MME fills eight columns of the array from bottom to top, two cascades to a row. A cascade runs along its row, from
// west to east in rows 0, 2, 4 and 6 and back in the others. Lane 4r + c of A goes to the tiles (r, 0..3, c), lane
// 4n + c of B to (0..3, n, c), and lane 4r + n of C comes from (r, n, 3).
//
// Everything has its place: tiles, PLIOs (placement.h), and in each tile's own memory the buffers and the stack
// (kernels.h), so that the compiler's mapper has little left to search. UG1079, "Mapping Constraints".
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_AIE_GRAPH_H
#define RSN_AIE_GRAPH_H

#include <string>

#include <adf.h>

#include "kernels.h"
#include "placement.h"

namespace rsn::mme {

#ifdef RSN_XNN2
constexpr char control_program[] = "xnn2/kernels.cc";
#else
constexpr char control_program[] = "kernels.cc";
#endif

constexpr unsigned engines = xnn::units::MME;
constexpr unsigned side = 4;  // of an MME in tiles: rows, columns, cascade
constexpr unsigned lanes = side * side;

// The four tiles that share K.
class Cascade : public adf::graph {
  public:
    adf::kernel k0, k1, k2, k3;
    adf::port<adf::input> a[side], b[side], ops[side];
    adf::port<adf::output> c;

    Cascade() {
        k0 = adf::kernel::create(mme_first);
        k1 = adf::kernel::create(mme_middle);
        k2 = adf::kernel::create(mme_middle);
        k3 = adf::kernel::create(mme_last);
        adf::kernel *const all[side] = {&k0, &k1, &k2, &k3};
        for (unsigned i = 0; i < side; ++i) {
            adf::kernel &k = *all[i];
            adf::source(k) = control_program;
            adf::runtime<adf::ratio>(k) = 1.0;
            adf::stack_size(k) = stack_bytes(i);
            adf::connect(a[i], k.in[0]);
            adf::connect(b[i], k.in[1]);
            if (i) adf::connect<adf::cascade>(all[i - 1]->out[0], k.in[2]);
            adf::connect<adf::parameter>(ops[i], adf::async(k.in[i ? 3 : 2]));
        }
        adf::connect(k3.out[0], c);
    }

    void place(int column, int row) {
        adf::kernel *const all[side] = {&k0, &k1, &k2, &k3};
        for (unsigned i = 0; i < side; ++i) {
            adf::kernel &k = *all[i];
            const int at = column + static_cast<int>(row % 2 ? side - 1 - i : i);
            const auto own = [&](int offset) { return adf::address(at, row, offset); };
            adf::location<adf::kernel>(k) = adf::tile(at, row);
            adf::location<adf::buffer>(k.in[0]) = {own(memory::a[0]), own(memory::a[1])};
            adf::location<adf::buffer>(k.in[1]) = {own(memory::b[0]), own(memory::b[1])};
            if (i + 1 == side) adf::location<adf::buffer>(k.out[0]) = {own(memory::c[0]), own(memory::c[1])};
            adf::location<adf::stack>(k) = own(memory::stack(i));
        }
    }
};

class Engines : public adf::graph {
  public:
    Cascade FG[engines][side][side];  // MME, row lane, column lane
    adf::input_plio a[engines][lanes], b[engines][lanes];
    adf::output_plio c[engines][lanes];
    adf::input_port ops[engines][side][side][side];

    Engines() {
        for (unsigned m = 0; m < engines; ++m) {
            for (unsigned lane = 0; lane < lanes; ++lane) {
                const std::string name = std::to_string(m) + "_" + std::to_string(lane);
                a[m][lane] = adf::input_plio::create("A" + name, adf::plio_64_bits, "A" + name + ".txt");
                b[m][lane] = adf::input_plio::create("B" + name, adf::plio_64_bits, "B" + name + ".txt");
                c[m][lane] = adf::output_plio::create("C" + name, adf::plio_64_bits, "C" + name + ".txt");
                const placement::Shim &at_a = placement::a[m][lane], &at_b = placement::b[m][lane];
                const placement::Shim &at_c = placement::c[m][lane];
                adf::location<adf::PLIO>(a[m][lane]) = adf::shim(at_a.column, at_a.channel);
                adf::location<adf::PLIO>(b[m][lane]) = adf::shim(at_b.column, at_b.channel);
                adf::location<adf::PLIO>(c[m][lane]) = adf::shim(at_c.column, at_c.channel);
            }
            for (unsigned r = 0; r < side; ++r) {
                for (unsigned n = 0; n < side; ++n) {
                    Cascade &tiles = FG[m][r][n];
                    for (unsigned i = 0; i < side; ++i) {
                        adf::connect(a[m][side * r + i].out[0], tiles.a[i]);
                        adf::connect(b[m][side * n + i].out[0], tiles.b[i]);
                        adf::connect<adf::parameter>(ops[m][r][n][i], tiles.ops[i]);
                    }
                    adf::connect(tiles.c, c[m][side * r + n].in[0]);
                    const int column = placement::first_column + static_cast<int>(2 * side * m + side * (n % 2));
                    tiles.place(column, static_cast<int>(2 * r + n / 2));
                }
            }
        }
    }
};

}  // namespace rsn::mme

#endif  // RSN_AIE_GRAPH_H
