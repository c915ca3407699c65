// The native machine from outside: a program goes in, memories change, a verdict comes out. Plain C; nothing is thrown,
// nothing is global: as many machines as one likes run side by side.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_CSIM_H
#define RSN_CSIM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RSN_CSIM_API __attribute__((visibility("default")))

typedef struct rsn_csim rsn_csim;

enum rsn_csim_state {
    RSN_CSIM_RUNNING,
    RSN_CSIM_DONE,
    RSN_CSIM_DEADLOCK,  // no process can move
    RSN_CSIM_STOPPED,   // by rsn_csim_stop
    RSN_CSIM_FAILED     // the image cannot be run, or an access left its memory
};

enum { RSN_CSIM_MMES = 6 };

// What to run, and on what. All of it stays the caller's, and must last until the run has ended.
typedef struct {
    const uint32_t *image;  // as it lies in memory, from its two leading words on
    uint64_t image_words;
    const uint32_t *ops[RSN_CSIM_MMES];  // of each MME, without the bit that says which AIE tile holds a weight
    uint32_t op_counts[RSN_CSIM_MMES];
    float *ddr;
    uint64_t ddr_floats;
    float *lpddr;
    uint64_t lpddr_floats;
    uint32_t mop_fifo_depth;  // 0: the machine's own
    uint32_t uop_fifo_depth;
    uint32_t array;  // 1: the AIE graph, a thread to each of its 384 tiles; 0: the same sums, a thread to each MME
} rsn_csim_program;

// Of the machine that was compiled in: 16 hex digits.
RSN_CSIM_API const char *rsn_csim_fingerprint(void);

// Starts a run and sets *run to it; 0. Where there is no memory for it, 1.
RSN_CSIM_API int rsn_csim_start(const rsn_csim_program *program, rsn_csim **run);

// Waits until it has ended, or so many milliseconds; the state.
RSN_CSIM_API int rsn_csim_wait(rsn_csim *run, int milliseconds);

// Ends it as it is: the memories are in disorder then.
RSN_CSIM_API void rsn_csim_stop(rsn_csim *run);

// After the run, a line for each fact, its fields apart by tabs, valid until the run is freed:
//   error   <text>
//   wait    <process> <uOP> get|put <stream> <elements>      a process that cannot go on, and what it lacks
//   stream  <stream> <depth> <written> <taken> <last uOP>    elements, and the uOP that wrote last
// An element of a stream to or from an MME is a lane, one 16th of a beat.
RSN_CSIM_API const char *rsn_csim_report(rsn_csim *run);

// Stops it where it still runs.
RSN_CSIM_API void rsn_csim_free(rsn_csim *run);

#ifdef __cplusplus
}
#endif

#endif  // RSN_CSIM_H
