// millrace-tokenizer-golden: compares a tokenizer with recorded ids.
//
//     millrace-tokenizer-golden TOKENIZER_JSON LINES
//
// Each line is {"id", "text", "ids", "plain"}: the ids with added tokens recognised, and with the
// base vocabulary alone, where that differs. Decoding the ids must give the text back, counting
// them their number. Prints what is wrong and a summary.
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "api/tokenizer/encode_pool.h"
#include "api/tokenizer/tokenizer.h"
#include "common/json.h"
#include "common/str_cat.h"

namespace millrace::tests {
namespace {

using api::tokenizer::EncodePool;
using api::tokenizer::Tokenizer;
using Ids = std::vector<TokenId>;

bool is_right(const Json& line, const Tokenizer& tokenizer, EncodePool& pool) {
  const auto text = line.at("text").get<std::string>();
  const Ids ids = line.at("ids").get<Ids>();
  const Ids plain = line.contains("plain") ? line.at("plain").get<Ids>() : ids;
  const auto special_ids = tokenizer.encode_with_special(text);
  const auto plain_ids = tokenizer.encode_text(text);
  const auto shared_ids = tokenizer.encode_text(text, &pool);
  const auto count = tokenizer.count_text(text);
  return special_ids.ok() && *special_ids == ids && plain_ids.ok() && *plain_ids == plain &&
         shared_ids.ok() && *shared_ids == plain && count.ok() && *count == plain.size() &&
         tokenizer.decode(ids) == text;
}

int run(const std::string& tokenizer_path, const std::string& lines_path) {
  const auto tokenizer = Tokenizer::open(tokenizer_path);
  if (!tokenizer.ok()) {
    std::cerr << message_of(tokenizer.status()) << "\n";
    return 2;
  }
  EncodePool pool(1);
  std::ifstream lines(lines_path);
  int count = 0;
  int wrong = 0;
  for (std::string text; std::getline(lines, text); ++count) {
    const auto line = parse_json(text);
    if (line.ok() && is_right(*line, **tokenizer, pool)) continue;
    ++wrong;
    std::cout << "wrong: line " << count + 1 << ": " << text.substr(0, 200) << "\n";
  }
  std::cout << count << " strings, " << wrong << " wrong\n";
  return wrong == 0 && count > 0 ? 0 : 1;
}

}  // namespace
}  // namespace millrace::tests

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: millrace-tokenizer-golden TOKENIZER_JSON LINES\n";
    return 2;
  }
  return millrace::tests::run(argv[1], argv[2]);
}
