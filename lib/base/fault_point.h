// Points of fault injection: two comparisons each, unless DUET_FAULT or DUET_DELAY is set.
#pragma once

namespace duet {

/// If DUET_FAULT is "NAME:RANK:TIMES:SIGNAL", the TIMES-th passing of the point NAME by the rank RANK is reported on
/// stderr and raises the signal: 9 kills, 19 stops. Only before a launcher's first restart, and in the rank's first
/// process, or with ":1" behind it in the one that replaces that. Several are divided by commas.
/// If DUET_DELAY is "NAME:RANK:MICROSECONDS", every passing of the point NAME by the rank RANK, or by all processes for
/// RANK "*", takes that much longer; at a point of replicas RANK is the replica's number. Thread-safe.
void fault_point(const char* name, int replica = -1);

}  // namespace duet
