#include "api/python/errors.h"

#include <pybind11/pybind11.h>

#include <algorithm>
#include <cctype>
#include <string>

#include "api/recipe/request_error.h"

namespace millrace::api::python {
namespace {

namespace py = pybind11;

constexpr const char* kModule = "millrace_recipe";
constexpr const char* kName = "RecipeError";

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

}  // namespace

void add_error(py::module_& module) {
  PyObject* const type = PyErr_NewExceptionWithDoc(
      "millrace_recipe.RecipeError",
      "A request, text or file that cannot be taken.\n\n"
      "message: what is wrong; field: path of the field at fault, \"\" when there is none;\n"
      "code: for machines, such as \"invalid_type\"; status: such as \"invalid_argument\".",
      PyExc_ValueError, nullptr);
  if (type == nullptr) throw py::error_already_set();
  module.add_object(kName, py::reinterpret_steal<py::object>(type));
}

void raise(const absl::Status& status) {
  const py::gil_scoped_acquire gil;
  const recipe::ErrorDetails details = recipe::error_details(status);
  const py::object type = py::module_::import(kModule).attr(kName);
  const py::object error = type(details.message);
  error.attr("message") = details.message;
  error.attr("field") = details.param;
  error.attr("code") = details.code;
  error.attr("status") = lower(absl::StatusCodeToString(status.code()));
  PyErr_SetObject(type.ptr(), error.ptr());
  throw py::error_already_set();
}

}  // namespace millrace::api::python
