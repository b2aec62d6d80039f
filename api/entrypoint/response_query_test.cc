#include "api/entrypoint/response_query.h"

#include <gtest/gtest.h>

#include "api/entrypoint/response_job.h"
#include "api/recipe/request_error.h"

namespace millrace::api::entrypoint {
namespace {

/// A query with a bad parameter.
struct Bad {
  const char* query;
  const char* param;
};

TEST(ResponseQuery, OfAResponse) {
  const auto none = parse_response_query("");
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(none->is_streamed);
  EXPECT_EQ(none->starting_after, -1);
  const auto both = parse_response_query("include%5B%5D=x&stream=true&starting_after=7");
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_TRUE(both->is_streamed);
  EXPECT_EQ(both->starting_after, 7);
  for (const auto& [query, param] :
       {Bad{"stream=yes", "stream"}, Bad{"starting_after=-1", "starting_after"},
        Bad{"starting_after=", "starting_after"},
        Bad{"starting_after=9999999999", "starting_after"}}) {
    const auto parsed = parse_response_query(query);
    ASSERT_FALSE(parsed.ok()) << query;
    EXPECT_EQ(recipe::error_details(parsed.status()).param, param);
  }
}

TEST(ResponseQuery, OfItems) {
  const auto page = parse_items_query("limit=3&order=asc&after=msg_1");
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_EQ(page->limit, 3u);
  EXPECT_TRUE(page->is_ascending);
  EXPECT_EQ(page->after, "msg_1");
  EXPECT_EQ(parse_items_query("")->limit, 20u);
  for (const auto& [query, param] : {Bad{"limit=0", "limit"}, Bad{"limit=101", "limit"},
                                     Bad{"limit=x", "limit"}, Bad{"order=up", "order"}}) {
    const auto parsed = parse_items_query(query);
    ASSERT_FALSE(parsed.ok()) << query;
    EXPECT_EQ(recipe::error_details(parsed.status()).param, param);
  }
}

TEST(EventsBehind, SkipsAsManyAsTheClientHas) {
  const std::string events = "event: a\ndata: 0\n\nevent: b\ndata: 1\n\n";
  EXPECT_EQ(events_behind(events, -1), events);
  EXPECT_EQ(events_behind(events, 0), "event: b\ndata: 1\n\n");
  EXPECT_EQ(events_behind(events, 1), "");
  EXPECT_EQ(events_behind(events, 1000), "");
}

}  // namespace
}  // namespace millrace::api::entrypoint
