#include "api/recipe/output.h"

namespace millrace::api::recipe {

const char* stage_name(Stage stage) {
  switch (stage) {
    case Stage::kReasoning:
      return "reasoning";
    case Stage::kToolBlock:
      return "tool_block";
    case Stage::kAnswer:
      break;
  }
  return "answer";
}

}  // namespace millrace::api::recipe
