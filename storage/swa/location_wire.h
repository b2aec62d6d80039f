#pragma once

#include "storage/swa/window_location.h"

namespace millrace::proto::v1 {
class KvWindowRef;
}  // namespace millrace::proto::v1

namespace millrace::storage::swa {

/// WindowLocation as a message of api/proto/kv_window.proto, and back. Every message can be read;
/// whoever keeps one judges its texts.
void to_wire(const WindowLocation& at, proto::v1::KvWindowRef& wire);
WindowLocation from_wire(const proto::v1::KvWindowRef& wire);

}  // namespace millrace::storage::swa
