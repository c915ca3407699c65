// What a machine adds to the native run (csim.cpp).
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_CSIM_RUN_H
#define RSN_CSIM_RUN_H

#include <cstddef>
#include <string>

#include "csim.h"

namespace rsn::csim {

// Runs a program, whose image is well formed, in the calling process.
void run_machine(const rsn_csim_program &program);

// A window of the AIE array: the stream of the machine that it continues, "" if there is none; elements of that stream.
struct ArrayWindow {
    std::string stream;
    std::size_t depth = 0;
    bool leaves = false;  // the array
};
ArrayWindow window_of(const std::string &name);
// The unit that a process of the array belongs to.
std::string unit_of(const std::string &name);

}  // namespace rsn::csim

#endif  // RSN_CSIM_RUN_H
