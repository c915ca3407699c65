// Processes of a dataflow region. To Vitis HLS each is a plain call in a function that says `#pragma HLS dataflow`;
// natively (RSN_CSIM) each is a thread, and the region ends when all of them have.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_PL_DATAFLOW_H
#define RSN_PL_DATAFLOW_H

#ifdef RSN_CSIM

#include "../csim/process.h"

#else

// At the head of a region, behind the streams and memories that its processes share.
#define RSN_DATAFLOW()
// A unit, decoder or dispatcher under its name; "" for what a unit does side by side with something else.
#define RSN_PROCESS(name, function, ...) function(__VA_ARGS__)
// Streams of an array, whose depth a pragma says: natively they are opened.
#define RSN_OPEN(streams, name, depth) static_cast<void>(0)
// A memory that processes share; natively not on the stack, for which it may be too large.
#define RSN_MEMORY(type, name) type name
// In a process that looks at several streams in each cycle, if it has nothing else to do: natively it waits here until one
// of them has an element.
#define RSN_WAIT_FOR_ANY(...) static_cast<void>(0)
// Before a loop of style stp, in the same block: natively it may hold its last outputs back, as hardware does.
#define RSN_STALLS() static_cast<void>(0)
// The calling process begins its uOP (a decoder: window or mOP; the dispatcher: packet) of this number, from 0.
#define RSN_UOP(number) static_cast<void>(number)

#endif

#endif  // RSN_PL_DATAFLOW_H
