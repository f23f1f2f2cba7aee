// The module hookstats._hooks, which speeds the Python hooks up, for one version of torch.
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/headeronly/version.h>

#include <map>
#include <memory>
#include <string>

#include "hooks/double_buffer.h"
#include "hooks/module_hook.h"
#include "hooks/parameters.h"
#include "hooks/site.h"

namespace py = pybind11;

namespace hookstats::hooks {

namespace {

// From Python's `State`, by the names of its fields.
State to_state(const py::handle& state) {
  const auto tensor = [&](const char* name) { return state.attr(name).cast<at::Tensor>(); };
  const auto optional = [&](const char* name) {
    return state.attr(name).cast<std::optional<at::Tensor>>();
  };
  return {.moments = tensor("moments"),
          .tallies = tensor("tallies"),
          .counts = optional("counts"),
          .bins = optional("bins"),
          .channel_counts = optional("channel_counts"),
          .channel_bins = optional("channel_bins"),
          .sampling = optional("sampling")};
}

// From the addresses of Kernels by the names of their device types.
KernelTable to_table(const std::map<std::string, size_t>& addresses) {
  KernelTable table{};
  for (const auto& [type, address] : addresses) {
    table[static_cast<size_t>(c10::Device(type).type())] =
        reinterpret_cast<const Kernels*>(address);
  }
  return table;
}

// Python calls a hook through ModuleHook::call. A tracer, which reads `__call__` instead, finds the
// Python function `traced`.
void set_traced(py::type type, const py::function& traced) {
  type.attr("__call__") = traced;
  reinterpret_cast<PyTypeObject*>(type.ptr())->tp_call = ModuleHook::call;
}

}  // namespace

// Python looks for this text in the file, since a library for another torch may not load.
[[gnu::used]] constexpr char kMadeFor[] = "hookstats hooks for torch " TORCH_VERSION;

PYBIND11_MODULE(_hooks, m) {
  m.attr("PARAMS_SIZE") = sizeof(UpdateParams);

  py::class_<DoubleBuffer, std::shared_ptr<DoubleBuffer>>(m, "DoubleBuffer")
      .def(py::init([](const std::map<std::string, size_t>& kernels) {
             return std::make_shared<DoubleBuffer>(to_table(kernels));
           }),
           py::arg("kernels"))
      .def_property(
          "recording", [](const DoubleBuffer& a) { return a.recording.load(); },
          [](DoubleBuffer& a, bool recording) { a.recording = recording; })
      .def_property(
          "skips_evaluation", [](const DoubleBuffer& a) { return a.skips_evaluation.load(); },
          [](DoubleBuffer& a, bool skips) { a.skips_evaluation = skips; })
      .def_property(
          "phase", [](const DoubleBuffer& a) { return a.phase.load(); },
          [](DoubleBuffer& a, int phase) { a.phase = phase; })
      .def_property_readonly("seconds", [](const DoubleBuffer& a) { return a.mutex.seconds(); })
      .def_property(
          "front", [](const DoubleBuffer& a) { return a.front; },
          [](DoubleBuffer& a, int front) { a.front = front; })
      .def_readwrite("clock", &DoubleBuffer::clock)
      .def(
          "set_mask",
          [](DoubleBuffer& a, const std::optional<at::Tensor>& mask) {
            const auto made = mask ? std::make_shared<const Mask>(*mask) : nullptr;
            const LockWithGil lock(a);
            a.set_mask(made);
          },
          py::arg("mask"))
      .def("depth", [](DoubleBuffer& a) { return a.mutex.depth(); })
      // Python uses a double buffer as it would use a threading.RLock.
      .def("__enter__", [](DoubleBuffer& a) { LockWithGil::lock(a); })
      .def("__exit__", [](DoubleBuffer& a, const py::args&) { a.mutex.unlock(); });

  py::class_<Site, std::shared_ptr<Site>>(m, "Site")
      .def(py::init([](std::shared_ptr<DoubleBuffer> buffers, const py::object& owner) {
             return std::make_shared<Site>(std::move(buffers), owner.ptr());
           }),
           py::arg("buffers"), py::arg("owner"))
      .def_property_readonly("forwards", &Site::forwards)
      .def_readonly("observed", &Site::observed)
      .def_readonly("unmasked", &Site::unmasked)
      .def_readwrite("backwards", &Site::backwards)
      .def_readwrite("missing", &Site::missing)
      .def_readwrite("disabled", &Site::disabled)
      .def_property_readonly("skipped", [](const Site& s) { return s.skipped; })
      .def(
          "skip", [](Site& s, const std::string& reason) { ++s.skipped[reason]; },
          py::arg("reason"))
      .def("count", &Site::count, py::arg("reason"), py::arg("whole") = false)
      .def("count_gradient", &Site::count_gradient, py::arg("first"), py::arg("reason"),
           py::arg("whole") = false)
      .def("set_expected_sizes", &Site::set_expected_sizes, py::arg("sizes"))
      .def(
          "set_plan",
          [](Site& s, const at::Tensor& x, std::optional<int64_t> channel_dim,
             const std::array<py::object, 2>& states, const std::array<at::Tensor, 2>& calls,
             const std::optional<std::array<at::Tensor, 2>>& occupancy,
             const std::array<int64_t, 3>& rows) {
            s.set_plan(x, channel_dim, {to_state(states[0]), to_state(states[1])}, calls, occupancy,
                       {rows[0], rows[1], rows[2]});
          },
          py::arg("x"), py::arg("channel_dim"), py::arg("states"), py::arg("calls"),
          py::arg("occupancy"), py::arg("rows"))
      .def("accumulate", torch::wrap_pybind_function_no_gil([](Site& s, const at::Tensor& x) {
             const bool takes = s.takes(x);
             if (takes) s.accumulate(x, nullptr);
             return takes;
           }),
           py::arg("x"));

  py::class_<Parameters>(m, "Parameters")
      .def(py::init<std::shared_ptr<DoubleBuffer>>(), py::arg("buffers"))
      .def(
          "add", [](Parameters& p, const py::handle& parameter) { p.add(parameter.ptr()); },
          py::arg("parameter"))
      .def(
          "add_watched",
          [](Parameters& p, const py::handle& parameter, py::object owner, py::str key,
             std::shared_ptr<Site> value, std::shared_ptr<Site> gradient) {
            p.add_watched(parameter.ptr(), std::move(owner), std::move(key), std::move(value),
                          std::move(gradient));
          },
          py::arg("parameter"), py::arg("owner"), py::arg("key"), py::arg("value"),
          py::arg("gradient"))
      .def("observe", torch::wrap_pybind_function(&Parameters::observe), py::arg("groups"),
           py::arg("scale"));

  m.def(
      "await_gradient",
      [](const std::shared_ptr<Site>& site, const at::Tensor& x) {
        return await_gradient(site, x);
      },
      py::arg("site"), py::arg("x"));
  py::class_<ModuleHook>(m, "ModuleHook", py::dynamic_attr())
      .def(py::init<std::shared_ptr<DoubleBuffer>, py::object, py::object, py::object, int, bool>(),
           py::arg("buffers"), py::arg("python"), py::arg("values"), py::arg("gradients"),
           py::arg("phase"), py::arg("of_inputs"));
  m.def("set_traced", &set_traced, py::arg("type"), py::arg("traced"));
}

}  // namespace hookstats::hooks
