#!/usr/bin/env python3
"""Runs the suite ptx on duet's kernels as clang compiles them: a second compiler, the same meaning.

    clang.py TEST_PTX [TEST...]       TEST_PTX: BUILD/tests/ptx/test_ptx; TESTs: names of its cases, otherwise all

Compiles device code by `clang++ -x cuda --cuda-device-only` for sm_80, without CUDA's headers, of which a few lines here
take the place, and with its libdevice. Needs a clang of LLVM 14 or newer ($CLANG, otherwise clang++) and a CUDA toolkit as
tools/find_cuda.py finds it. Threads run in DUET_PTX_ORDERS orders, otherwise in one.
"""
import glob
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))

# In place of tests/support/fake_cuda/include/device_code.h, whose neighbours declare the rest.
DEVICE_CODE = r"""
#pragma once
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __host__ __attribute__((host))
#define __shared__ __attribute__((shared))
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))
#define __forceinline__ inline __attribute__((always_inline))
#include <math.h>
#include <cstdint>
#include <cstring>
#include <type_traits>
#pragma clang force_cuda_host_device begin
struct uint3 { unsigned x, y, z; };
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned vx = 1, unsigned vy = 1, unsigned vz = 1) : x(vx), y(vy), z(vz) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
};
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
#pragma clang force_cuda_host_device end
#include <__clang_cuda_builtin_vars.h>
#include <__clang_cuda_libdevice_declares.h>
static __device__ inline float expf(float x) { return __nv_expf(x); }
static __device__ inline float logf(float x) { return __nv_logf(x); }
static __device__ inline float fmaf(float a, float b, float c) { return __nv_fmaf(a, b, c); }
static __device__ inline double fma(double a, double b, double c) { return __nv_fma(a, b, c); }
static __device__ inline float sqrtf(float x) { return __nvvm_sqrt_rn_f(x); }
static __device__ inline double sqrt(double x) { return __nvvm_sqrt_rn_d(x); }
static __device__ inline float fmaxf(float a, float b) { return __nv_fmaxf(a, b); }
template <class T>
__device__ inline T __shfl_xor_sync(unsigned, T value, int lane_mask) {
  int words[sizeof(T) / 4];
  __builtin_memcpy(words, &value, sizeof value);
  for (int& word : words) word = __nvvm_shfl_sync_bfly_i32(~0u, word, lane_mask, 31);
  __builtin_memcpy(&value, words, sizeof value);
  return value;
}
__device__ inline void __threadfence_system() { __nvvm_membar_sys(); }
"""
BF16 = r"""
#pragma once
#include "tests/support/fake_cuda/include/device_code.h"
struct __nv_bfloat16 { unsigned short bits; };
__device__ inline __nv_bfloat16 __float2bfloat16(float x) {
  const unsigned bits = __builtin_bit_cast(unsigned, x);
  return {static_cast<unsigned short>(x != x ? 0x7fff : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}
__device__ inline float __bfloat162float(__nv_bfloat16 x) { return __builtin_bit_cast(float, unsigned{x.bits} << 16); }
"""


def libdevice():
    run = subprocess.run([os.path.join(ROOT, "tools/find_cuda.py")], capture_output=True, text=True, check=False)
    roots = [line.split("\t")[1] for line in run.stdout.splitlines() if line.startswith("root\t")]
    files = [file for root in roots for file in glob.glob(os.path.join(root, "nvvm/libdevice/libdevice.*.bc"))]
    if not files:
        raise SystemExit(f"no libdevice of a CUDA toolkit: {run.stderr.strip()}")
    return files[0]


def compiled(source, folder, bitcode):
    """Writes the PTX of a source."""
    out = os.path.join(folder, os.path.basename(source)[: -len(".cu")] + ".ptx")
    # -D__CUDACC__: what the sources ask whether they are device code.
    run = subprocess.run(
        [os.environ.get("CLANG", "clang++"), "-x", "cuda", "--cuda-device-only", "--cuda-gpu-arch=sm_80", "-nocudainc", "-nocudalib",
         "-Wno-unknown-cuda-version", "-std=c++20", "-O3", "-ffp-contract=off", "-D__CUDACC__", "-DDUET_MOST_THREADS=1000000",
         "-I" + folder, "-I" + os.path.join(ROOT, "tests/support/fake_cuda/include"), "-I" + ROOT,
         *(word for option in ("-target-feature", "+ptx70", "-mlink-builtin-bitcode", bitcode) for word in ("-Xclang", option)),
         "-S", source, "-o", out], capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise SystemExit(f"{source} does not compile:\n{run.stderr[-2000:]}")


def main(arguments):
    if not arguments:
        raise SystemExit(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (("tests/support/fake_cuda/include/device_code.h", DEVICE_CODE), ("cuda_bf16.h", BF16)):
            path = os.path.join(folder, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        bitcode, sources = libdevice(), glob.glob(os.path.join(ROOT, "lib/backend/cuda/kernels/*.cu"))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda source: compiled(source, folder, bitcode), sources))
        print(f"{len(sources)} sources compiled by clang", flush=True)
        environment = {"DUET_PTX_ORDERS": "1", **os.environ, "DUET_PTX_FOLDER": folder, "DUET_PTX_ARCH": "80"}
        return subprocess.run(arguments, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
