#include "storage/disk/usrbio_api.h"

#include <dlfcn.h>

#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::storage::disk::usrbio {
namespace {

template <typename Function>
absl::Status find(void* library, const char* name, Function& function) {
  void* const symbol = ::dlsym(library, name);
  if (symbol == nullptr)
    return absl::UnavailableError(str_cat("the USRBIO library lacks ", std::string_view(name)));
  function = reinterpret_cast<Function>(symbol);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Api> load_api(const std::string& library) {
  void* const handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr)
    return absl::UnavailableError(str_cat("no USRBIO: ", std::string_view(::dlerror())));
  Api api{};
  RETURN_IF_ERROR(find(handle, "hf3fs_extract_mount_point", api.extract_mount_point));
  RETURN_IF_ERROR(find(handle, "hf3fs_iovcreate", api.create_region));
  RETURN_IF_ERROR(find(handle, "hf3fs_iovdestroy", api.destroy_region));
  RETURN_IF_ERROR(find(handle, "hf3fs_iorcreate4", api.create_ring));
  RETURN_IF_ERROR(find(handle, "hf3fs_iordestroy", api.destroy_ring));
  RETURN_IF_ERROR(find(handle, "hf3fs_reg_fd", api.register_file));
  RETURN_IF_ERROR(find(handle, "hf3fs_dereg_fd", api.deregister_file));
  RETURN_IF_ERROR(find(handle, "hf3fs_prep_io", api.prepare));
  RETURN_IF_ERROR(find(handle, "hf3fs_submit_ios", api.submit));
  RETURN_IF_ERROR(find(handle, "hf3fs_wait_for_ios", api.wait));
  return api;
}

}  // namespace millrace::storage::disk::usrbio
