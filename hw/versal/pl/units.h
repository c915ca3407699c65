// The processes of the machine, each in the file of its name. All of them return: decoders and units after their
// terminator, the dispatcher after the last packet.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_PL_UNITS_H
#define RSN_PL_UNITS_H

#include "fetch.h"
#include "types.h"

namespace rsn::xnn {

// Words of a unit's longest format.
constexpr unsigned longer(unsigned a, unsigned b) { return a > b ? a : b; }
constexpr unsigned ddr_words = longer(Ddr::words, DdrRows::words);
constexpr unsigned mem_a_words = longer(MemA::words, MemANorm::words);
constexpr unsigned mem_b_words = longer(MemB::words, MemBConfig::words);
constexpr unsigned mem_c_words = longer(longer(MemC::words, MemCConfig::words),
                                        longer(MemCScores::words, longer(MemCStore::words, MemCTable::words)));

// A uOP of DDR or LPDDR: one chunk, from or to one peer.
struct Transfer {
    bool last;
    bool load;
    bool store;
    bool bias;
    std::uint8_t peer;  // its number among those that can be loaded, or stored from
    std::uint32_t addr;
    std::uint32_t size;
};

// A uOP of DDR: a chunk, one block of which rows are kept, or an entry of the table of rows.
struct DdrTransfer {
    bool last;
    bool load;
    bool store;
    bool keep;
    bool set;
    bool table;
    std::uint8_t peer;
    std::uint8_t entry;
    std::uint8_t rows;
    std::uint8_t chunks;
    std::uint8_t source;
    std::uint32_t addr;
    std::uint32_t size;
    std::uint32_t row;
    std::uint32_t limit;
    std::uint32_t pitch;
    std::uint32_t chunk_stride;
};

// Partial sum of a row, and the number of columns in it.
struct Partial {
    float sum;
    float count;
};

void announce(std::uint64_t *fingerprint);

// dispatch.cpp
void dispatch(hls::stream<Word> &words, hls::stream<Mop<ddr_words>> &ddr, hls::stream<Mop<Lpddr::words>> &lpddr,
              hls::stream<Mop<mem_a_words>> &mem_a0, hls::stream<Mop<mem_a_words>> &mem_a1,
              hls::stream<Mop<mem_a_words>> &mem_a2, hls::stream<Mop<mem_b_words>> &mem_b0,
              hls::stream<Mop<mem_b_words>> &mem_b1, hls::stream<Mop<mem_b_words>> &mem_b2,
              hls::stream<Mop<mem_c_words>> &mem_c0, hls::stream<Mop<mem_c_words>> &mem_c1,
              hls::stream<Mop<mem_c_words>> &mem_c2, hls::stream<Mop<mem_c_words>> &mem_c3,
              hls::stream<Mop<mem_c_words>> &mem_c4, hls::stream<Mop<mem_c_words>> &mem_c5,
              hls::stream<Mop<MeshA::words>> &mesh_a, hls::stream<Mop<MeshB::words>> &mesh_b);

// decode.cpp
void expand(const Ddr &mop, std::uint16_t iteration, hls::stream<DdrTransfer> &uops);
void expand(const DdrRows &mop, hls::stream<DdrTransfer> &uops);
void expand(const Lpddr &mop, std::uint16_t iteration, hls::stream<Transfer> &uops);
void decode_ddr(hls::stream<Mop<ddr_words>> &mops, hls::stream<DdrTransfer> &uops);
void decode_lpddr(hls::stream<Mop<Lpddr::words>> &mops, hls::stream<Transfer> &uops);
void decode_mesh(hls::stream<Mop<MeshA::words>> &mops, hls::stream<Uop<MeshA::words>> &uops);
void decode_mem_a(hls::stream<Mop<mem_a_words>> &mops, hls::stream<Uop<mem_a_words>> &uops);
void decode_mem_b(hls::stream<Mop<mem_b_words>> &mops, hls::stream<Uop<mem_b_words>> &uops);
void decode_mem_c(hls::stream<Mop<mem_c_words>> &mops, hls::stream<Uop<mem_c_words>> &uops);

void ddr(hls::stream<DdrTransfer> &uops, Port port0, Port port1, hls::stream<Beat> &mem_a0, hls::stream<Beat> &mem_a1,
         hls::stream<Beat> &mem_a2, hls::stream<Beat> &mem_b0, hls::stream<Beat> &mem_b1, hls::stream<Beat> &mem_b2,
         hls::stream<Beat> &mem_c0, hls::stream<Beat> &mem_c1, hls::stream<Beat> &mem_c2, hls::stream<Beat> &mem_c3,
         hls::stream<Beat> &mem_c4, hls::stream<Beat> &mem_c5);
void lpddr(hls::stream<Transfer> &uops, Port port0, Port port1, hls::stream<Beat> &mem_b0, hls::stream<Beat> &mem_b1);

void mem_a(hls::stream<Uop<mem_a_words>> &uops, hls::stream<Beat> &ddr, hls::stream<Beat> &mesh);
// MemB0, MemB1: matrices and vectors from LPDDR, matrices to transpose from DDR.
void mem_b(hls::stream<Uop<mem_b_words>> &uops, hls::stream<Beat> &lpddr, hls::stream<Beat> &ddr,
           hls::stream<Beat> &mesh);
// MemB2: attention's values.
void mem_b2(hls::stream<Uop<mem_b_words>> &uops, hls::stream<Beat> &ddr, hls::stream<Beat> &mesh);
// MemC0 and MemC2. There are two functions, because a process of a region takes variables, not values.
void mem_c_even(hls::stream<Uop<mem_c_words>> &uops, hls::stream<Lane> mme[lanes], hls::stream<Beat> &ddr,
                hls::stream<Beat> &mesh, hls::stream<float> &to_softmax, hls::stream<float> &from_softmax,
                hls::stream<Partial> &to_norm, hls::stream<Partial> &from_norm);
// MemC1 and MemC3, whose columns come behind those of the neighbour.
void mem_c_odd(hls::stream<Uop<mem_c_words>> &uops, hls::stream<Lane> mme[lanes], hls::stream<Beat> &ddr,
               hls::stream<Beat> &mesh, hls::stream<float> &to_softmax, hls::stream<float> &from_softmax,
               hls::stream<Partial> &to_norm, hls::stream<Partial> &from_norm);
// MemC4, MemC5: no softmax, no way to MeshA.
void mem_c_last_even(hls::stream<Uop<mem_c_words>> &uops, hls::stream<Lane> mme[lanes], hls::stream<Beat> &ddr,
                     hls::stream<Partial> &to_norm, hls::stream<Partial> &from_norm);
void mem_c_last_odd(hls::stream<Uop<mem_c_words>> &uops, hls::stream<Lane> mme[lanes], hls::stream<Beat> &ddr,
                    hls::stream<Partial> &to_norm, hls::stream<Partial> &from_norm);

void mesh_a(hls::stream<Uop<MeshA::words>> &uops, hls::stream<Beat> &mem_a0, hls::stream<Beat> &mem_a1,
            hls::stream<Beat> &mem_a2, hls::stream<Beat> &mem_c0, hls::stream<Beat> &mem_c1, hls::stream<Beat> &mem_c2,
            hls::stream<Beat> &mem_c3, hls::stream<Lane> mme0[lanes], hls::stream<Lane> mme1[lanes],
            hls::stream<Lane> mme2[lanes], hls::stream<Lane> mme3[lanes], hls::stream<Lane> mme4[lanes],
            hls::stream<Lane> mme5[lanes]);
void mesh_b(hls::stream<Uop<MeshB::words>> &uops, hls::stream<Beat> &mem_b0, hls::stream<Beat> &mem_b1,
            hls::stream<Beat> &mem_b2, hls::stream<Lane> mme0[lanes], hls::stream<Lane> mme1[lanes],
            hls::stream<Lane> mme2[lanes], hls::stream<Lane> mme3[lanes], hls::stream<Lane> mme4[lanes],
            hls::stream<Lane> mme5[lanes]);

}  // namespace rsn::xnn

#endif  // RSN_PL_UNITS_H
