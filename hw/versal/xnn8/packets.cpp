// Packets of results of the tiles.
//
// Packets come in any order from four pairs of tiles, each by both of its ports in turn. Their numbers say which: twice
// that of the pair among these, and the port. The first word of a packet is its header, with an ID that the compiler of
// the graph chooses; the highest bits of the next one are the number (packet.h). Sums of a head have 32 bits, so two
// streams together bring as many as Post computes: of each, one process gathers beats of eight results.
//
// Of a gate, the first stream brings gates, the second one what they multiply. Neither has an order. So packets of the
// second one wait in a memory for the packet of gates that Post takes: it has room for all of an operation, so that the
// second stream never waits for the first one. As Post takes two cycles for eight products, four results a cycle
// suffice.
// SPDX-License-Identifier: Apache-2.0
#include "packet.h"
#include "post.h"

namespace rsn::xnn8::pl {

namespace {

constexpr unsigned head_chunks = head_words / 4;  // of attention: sums of weights
constexpr unsigned head_beats = 64;               // of results of a packet, and of that of a product
constexpr unsigned product_beats = 2 * head_beats;

using HeldCells = Quarter[all_held];

}  // namespace

void gather(hls::stream<PacketsDue> &due, hls::stream<Beat128> &results, hls::stream<PacketNumber> &packets,
            hls::stream<WeightSums> &weights, hls::stream<Results> &to) {
gather_uops:
    for (;;) {
        const PacketsDue of = due.read();
        if (of.last) break;
        uint8_t left = of.count, at = 0;  // beats of a packet that have come
        PacketNumber number = 0;
        uint32_t carried[3] = {}, before[4] = {};
#pragma HLS ARRAY_PARTITION variable=carried complete
#pragma HLS ARRAY_PARTITION variable=before complete
    gather_beats:
        while (left) {
#pragma HLS PIPELINE II=ii::cells style=flp
            const Beat128 in = results.read();
            const uint32_t words[4] = {carried[0], carried[1], carried[2], in[0]};
            for (unsigned i = 0; i < 3; ++i) {
#pragma HLS UNROLL
                carried[i] = in[i + 1];
            }
            if (at == 1) number = static_cast<PacketNumber>(words[0] >> number_at);
            if (at == head_chunks) packets << number;
            if (of.attention && at == head_chunks) {
                WeightSums sums;
                for (unsigned i = 0; i < 8; ++i) {
#pragma HLS UNROLL
                    sums.of[i] = (i < 4 ? before[i] : words[i - 4]) & ((1u << number_at) - 1);
                }
                weights << sums;
            }
            // Half of what a narrow head brings has no meaning.
            const uint8_t end = head_chunks + (of.narrow ? head_beats + 1 : product_beats);
            if (at > head_chunks && (!of.attention || (at <= end && at % 2 == 0))) {
                Results out;
                for (unsigned e = 0; e < 8; ++e) {
#pragma HLS UNROLL
                    const auto drained = static_cast<int16_t>(words[e / 2] >> e % 2 * 16);
                    const auto sum = static_cast<int32_t>(e < 4 ? before[e] : words[e - 4]);
                    out.of[e] = of.attention ? within<26>(sum) : drained;
                }
                to << out;  // hls-allow state-order: Post takes results of a packet that it knows
            }
            for (unsigned i = 0; i < 4; ++i) {
#pragma HLS UNROLL
                before[i] = words[i];
            }
            left = static_cast<uint8_t>(left - (at + 1 == window_beats));
            at = at + 1 == window_beats ? 0 : static_cast<uint8_t>(at + 1);
        }
    }
}

// Keeps what gates multiply, or the second one of two narrow heads, until Post asks for it; hands all else on. Of a
// gate a word has four results; of heads the lower halves of two sums, then the upper ones.
void hold(hls::stream<PacketsDue> &due, hls::stream<PacketNumber> &packets, hls::stream<WeightSums> &weights,
          hls::stream<Results> &results, hls::stream<HeldPacket> &wanted, hls::stream<PacketNumber> &packets_to_post,
          hls::stream<WeightSums> &weights_to_post, hls::stream<Results> &results_to_post) {
    RSN_MEMORY(HeldCells, cells);
#pragma HLS AGGREGATE variable=cells compact=bit
#pragma HLS BIND_STORAGE variable=cells type=ram_s2p impl=uram
    WeightSums of_weights[most_held];
#pragma HLS AGGREGATE variable=of_weights compact=bit
#pragma HLS BIND_STORAGE variable=of_weights type=ram_s2p impl=lutram
hold_uops:
    for (;;) {
        const PacketsDue of = due.read();
        if (of.last) break;
        const bool holds = of.gated || of.narrow;
        const unsigned words = of.narrow ? all_held / most_held : 2 * all_held / most_held;  // of a packet
        const unsigned of_all = holds ? of.count * words : of.attention ? of.count * head_beats
            : of.count * product_beats;
        auto left = static_cast<uint16_t>(of_all);  // that leave
        uint8_t come[pairs] = {};  // packets of each number
        bool there[most_held] = {};
#pragma HLS ARRAY_PARTITION variable=come complete
#pragma HLS ARRAY_PARTITION variable=there complete
        HeldPacket comes = 0, goes = 0;
        uint8_t in = 0, out = 0;  // words of these
        bool asked = false;
        ap_uint<2> ahead = 0;  // packets whose number was handed on, and not yet all results
        Results got = {}, made = {};
#pragma HLS ARRAY_PARTITION variable=got.of complete
#pragma HLS ARRAY_PARTITION variable=made.of complete
        const unsigned of_beat = of.narrow ? 3 : 1;  // the last word of eight results
    hold_cycles:
        while (left) {
#pragma HLS PIPELINE II=ii::cells style=flp
#pragma HLS DEPENDENCE variable=cells type=inter dependent=false
            const bool leaves = holds && asked && there[goes], begins = !holds || (in & of_beat) == 0;
            if (!leaves && begins) {
                if (!holds && of.attention && !ahead) RSN_WAIT_FOR_ANY(weights);
                else if (!holds && of.attention) RSN_WAIT_FOR_ANY(weights, results);
                else if (!holds && !ahead) RSN_WAIT_FOR_ANY(packets);
                else if (!holds) RSN_WAIT_FOR_ANY(packets, results);
                else if (asked) RSN_WAIT_FOR_ANY(results);
                else RSN_WAIT_FOR_ANY(results, wanted);
            }
            const bool takes = begins && (holds || ahead) && !results.empty();
            if (!holds) {
                // Both together: Post waits for the weights of a packet that it knows, and takes no results meanwhile.
                const bool comes_next = of.attention ? !weights.empty() : !packets.empty();
                if (comes_next) {
                    packets_to_post << packets.read();
                    // hls-allow state-order: behind their packet's number
                    if (of.attention) weights_to_post << weights.read();
                }
                if (takes) results_to_post << results.read();  // hls-allow state-order: behind their packet's number
                const bool whole = takes && in + 1u == (of.attention ? head_beats : product_beats);
                ahead += static_cast<unsigned>(comes_next) - static_cast<unsigned>(whole);
                in = whole ? 0 : static_cast<uint8_t>(in + takes);
                left -= takes;
                continue;
            }
            if (takes) got = results.read();
            if (takes && in == 0) {
                const unsigned number = packets.read();  // hls-allow state-order: it came before its results
                comes = static_cast<HeldPacket>(number * (of.narrow ? narrow_packets : 2) + come[number]);
                ++come[number];
                if (of.narrow) of_weights[comes] = weights.read();  // hls-allow state-order: the same
            }
            if (takes || !begins) {
                Quarter word;
                for (unsigned e = 0; e < 4; ++e) {
#pragma HLS UNROLL
                    const int64_t sum = got.of[in % 4 * 2 + e % 2];
                    word[e] = static_cast<int16_t>(of.narrow ? sum >> e / 2 * 16 : int64_t{got.of[in % 2 * 4 + e]});
                }
                cells[comes * words + in] = word;
                const bool whole = in + 1u == words;
                if (whole) there[comes] = true;
                in = whole ? 0 : static_cast<uint8_t>(in + 1);
            }
            if (!asked && !wanted.empty()) {
                goes = wanted.read();
                asked = true;
            }
            if (!leaves) continue;
            // hls-allow state-order: Post takes the sums of weights before results
            if (of.narrow && out == 0) weights_to_post << of_weights[goes];
            const Quarter word = cells[goes * words + out];
            for (unsigned e = 0; e < 4; ++e) {
#pragma HLS UNROLL
                const auto sum = static_cast<int32_t>(static_cast<uint16_t>(word[e % 2]) |
                                                      static_cast<uint32_t>(word[2 + e % 2]) << 16);
                if (!of.narrow) made.of[out % 2 * 4 + e] = word[e];
                else if (e < 2) made.of[out % 4 * 2 + e] = sum;
            }
            // hls-allow state-order: Post takes gates by themselves
            if ((out & of_beat) == of_beat) results_to_post << made;
            asked = out + 1u != words;
            out = asked ? static_cast<uint8_t>(out + 1) : 0;
            --left;
        }
    }
}

}  // namespace rsn::xnn8::pl
