// C interface of the native machine: it runs a program on memories and reports how the run ended. It throws nothing and
// has no global state, so any number of machines can run at the same time.
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

// A program and its memories. The caller owns all of them; they must exist until the run has ended.
typedef struct {
    const uint32_t *image;  // as in memory, with the two leading words
    uint64_t image_words;
    const uint32_t *ops[RSN_CSIM_MMES];  // op list of each MME, without the bit that marks the AIE tile with a weight
    uint32_t op_counts[RSN_CSIM_MMES];  // in words
    float *ddr;
    uint64_t ddr_floats;
    float *lpddr;
    uint64_t lpddr_floats;
    uint32_t mop_fifo_depth;  // 0: the machine's own
    uint32_t uop_fifo_depth;
    uint64_t stalls;  // 0: none; else a seed of random pauses and of the depths of stalled pipelines
    uint32_t array;   // 1: the AIE graph with a thread per tile (384); 0: the same sums with a thread per MME
} rsn_csim_program;

// Fingerprint of the machine, fixed at compile time: 16 hex digits.
RSN_CSIM_API const char *rsn_csim_fingerprint(void);

// Starts a run and sets *run to it. Returns 0, or 1 if there is not enough memory.
RSN_CSIM_API int rsn_csim_start(const rsn_csim_program *program, rsn_csim **run);

// Waits until the run has ended, at most so many milliseconds. Returns the state.
RSN_CSIM_API int rsn_csim_wait(rsn_csim *run, int milliseconds);

// Ends a run at once; the contents of its memories are then undefined.
RSN_CSIM_API void rsn_csim_stop(rsn_csim *run);

// Returns the report of a run that has ended: a line per fact, fields separated by tabs, valid until the run is freed.
//   error   <text>
//   wait    <process> <uOP> get|put <stream> <elements>      a process that cannot go on, and what it lacks
//   held    <process> <uOP> <stream> <elements> <stages>     what a loop of style stp holds back while it waits
//   stream  <stream> <depth> <written> <taken> <last uOP>    elements, and the uOP that wrote last
// An element of a stream to or from an MME is a lane, one 16th of a beat.
RSN_CSIM_API const char *rsn_csim_report(rsn_csim *run);

// Frees a run; stops it first if it is still running.
RSN_CSIM_API void rsn_csim_free(rsn_csim *run);

#ifdef __cplusplus
}
#endif

#endif  // RSN_CSIM_H
