// Precompiled for the kernels: half of a kernel's compilation is these headers.
#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
