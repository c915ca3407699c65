// Prints where the parts of a graph lie, as JSON, a line for each PLIO and tile: what `make check` reads.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_CSIM_PLACES_H
#define RSN_CSIM_PLACES_H

#include <cstdio>
#include <map>

#include <adf.h>

namespace rsn::csim {

// A list, with commas between what `print` prints of its elements.
template <typename List, typename Print>
void print_list(const char *name, const List &list, const Print &print) {
    std::printf("\"%s\": [", name);
    const char *comma = "";
    for (const auto &element : list) {
        std::printf("%s", comma);
        print(element);
        comma = ", ";
    }
    std::printf("]");
}

inline void print_places(const adf::native::Design &design) {
    using adf::native::Kernel;
    using adf::native::Node;
    std::map<const Node *, const Kernel *> owner;
    std::map<const Node *, std::vector<std::vector<adf::tile>>> tiles;  // of a PLIO: places, or none
    for (const auto &kernel : design.kernels)
        for (const auto &node : kernel->in) owner[node.get()] = kernel.get();
    const auto tile = [](const adf::tile &at) { std::printf("[%d, %d]", at.column, at.row); };
    const auto first_tile = [&](const std::vector<adf::tile> &places) {
        if (places.empty()) std::printf("null");
        else tile(places[0]);
    };
    // Of the kernel to which an output leads without leaving the array.
    const auto next_tile = [&](Node &node) {
        std::vector<Node *> ends;
        node.ends(ends);
        std::vector<std::vector<adf::tile>> kernels;
        for (const Node *end : ends)
            if (end != &node && owner.count(end)) kernels.push_back(owner.at(end)->place);
        print_list("to", kernels, first_tile);
    };
    const auto address = [](const adf::address &at) { std::printf("[%d, %d, %d]", at.column, at.row, at.offset); };
    for (const auto &plio : design.inputs) {
        std::vector<Node *> ends;
        plio->ends(ends);
        for (const Node *end : ends) tiles[plio.get()].push_back(owner.at(end)->place);
    }
    for (const auto &kernel : design.kernels)
        for (const auto &node : kernel->out) {
            std::vector<Node *> ends;
            node->ends(ends);
            if (!node->window) continue;
            // The DMA that sends a buffer is that of the tile in which it lies.
            const std::vector<adf::address> &at = node->addresses;
            if (at.empty()) tiles[ends[0]].push_back(kernel->place);
            else tiles[ends[0]].push_back({adf::tile(at[0].column, at[0].row)});
        }
    for (const auto *list : {&design.inputs, &design.outputs})
        for (const auto &plio : *list) {
            std::printf("{\"plio\": \"%s\", \"inward\": %d, ", plio->plio.c_str(), list == &design.inputs);
            print_list("at", plio->place, [](const adf::shim &at) { std::printf("[%d, %d]", at.column, at.channel); });
            std::printf(", ");
            print_list("tiles", tiles[plio.get()], first_tile);
            std::printf(", \"bits\": %u, \"mhz\": %g, \"packets\": %d}\n", plio->bits, plio->mhz, plio->merges);
        }
    for (const auto &kernel : design.kernels) {
        std::printf("{");
        print_list("at", kernel->place, tile);
        std::printf(", \"stack_bytes\": %zu, \"heap_bytes\": %zu, ", kernel->stack_bytes, kernel->heap_bytes);
        print_list("stack", kernel->stack, address);
        std::printf(", ");
        std::vector<Node *> buffers, cascades, parameters;
        for (const auto *ports : {&kernel->in, &kernel->out})
            for (const auto &node : *ports) {
                if (node->window) buffers.push_back(node.get());
                if (!node->values.empty()) parameters.push_back(node.get());
                if (node->open_cascade) cascades.push_back(node.get());
            }
        print_list("buffers", buffers, [&](Node *node) {
            std::printf("{\"bytes\": %zu, ", node->window * sizeof(float));
            print_list("at", node->addresses, address);
            std::printf(", \"count\": %zu, ", node->count);
            next_tile(*node);
            std::printf("}");
        });
        std::printf(", ");
        print_list("cascades", cascades, [&](Node *node) {
            std::printf("{");
            next_tile(*node);
            std::printf("}");
        });
        std::printf(", ");
        print_list("arrays", kernel->arrays, [&](const std::shared_ptr<adf::native::Array> &array) {
            std::printf("{\"bytes\": %zu, ", array->bytes);
            print_list("at", array->place, address);
            std::printf("}");
        });
        std::printf(", ");
        print_list("parameters", parameters, [](const Node *node) {
            std::printf("{\"bytes\": %zu, \"asynchronous\": %d}", node->values.size() * sizeof(uint32),
                        node->asynchronous);
        });
        std::printf("}\n");
    }
}

}  // namespace rsn::csim

#endif  // RSN_CSIM_PLACES_H
