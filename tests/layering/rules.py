"""The direction of includes and the home of each package, as tables.

Source of both: docs/architecture.md ("Folders") and docs/dependencies.md. A folder that is missing
here is an error of the check, so that a new one is placed on purpose.
"""

# Lowest layer first. A file may include files of its own layer and of lower ones; a longer prefix
# wins over a shorter one.
LAYERS = [
    ["common"],
    ["api/proto", "api/admin", "api/tokenizer", "api/recipe", "api/image", "api/python", "dataplane/cost"],
    ["storage"],
    ["dataplane"],
    ["api/entrypoint", "agent", "controller"],
    ["deploy/cli"],
    ["tests"],
]

# (includer, included): forbidden although the layers would allow it, also through other targets.
FORBIDDEN = [
    ("agent", "controller"),
    ("agent", "api/entrypoint"),
    ("controller", "agent"),
    ("controller", "api/entrypoint"),
    ("api/entrypoint", "agent"),
    ("api/entrypoint", "controller"),
    ("controller", "dataplane/engine"),
    ("controller", "dataplane/model"),
    ("controller", "dataplane/worker"),
    ("api/entrypoint", "dataplane/engine"),
    ("api/entrypoint", "dataplane/worker"),
]

# Prefix of an #include <...> -> (package, folders or files that may include it).
# "" means everywhere; "main.cc" means any file of that name; "tests" is always allowed.
HOMES = {
    "absl/": ("Abseil", [""]),
    "cpprest/": ("cpprestsdk", ["common/http"]),
    "pplx/": ("cpprestsdk", ["common/http"]),
    "boost/": ("Boost", ["common/http"]),
    "curl/": ("libcurl", ["common/http"]),
    "grpc": ("gRPC", ["api/proto", "storage/store", "storage/node", "storage/swa", "storage/fetch", "dataplane/worker", "dataplane/transfer", "api/entrypoint"]),
    "google/protobuf/": ("Protobuf", ["api/proto", "storage/store", "storage/node", "storage/swa", "storage/fetch", "dataplane/worker", "dataplane/transfer", "api/entrypoint"]),
    "openssl/": ("OpenSSL", ["common/crypto"]),
    "sqlite3.h": ("SQLite", ["common/sqlite"]),
    "rocksdb/": ("RocksDB", ["storage/index"]),
    "liburing": ("liburing", ["storage/disk"]),
    "isa-l": ("ISA-L", ["storage/ec"]),
    "prometheus/": ("prometheus-cpp", ["common/metrics"]),
    "nlohmann/": ("nlohmann-json", ["common/json.h", "common/json.cc", "common/json_fwd.h"]),
    "simdjson.h": ("simdjson", ["api/tokenizer"]),
    "spdlog/": ("spdlog", ["common/log"]),
    "CLI/": ("CLI11", ["main.cc", "deploy/cli"]),
    "toml++/": ("toml++", ["common/config"]),
    "cblas.h": ("OpenBLAS", ["dataplane/engine/cpu"]),
    "dnnl": ("oneDNN", ["dataplane/engine/cpu"]),
    "cuda": ("CUDA", ["dataplane/engine/cuda", "dataplane/moe", "dataplane/transfer"]),
    "cublas": ("CUDA", ["dataplane/engine/cuda"]),
    "nccl": ("NCCL", ["dataplane/engine/cuda", "dataplane/moe", "dataplane/transfer"]),
    "pcre2.h": ("PCRE2", ["api/tokenizer", "dataplane/grammar"]),
    "unicode/": ("ICU", ["api/tokenizer", "dataplane/grammar"]),
    "pybind11/": ("pybind11", ["api/python"]),
    "zlib.h": ("zlib", ["common/trace"]),
    "benchmark/": ("Google Benchmark", ["tests/bench"]),
    "immintrin.h": ("x86 intrinsics", ["dataplane/engine"]),
}

# GoogleTest is for tests alone: files named so, and the tests folder.
TEST_PACKAGES = ["gtest/", "gmock/"]

# Headers of the C library and the kernel, which have no home. Anything in <...> that is neither
# here, nor in HOMES, nor a plain C++ header name, is a new package without a home.
SYSTEM_PREFIXES = ["sys/", "netinet/", "arpa/", "linux/", "net/"]
SYSTEM_HEADERS = {
    "dirent.h", "dlfcn.h", "endian.h", "errno.h", "fcntl.h", "fenv.h", "grp.h", "ifaddrs.h", "limits.h",
    "netdb.h", "poll.h", "pthread.h", "pwd.h", "sched.h", "signal.h", "spawn.h", "stdint.h", "stdio.h",
    "stdlib.h", "string.h", "termios.h", "time.h", "ucontext.h", "unistd.h",
}

# These take seconds to compile: a header that includes one makes every includer pay. It may do so only
# when no other module includes it.
HEAVY_PREFIXES = ["grpc", "boost/", "cpprest/", "pplx/", "nlohmann/", "torch/", "spdlog/", "CLI/"]
HEAVY_OWN_HEADERS = {"common/json.h", "api/proto/engine.grpc.pb.h"}
# Headers whose purpose is to be the home of a heavy one: the JSON type, and the reader of JSON objects, which is for
# sources alone, too.
HEAVY_HEADER_HOMES = {"common/json.h", "common/json_fwd.h", "api/admin/object_reader.h"}

# Longest allowed source file, in lines. An entry in LONG_FILES needs its reason.
MAX_LINES = 600
LONG_FILES = {}
SOURCE_SUFFIXES = {".cc", ".h", ".cu", ".cuh", ".py", ".proto", ".cmake", ".mjs", ".sh", ".txt"}
NOT_SOURCES = {"deploy/packages.txt"}

# Folders that hold no sources of ours.
SKIPPED_FOLDERS = {".git", "build", "node_modules", "__pycache__", ".pytest_cache"}
