// Walks tuples, lists, mappings and dataclasses in any nesting.
#include "hooks/leaves.h"

#include <pybind11/pybind11.h>
#include <torch/csrc/autograd/python_variable.h>

namespace py = pybind11;

namespace hookstats::hooks {

namespace {

// Never destroyed: at exit the interpreter may be gone before this library.
struct Python {
  py::object mapping = py::module_::import("collections.abc").attr("Mapping");
  py::object fields = py::module_::import("dataclasses").attr("fields");
};

const Python& python() {
  static const Python* const python = new Python;
  return *python;
}

bool is_scalar(PyObject* value) {
  return value == Py_None || PyUnicode_Check(value) || PyLong_Check(value) ||
         PyFloat_Check(value) || PyBytes_Check(value);
}

std::string text(PyObject* value) { return py::cast<std::string>(py::handle(value)); }

std::string key(py::handle key) {
  if (PyUnicode_Check(key.ptr()) && PyUnicode_IsIdentifier(key.ptr())) return "." + text(key.ptr());
  return "[" + py::repr(key).cast<std::string>() + "]";
}

// A container that holds itself meets Python's recursion limit before the stack overflows.
struct Depth {
  Depth() {
    if (Py_EnterRecursiveCall(" in the output of a module") != 0) throw py::error_already_set();
  }
  ~Depth() { Py_LeaveRecursiveCall(); }
};

void walk(PyObject* value, const std::string& path, Leaves& leaves) {
  const Depth depth;
  if (is_tensor(value)) {
    const bool is_first = path.find_first_not_of("[0]") == std::string::npos;
    leaves.push_back({is_first ? std::string() : path, THPVariable_Unpack(value)});
  } else if (is_scalar(value)) {
    return;
  } else if (PyTuple_Check(value) || PyList_Check(value)) {
    const py::object items = py::reinterpret_steal<py::object>(PySequence_Tuple(value));
    if (!items) throw py::error_already_set();
    const bool may_be_named = PyTuple_Check(value) && !PyTuple_CheckExact(value);
    const py::object names = may_be_named ? py::getattr(value, "_fields", py::none()) : py::none();
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(items.ptr()); ++i) {
      const std::string step = names.is_none() || py::len(names) == 0
                                   ? "[" + std::to_string(i) + "]"
                                   : "." + names[py::int_(i)].cast<std::string>();
      walk(PyTuple_GET_ITEM(items.ptr(), i), path + step, leaves);
    }
  } else if (PyDict_Check(value) || py::isinstance(value, python().mapping)) {
    // Not PyDict_Next: subclasses may keep an order of their own.
    const py::object items = py::reinterpret_borrow<py::object>(value).attr("items")();
    for (const py::handle item : items) {
      const py::tuple pair = py::reinterpret_borrow<py::tuple>(item);
      walk(pair[1].ptr(), path + key(pair[0]), leaves);
    }
  } else if (!PyType_Check(value) && py::hasattr(value, "__dataclass_fields__")) {
    for (const py::handle field : python().fields(py::handle(value))) {
      const py::object name = field.attr("name");
      const py::object item = py::getattr(value, name, py::none());
      walk(item.ptr(), path + "." + text(name.ptr()), leaves);
    }
  }
}

}  // namespace

bool is_tensor(PyObject* value) {
  return PyType_IsSubtype(Py_TYPE(value), reinterpret_cast<PyTypeObject*>(THPVariableClass)) != 0;
}

void add_leaves(PyObject* value, Leaves& leaves) {
  if (is_tensor(value)) {  // as nearly always
    leaves.push_back({{}, {}, &THPVariable_Unpack(value)});
  } else {
    walk(value, {}, leaves);
  }
}

void add_argument_leaves(PyObject* args, PyObject* kwargs, Leaves& leaves) {
  walk(args, {}, leaves);
  for (const auto& [name, value] : py::reinterpret_borrow<py::dict>(kwargs)) {
    walk(value.ptr(), "." + text(name.ptr()), leaves);
  }
}

}  // namespace hookstats::hooks
