// One source for oneDNN 2.6 (Debian 12) and 3.x: everything in their interfaces that differs is here.
#pragma once

#include <dnnl.hpp>
#include <utility>

#include "lib/error.h"

namespace duet::cpu {

/// Asks for scratch memory as an argument: the default kind belongs to the thread that made the primitive.
inline dnnl::primitive_attr user_scratchpad() {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attr;
}

/// Descriptor of a forward primitive; the arguments stand in the same order in both versions.
template <class Primitive, class... Args>
typename Primitive::primitive_desc describe_forward(const dnnl::engine& engine, Args&&... args) {
#if DNNL_VERSION_MAJOR >= 3
  return typename Primitive::primitive_desc(engine, std::forward<Args>(args)..., user_scratchpad());
#else
  return typename Primitive::primitive_desc(typename Primitive::desc(std::forward<Args>(args)...), user_scratchpad(),
                                            engine);
#endif
}

/// Descriptor of a backward primitive; `hint` describes its forward.
template <class Primitive, class Hint, class... Args>
typename Primitive::primitive_desc describe_backward(const dnnl::engine& engine, const Hint& hint, Args&&... args) {
#if DNNL_VERSION_MAJOR >= 3
  return typename Primitive::primitive_desc(engine, std::forward<Args>(args)..., hint, user_scratchpad());
#else
  return typename Primitive::primitive_desc(typename Primitive::desc(std::forward<Args>(args)...), user_scratchpad(),
                                            engine, hint);
#endif
}

/// Runs `call`; what oneDNN throws becomes an Error that names the operator.
template <class Call>
auto with_onednn_errors(const char* op, Call&& call) {
  try {
    return call();
  } catch (const dnnl::error& failure) {
    throw Error(concat(op, ": oneDNN: ", failure.what(), " (status ", static_cast<int>(failure.status), ")"));
  }
}

}  // namespace duet::cpu
