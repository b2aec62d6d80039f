#include "api/recipe/models.h"

#include <gtest/gtest.h>

#include "api/recipe/request_error.h"

namespace millrace::api::recipe {
namespace {

Deployment deployment() {
  Deployment deployment;
  deployment.model_id = "a/b";
  deployment.aliases = {"c"};
  return deployment;
}

constexpr ModelFacts kFacts{.created_seconds = 1'700'000'000, .context_tokens = 64};

TEST(Models, AreListedInTheFormOfEitherFamily) {
  EXPECT_EQ(models_body(deployment(), kFacts, ModelsForm::kOpenAi),
            R"({"object":"list","data":[{"id":"a/b","object":"model","created":1700000000,)"
            R"("owned_by":"millrace","max_model_len":64},{"id":"c","object":"model",)"
            R"("created":1700000000,"owned_by":"millrace","max_model_len":64}]})");
  EXPECT_EQ(
      models_body(deployment(), kFacts, ModelsForm::kAnthropic),
      R"({"first_id":"a/b","last_id":"c","has_more":false,"data":[{"type":"model",)"
      R"("id":"a/b","display_name":"a/b","created_at":"2023-11-14T22:13:20Z"},)"
      R"({"type":"model","id":"c","display_name":"c","created_at":"2023-11-14T22:13:20Z"}]})");
}

TEST(Models, AreFoundByAnyNameInPlainOrEscapedForm) {
  for (const char* id : {"a/b", "a%2Fb", "a%2fb"}) {
    const auto body = model_body(deployment(), kFacts, ModelsForm::kAnthropic, id);
    ASSERT_TRUE(body.ok()) << id;
    EXPECT_NE(body->find(R"("id":"a/b")"), std::string::npos);
  }
  EXPECT_TRUE(model_body(deployment(), kFacts, ModelsForm::kOpenAi, "c").ok());
  for (const char* id : {"", "a", "a%2", "a%zzb", "%"}) {
    const auto body = model_body(deployment(), kFacts, ModelsForm::kOpenAi, id);
    EXPECT_EQ(body.status().code(), absl::StatusCode::kNotFound) << id;
    EXPECT_EQ(error_details(body.status()).code, "model_not_found");
  }
}

}  // namespace
}  // namespace millrace::api::recipe
