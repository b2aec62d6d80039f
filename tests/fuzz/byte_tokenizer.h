#pragma once

#include "api/recipe/deployment.h"

namespace millrace::tests::fuzz {

/// A model whose tokens 0 to 255 are the bytes, followed by the control tokens of V4.1.
const api::recipe::Deployment& byte_deployment();

/// The control tokens that output is read by.
constexpr int kControlTokens = 4;
/// One of them.
TokenId control_token(int index);

}  // namespace millrace::tests::fuzz
