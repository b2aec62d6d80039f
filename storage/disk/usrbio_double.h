#pragma once

/// Stands for 3FS's daemon and library in tests: storage/disk/usrbio_double.cc is built as a shared
/// library with the names of libhf3fs_api_shared.so, over the files of the machine, and has that
/// one's hazards:
///
/// - a ring's entry stays taken until its completion is reaped; a full ring refuses (-EAGAIN)
/// - completions come late and out of order; meanwhile garbage is written into read buffers
/// - what was never written reads as zeros, or fails on a ring that forbids holes
/// - a ring with a positive depth leaves a short batch waiting
/// - registering a file returns <= 0 for success
/// - preparing from two threads is an abort
/// - a frozen daemon ends nothing, and goes on later where it was

/// Any path with this in it is "on the mount".
inline constexpr char kUsrbioDoubleMount[] = "3fs_double";

/// Exported by the library: 1 freezes the daemon, 0 thaws it.
using UsrbioDoubleFreeze = void (*)(int);
inline constexpr char kUsrbioDoubleFreezeName[] = "usrbio_double_freeze";
