// Whole tiles are put together from the lanes, multiplied in blocks that stay in registers, and taken apart again.
// Cascade c of an MME sums over k = c mod 4, in increasing order; the result is ((S0 + S1) + S2) + S3, and a bias is
// where S0 starts. That fixes every rounding, whatever the width of the vectors; multiply-adds are never fused.
// SPDX-License-Identifier: Apache-2.0
#include "engine.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "process.h"

// One version for each width of vectors, chosen when the library is loaded. Sanitizers cannot be there as early.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__) && \
    !defined(__SANITIZE_ADDRESS__)
#define RSN_ANY_WIDTH __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define RSN_ANY_WIDTH
#endif

namespace rsn::csim {

namespace {

using namespace xnn;
using Lanes = Engine::Lanes;
using Tile = float[tile][tile];

constexpr unsigned cascades = 4;
constexpr unsigned block = 8;    // rows of a product that are summed side by side
constexpr unsigned vector = 16;  // columns

using Vector = float __attribute__((vector_size(vector * sizeof(float))));

// Lane 4r + c of A: rows r mod 4, columns c mod 4 (contract 2, "Stream element order inside a tile").
void gather_a(Lanes lanes, Tile &to) {
    for (unsigned r = 0; r < 4; ++r) {
        for (unsigned c = 0; c < 4; ++c) {
            const Lane *from = lanes[4 * r + c].window_to_read(beats_per_tile);
            for (unsigned row = r; row < tile; row += 8)
                for (unsigned k = c; k < tile; k += 16)
                    for (unsigned down = 0; down < 8; down += 4)
                        for (unsigned right = 0; right < 16; right += 8, ++from) {
                            to[row + down][k + right] = (*from)[0];
                            to[row + down][k + right + 4] = (*from)[1];
                        }
        }
    }
}

// Lane 4n + c of B: columns n mod 4, rows c mod 4.
void gather_b(Lanes lanes, Tile &to) {
    for (unsigned n = 0; n < 4; ++n) {
        for (unsigned c = 0; c < 4; ++c) {
            const Lane *from = lanes[4 * n + c].window_to_read(beats_per_tile);
            for (unsigned group = n; group < tile; group += 32)
                for (unsigned k = c; k < tile; k += 4)
                    for (unsigned column = group; column < group + 32; column += 8, ++from) {
                        to[k][column] = (*from)[0];
                        to[k][column + 4] = (*from)[1];
                    }
        }
    }
}

// A vector in a B tile: groups of 32 columns in rows 0, 4, 8 and so on.
void gather_vector(Lanes lanes, Tile &scratch, float *to) {
    gather_b(lanes, scratch);
    for (unsigned column = 0; column < tile; column += 32)
        for (unsigned row = 0; row < tile; row += 4, to += 32)
            std::memcpy(to, &scratch[row][column], 32 * sizeof(float));
}

// Lane 4r + n of C: rows r mod 4, columns n mod 4. value: of a row and column.
template <typename Value>
void scatter_c(Lanes lanes, const Value &value) {
    for (unsigned r = 0; r < 4; ++r) {
        for (unsigned n = 0; n < 4; ++n) {
            Lane *to = lanes[4 * r + n].window_to_write(beats_per_tile);
            for (unsigned group = n; group < tile; group += 32)
                for (unsigned row = r; row < tile; row += 4)
                    for (unsigned column = group; column < group + 32; column += 8, ++to) {
                        (*to)[0] = value(row, column);
                        (*to)[1] = value(row, column + 4);
                    }
        }
    }
}

// sums += A @ B over every fourth k from `first` on.
RSN_ANY_WIDTH void accumulate(
    const Tile &a, const Tile &b, Tile &sums, unsigned first, unsigned depth, unsigned columns
) {
    for (unsigned n = 0; n < columns; n += vector) {
        for (unsigned m = 0; m < tile; m += block) {
            Vector s[block];
            for (unsigned i = 0; i < block; ++i) std::memcpy(&s[i], &sums[m + i][n], sizeof(Vector));
            for (unsigned k = first; k < depth; k += cascades) {
                Vector x;
                std::memcpy(&x, &b[k][n], sizeof x);
                for (unsigned i = 0; i < block; ++i) s[i] += a[m + i][k] * x;
            }
            for (unsigned i = 0; i < block; ++i) std::memcpy(&sums[m + i][n], &s[i], sizeof(Vector));
        }
    }
}

// The last lane is written last: with its tile, all are there.
Need need(Lanes lanes, Channel::Direction d) { return {&lanes[xnn::lanes - 1].channel(), d, beats_per_tile}; }
void taken(Lanes lanes) {
    for (unsigned i = 0; i < xnn::lanes; ++i) lanes[i].taken(beats_per_tile);
}
void written(Lanes lanes) {
    for (unsigned i = 0; i < xnn::lanes; ++i) lanes[i].written(beats_per_tile);
}

void keep(Lanes b, Tile &scratch, float *to) {
    wait_all({need(b, Channel::get)});
    gather_vector(b, scratch, to);
    taken(b);
}

}  // namespace

struct Engine::Work {
    Tile a, b;
    Tile sums[cascades];
    float bias[vector_floats];
    float weight[vector_floats];
};

Engine::Engine(Lanes a, Lanes b, Lanes c) : a_(a), b_(b), c_(c), work_(std::make_unique<Work>()) {}
Engine::~Engine() = default;

void Engine::keep_bias() { keep(b_, work_->b, work_->bias); }
void Engine::keep_weight() { keep(b_, work_->b, work_->weight); }

void Engine::scale(unsigned at) {
    const float *weight = work_->weight + at % vector_floats;
    wait_all({need(a_, Channel::get), need(c_, Channel::put)});
    gather_a(a_, work_->a);
    scatter_c(c_, [&](unsigned row, unsigned column) { return work_->a[row][column] * weight[column]; });
    taken(a_);
    written(c_);
}

void Engine::product(const Part &part, unsigned at) {
    std::vector<Need> needs = {need(a_, Channel::get), need(b_, Channel::get)};
    if (part.last) needs.push_back(need(c_, Channel::put));
    wait_all(needs);
    gather_a(a_, work_->a);
    gather_b(b_, work_->b);
    auto &sums = work_->sums;
    if (part.first) std::memset(sums, 0, sizeof sums);
    if (at != no_bias)
        for (auto &row : sums[0]) std::memcpy(row, work_->bias + at % vector_floats, sizeof row);
    for (unsigned c = 0; c < cascades; ++c) accumulate(work_->a, work_->b, sums[c], c, part.depth, part.columns);
    if (part.last)
        scatter_c(c_, [&](unsigned row, unsigned column) {
            // Columns beyond N are undefined: whoever reads them shall see it.
            if (column >= part.columns) return std::nanf("");
            return ((sums[0][row][column] + sums[1][row][column]) + sums[2][row][column]) + sums[3][row][column];
        });
    taken(a_);
    taken(b_);
    if (part.last) written(c_);
}

}  // namespace rsn::csim
