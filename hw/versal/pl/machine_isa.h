// The tables of the overlay whose machine is built.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_PL_MACHINE_ISA_H
#define RSN_PL_MACHINE_ISA_H

#if defined(RSN_XNN2)
#include "../xnn2/isa.h"
#elif defined(RSN_XNN8)
#include "../xnn8/isa.h"
#else
#include "../isa.h"
#endif

#endif  // RSN_PL_MACHINE_ISA_H
