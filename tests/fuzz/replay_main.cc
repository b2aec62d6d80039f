// Without libFuzzer a fuzz target is an ordinary test: it runs every saved input once.

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>

#include "common/mapped_file.h"
#include "common/str_cat.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

int main(int argc, char** argv) {
  int inputs = 0;
  for (int i = 1; i < argc; ++i) {
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
      const auto content = millrace::read_file(entry.path().string());
      if (!content.ok()) {
        std::fprintf(stderr, "%s\n", std::string(millrace::message_of(content.status())).c_str());
        return 1;
      }
      LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(content->data()),
                             content->size());
      ++inputs;
    }
  }
  std::printf("%d inputs\n", inputs);
  return inputs > 0 ? 0 : 1;  // an empty corpus tests nothing
}
