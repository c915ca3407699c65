/* What XRT's no-op device lacks: an AI Engine graph, registers, and runs that do not end. Compiled against XRT's own headers, so that these are
 * its functions; loaded before libxrt_coreutil, which serves all others. Every call is appended to RSN_STUB_LOG.
 * SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xrt/xrt_graph.h>
#include <xrt/xrt_kernel.h>

static char graph;

static int told(const char *format, ...) {
    FILE *log = fopen(getenv("RSN_STUB_LOG"), "a");
    va_list values;
    va_start(values, format);
    vfprintf(log, format, values);
    va_end(values);
    fclose(log);
    return 0;
}

xrtGraphHandle xrtGraphOpen(xrtDeviceHandle device, const xuid_t uuid, const char *name) {
    if (getenv("RSN_STUB_BUSY")) {
        errno = EBUSY;
        return NULL;
    }
    told("open %d %02x%02x %s\n", device != NULL, uuid[0], uuid[15], name);
    return &graph;
}

void xrtGraphClose(xrtGraphHandle handle) { told("close %d\n", handle == &graph); }

int xrtGraphReset(xrtGraphHandle handle) { return told("reset %d\n", handle == &graph); }

/* RSN_STUB_GRAPH: how waiting ends, one letter after the other, the last one for ever: d for done, t and n for too early
 * as versions of XRT say it (errno, or the result), e for another error. */
int xrtGraphWaitDone(xrtGraphHandle handle, int milliseconds) {
    static unsigned calls;
    const char *ends = getenv("RSN_STUB_GRAPH");
    const char end = ends ? ends[calls] : 'd';
    if (ends && ends[calls + 1]) ++calls;
    if (end == 't' || end == 'e') errno = end == 't' ? ETIME : EINVAL;
    if (end != 'd') return end == 'n' ? -ETIME : -1;
    return milliseconds < 1 ? -1 : told("done %d\n", handle == &graph); /* to XRT less would be for ever */
}

int xrtGraphRun(xrtGraphHandle handle, int iterations) { return told("run %d %d\n", handle == &graph, iterations); }

int xrtGraphUpdateRTP(xrtGraphHandle handle, const char *port, const char *buffer, size_t size) {
    unsigned words[2] = {0, 0}, sum = 0;
    memcpy(words, buffer, sizeof words);
    for (size_t i = 0; i < size; ++i) sum = sum * 31 + (unsigned char)buffer[i];
    return told("update %d %s %zu %u %u\n", handle == &graph, port, size, words[1], sum);
}

int xrtKernelReadRegister(xrtKernelHandle kernel, uint32_t offset, uint32_t *value) {
    const unsigned long long fingerprint = strtoull(getenv("RSN_STUB_FINGERPRINT"), NULL, 16);
    if (!kernel || (offset != 0x4c && offset != 0x50)) return -1;
    *value = (uint32_t)(offset == 0x4c ? fingerprint : fingerprint >> 32);
    return 0;
}

/* RSN_STUB_STATES: what waiting gives, one digit after the other, the last one for ever. XRT itself is asked where it
 * has ended. */
enum ert_cmd_state xrtRunWaitFor(xrtRunHandle run, unsigned int milliseconds) {
    static unsigned calls;
    const char *states = getenv("RSN_STUB_STATES");
    if (!milliseconds) return ERT_CMD_STATE_ABORT; /* to XRT this would be for ever */
    if (!states) return xrtRunWait(run);
    const enum ert_cmd_state state = (enum ert_cmd_state)(states[calls] - '0');
    if (states[calls + 1]) ++calls;
    return state == ERT_CMD_STATE_COMPLETED ? xrtRunWait(run) : state;
}
