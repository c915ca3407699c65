// What stands in the place of HLS pragmas in the text that clang compiles for the checker: calls that no pass removes. A
// call carries the number of its pragma, and what of it only the compiler can compute.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_HLSCHECK_MARKERS_H
#define RSN_HLSCHECK_MARKERS_H

extern "C" {
void rsn_hls_scope(int pragma) noexcept;  // of the scope that it stands in
// loop: 0, in the place of which the checker puts the number of the loop that the call stands in.
void rsn_hls_pipeline(int pragma, unsigned interval, int loop) noexcept;  // interval: 0 if none is stated
void rsn_hls_unroll(int pragma, unsigned factor, int loop) noexcept;      // factor: 0 for all of it
void rsn_hls_variable(int pragma, const void *variable, unsigned value) noexcept;  // value: a factor or a distance
// Accesses of streams and of AXI ports, one element each.
void rsn_hls_get(void *stream) noexcept;
void rsn_hls_put(void *stream) noexcept;
void rsn_hls_look(void *stream) noexcept;
void rsn_hls_request(void *port, int writes, unsigned long long offset, unsigned long long length) noexcept;
void rsn_hls_response(void *port) noexcept;
void rsn_hls_fence() noexcept;
}

#endif  // RSN_HLSCHECK_MARKERS_H
