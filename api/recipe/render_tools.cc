#include "api/recipe/render_tools.h"

#include <array>
#include <optional>
#include <utility>

#include "api/recipe/control_spelling.h"
#include "api/recipe/json_text.h"
#include "common/str_cat.h"

namespace millrace::api::recipe {
namespace {

/// The fixed text around the schemas; @B, @I and @P stand for the markup's names.
constexpr std::string_view kBefore =
    R"(## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<｜DSML｜@B>" block like the following:

<｜DSML｜@B>
<｜DSML｜@I name="$TOOL_NAME">
<｜DSML｜@P name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜@P>
...
</｜DSML｜@I>
<｜DSML｜@I name="$TOOL_NAME2">
...
</｜DSML｜@I>
</｜DSML｜@B>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

)";
constexpr std::string_view kAfter =
    "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool "
    "calls.\n";

std::string with_names(std::string_view text, const MarkupNames& names) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '@') {
      out.push_back(text[i]);
      continue;
    }
    const char which = text[++i];
    out.append(which == 'B' ? names.block : which == 'I' ? names.invoke : names.parameter);
  }
  return out;
}

/// Text of the template: the spellings of control tokens in it stand for these tokens, or do not.
void template_text(std::string_view text, TemplateSpellings spellings, SegmentList& out) {
  constexpr std::array kSpellings = {spelling::kDsml, spelling::kThinkBegin, spelling::kThinkEnd};
  while (spellings == TemplateSpellings::kControlTokens) {
    std::size_t first = std::string_view::npos;
    std::string_view found;
    for (std::string_view candidate : kSpellings) {
      if (const std::size_t at = text.find(candidate); at < first) {
        first = at;
        found = candidate;
      }
    }
    if (found.empty()) break;
    out.text(text.substr(0, first));
    out.control(found);
    text.remove_prefix(first + found.size());
  }
  out.text(text);
}

/// A namespace's description stands in front of its tools' own.
std::string description_of(const Tool& tool) {
  if (tool.namespace_description.empty()) return tool.description;
  return str_cat(tool.namespace_description, "\n", tool.description);
}

std::string schema_line(const Tool& tool, SchemaKeys keys) {
  if (keys == SchemaKeys::kAsGiven && !tool.as_given.empty()) return tool.as_given;
  return str_cat("{\"name\": ", quoted(tool.full_name()),
                 ", \"description\": ", quoted(description_of(tool)),
                 ", \"parameters\": ", tool.parameters, "}");
}

/// Writes pieces of markup: text around one marker token.
class MarkupWriter {
 public:
  explicit MarkupWriter(SegmentList& out) : out_(out) {}

  void open(std::string_view name, std::string_view rest) { tag("<", name, rest); }
  void close(std::string_view name, std::string_view rest) { tag("</", name, str_cat(">", rest)); }
  void text(std::string_view text) { out_.text(text); }

 private:
  void tag(std::string_view bracket, std::string_view name, std::string_view rest) {
    out_.text(bracket);
    out_.control(spelling::kDsml);
    out_.text(name);
    out_.text(rest);
  }

  SegmentList& out_;
};

struct Argument {
  std::string name;
  std::string text;
  bool is_string = false;
};

/// The arguments of a call in order; of a repeated name the last value at the first place.
std::vector<Argument> arguments_of(const ToolCall& call) {
  std::vector<Argument> as_text = {{"arguments", call.arguments, true}};
  const auto json = python_json(call.arguments);
  if (!json.ok()) return as_text;
  const auto members = raw_members(*json);
  if (!members.ok()) return as_text;
  std::vector<Argument> arguments;
  arguments.reserve(members->size());
  for (const RawMember& member : *members) {
    std::optional<std::string> text = string_value(member.value);
    const bool is_string = text.has_value();
    arguments.push_back(
        {member.name, is_string ? *std::move(text) : std::string(member.value), is_string});
  }
  return arguments;
}

}  // namespace

MarkupNames markup_names(PromptFormat format) {
  if (format == PromptFormat::kV41) return {" calls", " invoke", " parameter"};
  return {"tool_calls", "invoke", "parameter"};
}

void render_tools_block(const std::vector<const Tool*>& tools, const RenderOptions& options,
                        SegmentList& out) {
  template_text(with_names(kBefore, markup_names(options.format)), options.template_spellings, out);
  for (std::size_t i = 0; i < tools.size(); ++i) {
    if (i > 0) out.text("\n");
    out.text(schema_line(*tools[i], options.schema_keys));
  }
  out.text(kAfter);
}

void render_tool_calls(const std::vector<ToolCall>& calls, PromptFormat format, SegmentList& out) {
  const MarkupNames names = markup_names(format);
  MarkupWriter writer(out);
  writer.text("\n\n");
  writer.open(names.block, ">\n");
  for (const ToolCall& call : calls) {
    writer.open(names.invoke, str_cat(" name=\"", call.name, "\">\n"));
    const std::vector<Argument> arguments = arguments_of(call);
    if (arguments.empty()) writer.text("\n");
    for (const Argument& argument : arguments) {
      writer.open(names.parameter, str_cat(" name=\"", argument.name, "\" string=\"",
                                           argument.is_string ? "true" : "false", "\">"));
      writer.text(argument.text);
      writer.close(names.parameter, "\n");
    }
    writer.close(names.invoke, "\n");
  }
  writer.close(names.block, "");
}

void render_open_block(PromptFormat format, SegmentList& out) {
  MarkupWriter writer(out);
  writer.text("\n\n");
  writer.open(markup_names(format).block, ">\n");
}

void render_response_format(SegmentList& out) {
  out.text(
      "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"
      "{\"type\": \"json_object\"}");
}

}  // namespace millrace::api::recipe
