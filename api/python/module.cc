// The Python module millrace_recipe. What each thing does is told in the docstrings here; their
// types are in millrace_recipe.pyi.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/python/answer.h"
#include "api/python/errors.h"
#include "api/python/recipe.h"
#include "api/recipe/output.h"
#include "api/recipe/protocols.h"
#include "api/recipe/request_error.h"
#include "api/recipe/settings.h"
#include "api/tokenizer/tokenizer.h"
#include "common/str_cat.h"

namespace millrace::api::python {
namespace {

namespace py = pybind11;
using namespace py::literals;
using tokenizer::Tokenizer;

// Between Python and JSON.

py::object loads(const std::string& json) {
  return py::module_::import("json").attr("loads")(json);
}

/// A request as text: one that is a dict is written as JSON first.
std::string body_of(const py::object& request) {
  if (py::isinstance<py::bytes>(request) || py::isinstance<py::str>(request)) {
    return request.cast<std::string>();
  }
  const py::object text = py::module_::import("json").attr("dumps")(
      request, "ensure_ascii"_a = false, "allow_nan"_a = false);
  return text.cast<std::string>();
}

py::list loads_all(const std::vector<std::string>& texts) {
  py::list values;
  for (const std::string& text : texts) values.append(loads(text));
  return values;
}

// Names of enumerations.

recipe::Stage stage_of(const std::string& name) {
  if (name == "reasoning") return recipe::Stage::kReasoning;
  if (name == "answer") return recipe::Stage::kAnswer;
  if (name == "tool_block") return recipe::Stage::kToolBlock;
  raise(recipe::field_error("stage", "`stage` must be reasoning, answer or tool_block"));
}

recipe::FinishReason reason_of(const std::string& name) {
  if (name == "stop") return recipe::FinishReason::kStop;
  if (name == "length") return recipe::FinishReason::kLength;
  raise(recipe::field_error("reason", "`reason` must be stop or length"));
}

const char* reason_name(recipe::FinishReason reason) {
  switch (reason) {
    case recipe::FinishReason::kLength:
      return "length";
    case recipe::FinishReason::kToolCalls:
      return "tool_calls";
    case recipe::FinishReason::kStop:
      break;
  }
  return "stop";
}

const char* event_name(recipe::ToolEvent::Kind kind) {
  switch (kind) {
    case recipe::ToolEvent::Kind::kBegin:
      return "begin";
    case recipe::ToolEvent::Kind::kArguments:
      return "arguments";
    case recipe::ToolEvent::Kind::kEnd:
      break;
  }
  return "end";
}

/// Calls what needs no interpreter while other threads run.
template <typename Function>
auto without_gil(Function function) {
  auto result = [&] {
    const py::gil_scoped_release no_gil;
    return function();
  }();
  return take(std::move(result));
}

// Tokenizer.

std::vector<TokenId> encode(const Tokenizer& tokenizer, std::string_view text, bool special) {
  return without_gil(
      [&] { return special ? tokenizer.encode_with_special(text) : tokenizer.encode_text(text); });
}

void add_tokenizer(py::module_& module) {
  py::class_<Tokenizer, std::shared_ptr<Tokenizer>>(
      module, "Tokenizer", "A Hugging Face tokenizer.json of the byte-level BPE family.")
      .def(py::init([](const std::string& path) {
             return std::shared_ptr<Tokenizer>(take(Tokenizer::open(path)));
           }),
           "path"_a, "Reads a tokenizer.json.")
      .def("encode", &encode, "text"_a, py::kw_only(), "special"_a = false,
           "Token ids of a text, by the base vocabulary alone; with special=True the spellings of\n"
           "added tokens stand for these tokens. Other threads run meanwhile.")
      .def(
          "count",
          [](const Tokenizer& tokenizer, std::string_view text, bool special) {
            return without_gil([&]() -> absl::StatusOr<std::size_t> {
              if (!special) return tokenizer.count_text(text);
              const auto ids = tokenizer.encode_with_special(text);
              if (!ids.ok()) return ids.status();
              return ids->size();
            });
          },
          "text"_a, py::kw_only(), "special"_a = false, "len(encode(text)), without the list.")
      .def(
          "decode",
          [](const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
            return tokenizer.decode(ids);
          },
          "ids"_a, "The text of token ids; bytes that are no UTF-8 become U+FFFD.")
      .def("control_token", &Tokenizer::control_token, "spelling"_a,
           "The id of an added token, or None.")
      .def(
          "token_bytes",
          [](const Tokenizer& tokenizer, TokenId id) {
            return py::bytes(std::string(tokenizer.token_bytes(id)));
          },
          "id"_a, "The bytes that a token stands for; none for an id without a token.")
      .def_property_readonly("id_bound", &Tokenizer::id_bound,
                             "One past the highest id that has a token.");
}

// Prompt.

void add_prompt(py::module_& module) {
  py::class_<Prompt>(module, "Prompt", "A rendered prompt.")
      .def_property_readonly("text", &Prompt::text, "The prompt, control tokens spelled out.")
      .def_property_readonly(
          "segments",
          [](const Prompt& prompt) {
            py::list segments;
            for (const recipe::Segment& segment : prompt.segments()) {
              segments.append(py::make_tuple(segment.text, segment.is_control));
            }
            return segments;
          },
          "Its parts as (text, is_control): only a control part becomes a control token.")
      .def_property_readonly(
          "stage", [](const Prompt& prompt) { return recipe::stage_name(prompt.stage()); },
          "Where the output begins: reasoning, answer or tool_block.")
      .def_property_readonly("images", &Prompt::images,
                             "References of its images, in the order of their places.")
      .def(
          "encode",
          [](const Prompt& prompt) { return without_gil([&] { return prompt.encode(); }); },
          "Its token ids. Other threads run meanwhile.")
      .def(
          "count", [](const Prompt& prompt) { return without_gil([&] { return prompt.count(); }); },
          "How many ids encode() would give. Other threads run meanwhile.");
}

// Outputs.

/// What feed() takes, as an engine tells it.
absl::StatusOr<std::vector<recipe::GeneratedToken>> tokens_of(
    const Tokenizer& tokenizer, std::vector<TokenId> ids, std::vector<float> logprobs,
    std::vector<std::vector<std::pair<TokenId, float>>> top_logprobs) {
  return generated({std::move(ids), std::move(logprobs), std::move(top_logprobs)}, tokenizer);
}

void add_answer(py::module_& module) {
  using Floats = std::vector<float>;
  using Tops = std::vector<std::vector<std::pair<TokenId, float>>>;
  py::class_<Answer>(module, "Answer",
                     "The answer to one request: feed() and then finish() give its protocol's "
                     "events, complete() gives\nits whole object. Use one of the two ways.")
      .def_property_readonly("prompt_ids", &Answer::prompt_ids, "Token ids of the prompt.")
      .def_property_readonly("stream", &Answer::is_streamed, "The request asks for a stream.")
      .def_property_readonly(
          "is_done", [](Answer& answer) { return answer.writer().is_done(); },
          "More tokens would change nothing: a stop string was found, or the calls are over.")
      .def(
          "feed",
          [](Answer& answer, std::vector<TokenId> ids, Floats logprobs, Tops tops) {
            const auto tokens = take(tokens_of(answer.tokenizer(), std::move(ids),
                                               std::move(logprobs), std::move(tops)));
            return loads_all(answer.writer().push(tokens));
          },
          "ids"_a, py::kw_only(), "logprobs"_a = Floats(), "top_logprobs"_a = Tops(),
          "The events that these tokens cause; the first call gives the opening ones as well.")
      .def(
          "finish",
          [](Answer& answer, const std::string& reason) {
            return loads_all(answer.writer().finish(reason_of(reason)));
          },
          "reason"_a = "stop", "The events that end the stream; reason is stop or length.")
      .def(
          "complete",
          [](Answer& answer, std::vector<TokenId> ids, const std::string& reason, Floats logprobs,
             Tops tops) {
            const auto tokens = take(tokens_of(answer.tokenizer(), std::move(ids),
                                               std::move(logprobs), std::move(tops)));
            return loads(answer.writer().complete(tokens, reason_of(reason)));
          },
          "ids"_a, "reason"_a = "stop", py::kw_only(), "logprobs"_a = Floats(),
          "top_logprobs"_a = Tops(), "The protocol's object for an answer of these tokens.");
}

py::dict delta_dict(const recipe::OutputDelta& delta) {
  py::list events;
  for (const recipe::ToolEvent& event : delta.tool_events) {
    events.append(py::dict("kind"_a = event_name(event.kind), "text"_a = event.text));
  }
  return py::dict("reasoning"_a = delta.reasoning, "text"_a = delta.text, "tool_events"_a = events);
}

void add_parser(py::module_& module) {
  py::class_<Parser>(module, "OutputParser",
                     "Reads a model's output: reasoning, answer, tool calls. However ids are "
                     "grouped into calls of feed(),\nthe deltas add up to the same.")
      .def(
          "feed",
          [](Parser& parser, std::vector<TokenId> ids) {
            recipe::OutputDelta delta;
            for (const auto& token :
                 take(generated({std::move(ids), {}, {}}, parser.tokenizer()))) {
              parser.parser().push(token, delta);
            }
            return delta_dict(delta);
          },
          "ids"_a, "What may be told now: {\"reasoning\", \"text\", \"tool_events\"}.")
      .def(
          "finish",
          [](Parser& parser, const std::string& reason) {
            recipe::OutputDelta delta;
            const recipe::FinishReason told = parser.parser().finish(reason_of(reason), delta);
            py::dict result = delta_dict(delta);
            result["finish_reason"] = reason_name(told);
            result["stop"] = parser.parser().matched_stop();
            return result;
          },
          "reason"_a = "stop",
          "What was held back, and {\"finish_reason\", \"stop\"}: the reason to tell, and the\n"
          "stop string that was found.")
      .def_property_readonly("is_done", [](Parser& parser) { return parser.parser().is_done(); })
      .def_property_readonly(
          "reasoning_tokens", [](Parser& parser) { return parser.parser().reasoning_tokens(); },
          "Tokens of the reasoning so far.");
}

// Recipe.

recipe::Settings settings_of(const std::string& encoding, const py::kwargs& kwargs) {
  recipe::Settings settings;
  check(recipe::change_setting("encoding", encoding, settings));
  for (const auto& [name, value] : kwargs) {
    check(recipe::change_setting(name.cast<std::string>(), value.cast<std::string>(), settings));
  }
  return settings;
}

recipe::ParseOptions parse_options(const std::string& stage,
                                   const std::optional<std::vector<std::string>>& tools,
                                   std::vector<std::string> stop, bool parallel_tool_calls) {
  recipe::ParseOptions options;
  options.stage = stage_of(stage);
  options.stops = std::move(stop);
  if (!tools) return options;
  options.markup = recipe::Markup::kCalls;
  for (const std::string& name : *tools) options.calls.tools.push_back({name, {}});
  options.calls.parallel_calls =
      parallel_tool_calls ? recipe::ParallelCalls::kAllowed : recipe::ParallelCalls::kOnlyOne;
  return options;
}

void add_recipe(py::module_& module) {
  py::class_<Recipe>(module, "Recipe",
                     "The rules of one model: requests to prompts, outputs to answers.\n\n"
                     "Requests are dicts, or JSON as str or bytes; protocols() lists what they may "
                     "be of.")
      .def(py::init([](const std::shared_ptr<Tokenizer>& tokenizer, const std::string& encoding,
                       std::optional<std::string> model, std::string system_fingerprint,
                       const py::kwargs& kwargs) {
             return take(Recipe::open(tokenizer, settings_of(encoding, kwargs), std::move(model),
                                      std::move(system_fingerprint)));
           }),
           "tokenizer"_a, py::kw_only(), "encoding"_a = "v41", "model"_a = py::none(),
           "system_fingerprint"_a = "",
           "encoding is v4 or v41; further arguments are settings() by name. Without a model,\n"
           "it is called whatever a request calls it.")
      .def(
          "convert",
          [](const Recipe& recipe, const std::string& protocol, const py::object& request) {
            const std::string body = body_of(request);
            return loads(without_gil([&] { return recipe.convert(protocol, body); }));
          },
          "protocol"_a, "request"_a,
          "{\"conversation\", \"sampling\", \"parallel_tool_calls\", \"stream\"} of a request.")
      .def(
          "render",
          [](const Recipe& recipe, const std::string& protocol, const py::object& request) {
            const std::string body = body_of(request);
            return without_gil([&] { return recipe.render(protocol, body); });
          },
          "protocol"_a, "request"_a, "The prompt of a request.")
      .def(
          "render_conversation",
          [](const Recipe& recipe, const py::object& conversation) {
            const std::string json = body_of(conversation);
            return without_gil([&] { return recipe.render_conversation(json); });
          },
          "conversation"_a, "The prompt of a conversation in the form that convert() gives.")
      .def(
          "count",
          [](const Recipe& recipe, const std::string& protocol, const py::object& request) {
            const std::string body = body_of(request);
            return without_gil([&]() -> absl::StatusOr<std::size_t> {
              const auto prompt = recipe.render(protocol, body);
              if (!prompt.ok()) return prompt.status();
              return prompt->count();
            });
          },
          "protocol"_a, "request"_a, "Tokens of a request's prompt. Other threads run meanwhile.")
      .def(
          "prepare",
          [](const Recipe& recipe, const std::string& protocol, const py::object& request,
             const std::string& id, std::int64_t created) {
            const std::string body = body_of(request);
            return without_gil([&] { return recipe.prepare(protocol, body, id, created); });
          },
          "protocol"_a, "request"_a, py::kw_only(), "id"_a = "recipe", "created"_a = 0,
          "The Answer to a request, to be given an engine's tokens. id and created (Unix time)\n"
          "name it in its protocol. Other threads run meanwhile.")
      .def(
          "parser",
          [](const Recipe& recipe, const std::string& stage,
             const std::optional<std::vector<std::string>>& tools, std::vector<std::string> stop,
             bool parallel_tool_calls) {
            return recipe.parser(parse_options(stage, tools, std::move(stop), parallel_tool_calls));
          },
          py::kw_only(), "stage"_a = "answer", "tools"_a = py::none(),
          "stop"_a = std::vector<std::string>(), "parallel_tool_calls"_a = true,
          "An OutputParser outside of any protocol. Without a list of tools (which may be empty),\n"
          "tool markup is text.");
}

py::dict settings_dict() {
  py::dict settings;
  for (const recipe::Setting& setting : recipe::all_settings()) {
    py::list values;
    for (const std::string_view value : setting.values) values.append(py::str(std::string(value)));
    settings[py::str(std::string(setting.name))] =
        py::make_tuple(std::string(setting.value_of({})), py::tuple(values));
  }
  return settings;
}

}  // namespace

PYBIND11_MODULE(millrace_recipe, module) {
  module.doc() =
      "Prompts and answers of DeepSeek V4 and V4.1, as Millrace serves them: requests of several\n"
      "protocols to prompts and token ids, token ids to answers and streams.";
  add_error(module);
  add_tokenizer(module);
  add_prompt(module);
  add_answer(module);
  add_parser(module);
  add_recipe(module);
  module.def("settings", &settings_dict, "Name of each setting -> (its default, all its values).");
  module.def(
      "protocols",
      [] {
        std::vector<std::string> names;
        for (const recipe::Protocol& protocol : recipe::all_protocols()) {
          names.emplace_back(protocol.name);
        }
        return names;
      },
      "Names of the protocols.");
}

}  // namespace millrace::api::python
