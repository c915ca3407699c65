// What the processes of a dynamic program are made of (STeP, section 3.2). RSN_NATIVE: built to run on this computer.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_STREAMS_STEP_H
#define RSN_STREAMS_STEP_H

#include "step_functions.h"
#include "step_memory.h"
#include "step_operators.h"

#endif  // RSN_STREAMS_STEP_H
