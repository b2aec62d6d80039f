#pragma once

#include <vector>

#include "api/recipe/conversation.h"

namespace millrace::api::recipe {

/// Whether any message has the word "json" in some form: without it a model that is to answer in
/// JSON may never stop, so that the protocols demand it.
bool mentions_json(const std::vector<Message>& messages);

}  // namespace millrace::api::recipe
