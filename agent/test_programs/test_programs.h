#pragma once

#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace millrace::agent::test_programs {

/// A folder that goes away with the test, with shell scripts in bin/ that pose as the programs an
/// agent starts. What they do is told by files in the model folder:
///   bad      print a complaint and exit with 1
///   mute     never become ready
///   stubborn ignore SIGTERM
///   garbage  write a ready-file that is no JSON
class TestPrograms {
 public:
  TestPrograms() {
    std::string pattern = std::filesystem::temp_directory_path() / "agent_test_XXXXXX";
    folder_ = mkdtemp(pattern.data());
    std::filesystem::create_directory(model_dir());
    std::filesystem::create_directory(bin_dir());
    write_program("millrace-worker", "--worker-id");
    write_program("millrace-entrypoint", "--entrypoint-id");
  }
  ~TestPrograms() { std::filesystem::remove_all(folder_); }

  std::string folder() const { return folder_; }
  std::string bin_dir() const { return folder_ + "/bin"; }
  std::string model_dir() const { return folder_ + "/model"; }
  std::string data_dir() const { return folder_ + "/data"; }

  void behave(const std::string& how) const { std::ofstream(model_dir() + "/" + how) << "\n"; }
  void behave_well() const {
    for (const auto& entry : std::filesystem::directory_iterator(model_dir())) {
      std::filesystem::remove(entry.path());
    }
  }

 private:
  void write_program(const std::string& name, const std::string& id_flag) const {
    const std::string path = bin_dir() + "/" + name;
    std::ofstream(path) << "#!/bin/sh\n"
                        << "while [ $# -gt 1 ]; do case \"$1\" in\n"
                        << "  --ready-file) ready=$2;; --model) model=$2;;\n"
                        << "  --model-id) model_id=$2;; " << id_flag << ") id=$2;; esac; shift 2\n"
                        << "done\n"
                        << "trap 'echo \"$id says goodbye\"; exit 0' TERM\n"
                        << "[ -e $model/stubborn ] && trap '' TERM\n"
                        << "echo \"$id starts\"\n"
                        << "if [ -e $model/bad ]; then\n"
                        << "  echo 'tensor layers.0.x is missing' >&2; exit 1\n"
                        << "fi\n"
                        << "[ -e $model/garbage ] && echo 'not json' >$ready.tmp\n"
                        << "[ -e $model/garbage ] || printf "
                        << "'{\"pid\":%d,\"address\":\"127.0.0.1:7\",\"model_id\":\"%s\","
                        << "\"artifact_digest\":\"ab\"}' $$ $model_id >$ready.tmp\n"
                        << "[ -e $model/mute ] || mv $ready.tmp $ready\n"
                        << "while :; do sleep 0.02; done\n";
    chmod(path.c_str(), 0755);
  }

  std::string folder_;
};

}  // namespace millrace::agent::test_programs
