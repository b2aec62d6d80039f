#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "api/recipe/conversation.h"
#include "api/recipe/render_options.h"
#include "api/recipe/segment_list.h"

namespace millrace::api::recipe {

/// Names of the tool markup, as they are written behind `｜DSML｜`.
struct MarkupNames {
  std::string_view block;
  std::string_view invoke;
  std::string_view parameter;
};
MarkupNames markup_names(PromptFormat format);

/// The tools block of a system message, without the blank line in front of it. Ends in a newline.
void render_tools_block(const std::vector<const Tool*>& tools, const RenderOptions& options,
                        SegmentList& out);

/// The calls of an assistant turn, the blank line in front included. Arguments that are no JSON
/// object become one string parameter named `arguments`, which holds their text.
void render_tool_calls(const std::vector<ToolCall>& calls, PromptFormat format, SegmentList& out);

/// The opening of a tool block behind the header of an answer that must call a tool.
void render_open_block(PromptFormat format, SegmentList& out);

/// The demand for an answer in JSON, without the blank line in front of it.
void render_response_format(SegmentList& out);

}  // namespace millrace::api::recipe
