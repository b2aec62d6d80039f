#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "api/recipe/control_spelling.h"
#include "api/recipe/prompt.h"
#include "api/recipe/render_effort.h"
#include "api/recipe/render_tools.h"
#include "api/recipe/segment_list.h"
#include "common/status_macros.h"

namespace millrace::api::recipe {
namespace {

constexpr std::string_view kPartSeparator = "\n\n";

/// A message in the place and role in which it is rendered.
struct Turn {
  const Message* message = nullptr;
  Role role = Role::kUser;
  bool joins_previous = false;  ///< a leading system message of V4 behind another one
};

std::string_view spelling_of(Task task) {
  switch (task) {
    case Task::kAction:
      return spelling::kAction;
    case Task::kQuery:
      return spelling::kQuery;
    case Task::kAuthority:
      return spelling::kAuthority;
    case Task::kDomain:
      return spelling::kDomain;
    case Task::kTitle:
      return spelling::kTitle;
    case Task::kReadUrl:
      break;
  }
  return spelling::kReadUrl;
}

class Renderer {
 public:
  Renderer(const Conversation& conversation, const RenderOptions& options)
      : conversation_(conversation), options_(options) {}

  RenderedPrompt render(const std::string& effort) {
    collect_tools();
    arrange();
    drop_what_is_old();
    out_.control(spelling::kBegin);
    if (!effort.empty()) {
      if (is_v41()) out_.control(spelling::kSystem);
      out_.text(effort);
    }
    for (std::size_t i = 0; i < turns_.size();) i = render_turns(i, effort.empty());
    const Stage stage = render_end();
    return {out_.take(), stage, std::move(images_)};
  }

 private:
  bool is_v41() const { return options_.format == PromptFormat::kV41; }
  bool is_thinking() const { return conversation_.thinking == Thinking::kOn; }
  bool has_json_format() const {
    return conversation_.response_format == ResponseFormat::kJsonObject;
  }

  /// The request's tools that the prompt lists.
  void collect_tools() {
    const ToolChoice& choice = conversation_.tool_choice;
    if (choice.kind == ToolChoice::Kind::kNone) return;
    for (const Tool& tool : conversation_.tools) {
      if (choice.kind == ToolChoice::Kind::kNamed && tool.full_name() != choice.name) continue;
      tools_.push_back(&tool);
    }
  }

  /// Puts messages into the roles in which they are rendered, and finds the system message that
  /// carries the tools and the response format; an empty one is made when there is none.
  void arrange() {
    bool is_leading = true;
    for (const Message& message : conversation_.messages) {
      Turn turn{&message, message.role, false};
      const bool is_system = message.role == Role::kSystem;
      if (!is_v41() && options_.v4_system == V4System::kOneThenUser && is_system) {
        if (is_leading) {
          turn.joins_previous = !turns_.empty();
        } else {
          turn.role = Role::kUser;
        }
      }
      is_leading = is_leading && is_system;
      turns_.push_back(turn);
    }
    if (tools_.empty() && !has_json_format()) return;
    const auto is_system = [](const Turn& turn) { return turn.role == Role::kSystem; };
    auto carrier = std::find_if(turns_.begin(), turns_.end(), is_system);
    if (carrier == turns_.end()) {
      carrier = turns_.insert(turns_.begin(), Turn{&empty_system_, Role::kSystem, false});
    }
    while (carrier + 1 != turns_.end() && (carrier + 1)->joins_previous) ++carrier;
    carrier_ = carrier->message;
  }

  /// Finds the last message that opens a round: a user or developer message, or a V4.1 system
  /// message that is not the first. Tool results do not: a model that is in the middle of calling
  /// tools keeps what it has thought so far.
  std::ptrdiff_t last_round_start() const {
    for (std::size_t i = turns_.size(); i-- > 0;) {
      const Role role = turns_[i].role;
      if (role == Role::kUser || role == Role::kDeveloper ||
          (role == Role::kSystem && is_v41() && i > 0)) {
        return static_cast<std::ptrdiff_t>(i);
      }
    }
    return -1;
  }

  /// Without tools, reasoning and developer messages before the last round are dropped.
  void drop_what_is_old() {
    const bool has_tools =
        !tools_.empty() || std::any_of(turns_.begin(), turns_.end(), [](const Turn& turn) {
          return !turn.message->tools.empty();
        });
    round_start_ = -1;
    if (!is_thinking() || has_tools || options_.old_reasoning == OldReasoning::kKeep) return;
    const std::ptrdiff_t last = last_round_start();
    const auto is_old_developer = [&](const Turn& turn) {
      return turn.role == Role::kDeveloper && &turn - turns_.data() < last;
    };
    std::vector<Turn> kept;
    std::copy_if(turns_.begin(), turns_.end(), std::back_inserter(kept),
                 [&](const Turn& turn) { return !is_old_developer(turn); });
    turns_ = std::move(kept);
    round_start_ = last_round_start();
  }

  bool shows_reasoning(std::size_t index) const {
    return is_thinking() && static_cast<std::ptrdiff_t>(index) > round_start_;
  }

  /// Renders the turn at `index`, or the whole run of user messages and tool results that begins
  /// there; returns the index behind it.
  std::size_t render_turns(std::size_t index, bool is_effort_empty) {
    const Turn& turn = turns_[index];
    switch (turn.role) {
      case Role::kSystem:
        if (turn.joins_previous) out_.text(kPartSeparator);
        if (is_v41() && (index > 0 || is_effort_empty)) out_.control(spelling::kSystem);
        render_parts(*turn.message);
        render_blocks(*turn.message);
        break;
      case Role::kDeveloper:
        out_.control(spelling::kUser);
        render_parts(*turn.message);
        render_blocks(*turn.message);
        break;
      case Role::kUser:
      case Role::kTool:
        return render_user_run(index);
      case Role::kAssistant:
        render_assistant(index);
        break;
      case Role::kLatestReminder:
        out_.control(spelling::kReminder);
        render_parts(*turn.message);
        break;
    }
    return index + 1;
  }

  void render_parts(const Message& message) {
    for (std::size_t i = 0; i < message.parts.size(); ++i) {
      if (i > 0) out_.text(kPartSeparator);
      const Part& part = message.parts[i];
      if (part.kind == Part::Kind::kText) {
        out_.text(part.text);
      } else if (!is_v41()) {
        out_.text("[Unsupported Image]");
      } else {
        out_.control(options_.image_spelling == ImageSpelling::kDeepseekImage
                         ? spelling::kDeepseekImage
                         : spelling::kImage);
        images_.push_back(part.text);
      }
    }
  }

  void render_blocks(const Message& message) {
    std::vector<const Tool*> tools;
    if (&message == carrier_) tools = tools_;
    for (const Tool& tool : message.tools) tools.push_back(&tool);
    if (!tools.empty()) {
      out_.text(kPartSeparator);
      render_tools_block(tools, options_, out_);
    }
    if (&message == carrier_ && has_json_format()) {
      out_.text(kPartSeparator);
      render_response_format(out_);
    }
  }

  /// Consecutive user messages and tool results share one header; results stand in the order of the
  /// calls that they answer, texts keep their places. A task ends the run.
  std::size_t render_user_run(std::size_t begin) {
    std::vector<const Message*> run;
    std::vector<const Message*> results;
    std::size_t end = begin;
    while (end < turns_.size() &&
           (turns_[end].role == Role::kUser || turns_[end].role == Role::kTool)) {
      const Turn& turn = turns_[end++];
      run.push_back(turn.message);
      if (turn.role == Role::kTool) results.push_back(turn.message);
      if (turn.message->task) break;
    }
    const auto rank = [this](const Message* result) {
      const auto it = call_order_.find(result->tool_call_id);
      return it == call_order_.end() ? 0 : it->second;
    };
    std::stable_sort(results.begin(), results.end(),
                     [&](const Message* a, const Message* b) { return rank(a) < rank(b); });
    out_.control(spelling::kUser);
    std::size_t next_result = 0;
    for (std::size_t i = 0; i < run.size(); ++i) {
      if (i > 0) out_.text(kPartSeparator);
      if (turns_[begin + i].role == Role::kTool) {
        out_.text("<tool_result>");
        render_parts(*results[next_result++]);
        out_.text("</tool_result>");
      } else {
        render_parts(*run[i]);
      }
    }
    if (const auto& task = run.back()->task) {
      if (*task == Task::kAction) render_header(is_thinking());
      out_.control(spelling_of(*task));
    }
    return end;
  }

  void render_header(bool opens_reasoning) {
    out_.control(spelling::kAssistant);
    out_.control(opens_reasoning ? spelling::kThinkBegin : spelling::kThinkEnd);
  }

  void render_assistant(std::size_t index) {
    const Message& message = *turns_[index].message;
    const bool answers_task = index > 0 && turns_[index - 1].message->task.has_value();
    const bool has_reasoning = !answers_task && shows_reasoning(index);
    if (!answers_task) render_header(has_reasoning);
    if (has_reasoning) {
      out_.text(message.reasoning.value_or(""));
      if (continues_reasoning(index)) return;
      out_.control(spelling::kThinkEnd);
    }
    render_parts(message);
    if (!message.tool_calls.empty()) {
      render_tool_calls(message.tool_calls, options_.format, out_);
      call_order_.clear();
      for (const ToolCall& call : message.tool_calls) {
        if (!call.id.empty()) call_order_[call.id] = static_cast<int>(call_order_.size());
      }
    }
    if (is_prefix(index)) return;
    out_.control(spelling::kEnd);
    if (message.task) out_.control(spelling_of(*message.task));
  }

  bool is_prefix(std::size_t index) const {
    return index + 1 == turns_.size() && turns_[index].message->is_prefix;
  }

  /// A prefix that has no answer yet is to be reasoned on.
  bool continues_reasoning(std::size_t index) const {
    const Message& message = *turns_[index].message;
    return is_prefix(index) && message.tool_calls.empty() &&
           std::all_of(message.parts.begin(), message.parts.end(), [](const Part& part) {
             return part.kind == Part::Kind::kText && part.text.empty();
           });
  }

  Stage render_end() {
    const Turn* last = turns_.empty() ? nullptr : &turns_.back();
    if (last != nullptr && last->role == Role::kAssistant) {
      const std::size_t index = turns_.size() - 1;
      if (is_prefix(index)) {
        return shows_reasoning(index) && continues_reasoning(index) ? Stage::kReasoning
                                                                    : Stage::kAnswer;
      }
      if (options_.after_assistant == AfterAssistant::kNothing) return Stage::kAnswer;
    }
    if (last != nullptr && last->message->task) return Stage::kAnswer;
    render_header(is_thinking());
    if (conversation_.tool_choice.is_forced()) {
      render_open_block(options_.format, out_);
      return Stage::kToolBlock;
    }
    return is_thinking() ? Stage::kReasoning : Stage::kAnswer;
  }

  const Conversation& conversation_;
  const RenderOptions& options_;
  const Message empty_system_{};
  std::vector<const Tool*> tools_;
  std::vector<Turn> turns_;
  const Message* carrier_ = nullptr;
  std::ptrdiff_t round_start_ = -1;        // turns up to here have lost their reasoning
  std::map<std::string, int> call_order_;  // of the latest turn with calls, by id
  SegmentList out_;
  std::vector<std::string> images_;
};

}  // namespace

absl::StatusOr<RenderedPrompt> render(const Conversation& conversation,
                                      const RenderOptions& options) {
  std::string effort;
  if (conversation.thinking == Thinking::kOn) {
    ASSIGN_OR_RETURN(effort, effort_text(conversation.effort, options));
  }
  return Renderer(conversation, options).render(effort);
}

}  // namespace millrace::api::recipe
