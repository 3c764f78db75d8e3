// The interface between libduet and its Gloo module.
#pragma once

#include "ddp/gloo/load.h"

namespace duet::ddp {

/// The caller owns the transport.
using GlooConnect = Transport* (*)(Store& store, int rank, int size, const GlooOptions& options);
inline constexpr const char* kGlooConnectName = "duet_gloo_connect";
/// Of the functions of libgloo that the module calls: rendezvous::Context(int, int, int), tcp::CreateDevice(attr) and
/// Context::createUnboundBuffer(void*, size_t).
inline constexpr const char* kGlooImports[] = {"_ZN4gloo10rendezvous7ContextC1Eiii",
                                               "_ZN4gloo9transport3tcp12CreateDeviceERKNS1_4attrE",
                                               "_ZN4gloo7Context19createUnboundBufferEPvm"};

}  // namespace duet::ddp
