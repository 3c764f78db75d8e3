#pragma once

#include "lib/half.h"

using __nv_bfloat16 = duet::BFloat16;
inline __nv_bfloat16 __float2bfloat16(float x) { return __nv_bfloat16(x); }
inline float __bfloat162float(__nv_bfloat16 x) { return x; }
