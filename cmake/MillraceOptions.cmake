# Settings that every target shares. They are attached to targets by millrace_module(), never set globally,
# except for the three below that must agree across the whole binary.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)

set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
include(GNUInstallDirs)

set(MILLRACE_SANITIZE "" CACHE STRING "Sanitizers, for example address,undefined or thread")
if(MILLRACE_SANITIZE)
  # A sanitizer instruments a whole program or nothing: this one is global on purpose.
  add_compile_options(-fsanitize=${MILLRACE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${MILLRACE_SANITIZE})
  if(MILLRACE_SANITIZE MATCHES "thread")
    # Boost.Asio uses atomic_thread_fence, which g++ warns about here: the sanitizer does not model it.
    add_compile_options(-Wno-tsan)
  endif()
endif()

if(MILLRACE_FUZZ)
  # What a fuzz target links tells libFuzzer where inputs lead; without it nothing is explored.
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CCACHE_PROGRAM}")
endif()

# The GPU engine is built where nvcc is, and never required.
option(MILLRACE_CUDA "Require the CUDA toolkit and build what needs it" OFF)
if(MILLRACE_CUDA)
  enable_language(CUDA)
  find_package(CUDAToolkit REQUIRED)
endif()
