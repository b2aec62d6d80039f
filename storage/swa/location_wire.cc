#include "storage/swa/location_wire.h"

#include "api/proto/kv_window.pb.h"

namespace millrace::storage::swa {

void to_wire(const WindowLocation& at, proto::v1::KvWindowRef& wire) {
  wire.set_host_id(at.host_id);
  wire.set_address(at.address);
  wire.set_incarnation(at.incarnation);
  wire.set_slot(at.slot);
  wire.set_generation(at.generation);
  wire.set_bytes(at.bytes);
}

WindowLocation from_wire(const proto::v1::KvWindowRef& wire) {
  return {.host_id = wire.host_id(),
          .address = wire.address(),
          .incarnation = wire.incarnation(),
          .slot = wire.slot(),
          .generation = wire.generation(),
          .bytes = wire.bytes()};
}

}  // namespace millrace::storage::swa
