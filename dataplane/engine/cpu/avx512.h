#pragma once

// What the AVX-512 sources share: the intrinsics, and the attributes of functions compiled for
// them.
#if defined(__x86_64__)

// GCC 12 takes the deliberately undefined operand inside its own intrinsics for a bug of ours (GCC
// bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop

// The instruction set is asked for at run time, so only these functions are compiled for it.
#define MILLRACE_AVX512_TARGET "avx512f,avx512bw,avx512dq,avx512vl"
#define MILLRACE_AVX512 __attribute__((target(MILLRACE_AVX512_TARGET)))
#define MILLRACE_AVX512_INLINE __attribute__((target(MILLRACE_AVX512_TARGET), always_inline)) inline

#endif
