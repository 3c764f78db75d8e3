// The extension under the Python package duet_torch: makes backends for torch.distributed.
#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "ddp/init.h"
#include "torch/c10d/backend.h"

PYBIND11_MODULE(_c10d, module) {
  pybind11::module_::import("torch.distributed");  // its types are this module's arguments
  module.def(
      "make_backend",
      [](c10::intrusive_ptr<c10d::Store> store, int rank, int size, std::chrono::milliseconds timeout,
         const std::string& backend, const std::string& subgroup) -> c10::intrusive_ptr<c10d::Backend> {
        return duet::torch::make_c10d_backend(
            std::move(store), rank, size,
            {.backend = backend, .timeout = timeout, .join_timeout = timeout, .subgroup = subgroup});
      },
      pybind11::arg("store"), pybind11::arg("rank"), pybind11::arg("size"), pybind11::arg("timeout"),
      pybind11::arg("backend"), pybind11::arg("subgroup"), pybind11::call_guard<pybind11::gil_scoped_release>());
}
