#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "api/entrypoint/caller.h"
#include "api/entrypoint/kv_service.h"
#include "api/entrypoint/response_job.h"
#include "api/entrypoint/response_store.h"
#include "common/http/event_loop.h"
#include "common/log/log.h"
#include "common/metrics/metrics.h"

namespace millrace::api::entrypoint {

/// The Responses protocol beyond one answer: responses that are continued, kept, looked up, run in
/// the background and cancelled. Belongs to the loop's thread, but for decode().
class ResponsesService {
 public:
  using Work = std::function<void()>;
  /// What it needs of the entrypoint.
  struct Host {
    common::http::EventLoop& loop;
    const recipe::Deployment& deployment;
    std::string entrypoint_id;  ///< responses' ids name it
    /// Has work done on the decoding thread; false when too much waits for it. Any thread.
    std::function<bool(Work)> decode_later;
    /// A request has been read, or cannot be; its blocks may be null.
    std::function<void(const std::string& request_id,
                       std::shared_ptr<absl::StatusOr<recipe::PreparedResponse>> prepared,
                       const KvService::Blocks& blocks)>
        admit;
    /// Names a request's KV blocks, on the decoding thread; may return nullptr.
    std::function<KvService::Blocks(const Caller& caller, const recipe::PreparedRequest& request)>
        name_blocks;
    std::function<void()> on_change;  ///< is_idle() may have become true
  };

  ResponsesService(Host host, Logger log, Registry& registry, std::unique_ptr<ResponseStore> store);
  ~ResponsesService();

  /// POST /v1/responses, on the decoding thread: what is then to be done on the loop.
  Work decode(const std::string& request_id, const std::string& body, const Caller& caller);

  /// Before the request is admitted: a job between it and its client, whose writer it takes. The
  /// request gets the encoder, the client the writer that the session is to use.
  recipe::PreparedRequest open(recipe::PreparedResponse prepared, const std::string& account,
                               Client& client);
  /// After it was admitted or refused.
  void admitted(const std::string& request_id);

  /// What lies below /v1/responses/. To an account, responses of others do not exist.
  void get(const common::http::ServerRequest& request, const std::string& account, Client client);
  void post(const common::http::ServerRequest& request, const std::string& account, Client client);
  void erase(const common::http::ServerRequest& request, const std::string& account, Client client);

  /// No response is being generated or stored.
  bool is_idle() const { return jobs_.empty(); }

 private:
  using Answer = absl::StatusOr<std::string>;
  /// Where the stored text of a response goes: on the store's thread, its value to the client.
  using Read = std::function<Answer(const StoredResponse&)>;

  /// A request's body, for whoever reads it later.
  struct Arrived {
    std::string request_id;
    std::string body;
    Caller caller;
  };
  Work prepare(const Arrived& arrived, std::optional<std::string_view> earlier_items) const;
  void continue_response(const std::string& previous_id,
                         const std::shared_ptr<const Arrived>& arrived);
  void refuse(const std::string& request_id, const absl::Status& status) const;
  absl::Status check_owner(const std::string& response_id) const;
  ResponseJob* find(const ResponseName& name);
  void get_items(ResponseJob* job, const ResponseName& name, std::string_view query, Client client);
  void get_stream(ResponseJob* job, const ResponseName& name, std::int64_t after, Client client);
  void read_stored(const ResponseName& name, Client client, Read read);
  std::uint64_t park(Client client);
  void answer(std::uint64_t ask, const Answer& body);
  void store(const std::string& request_id, StoredResponse response);
  void note(const absl::Status& status, std::string_view operation) const;

  const Host host_;
  const Logger log_;
  const MetricFamily<Counter> failures_;
  std::map<std::string, std::unique_ptr<ResponseJob>> jobs_;  // by request id
  std::map<std::uint64_t, Client> asks_;                      // wait for the store
  std::uint64_t last_ask_ = 0;
  std::unique_ptr<ResponseStore> store_;  // last: its thread uses the others
};

}  // namespace millrace::api::entrypoint
