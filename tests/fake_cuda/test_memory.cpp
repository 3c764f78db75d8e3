#include <csetjmp>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "tests/fake_cuda/gpu.h"

using namespace duet_test;

namespace {

__global__ void write_at(float* x, int index) {
  if (threadIdx.x == 0) x[index] = 1;
}

struct Pointers {
  std::int64_t count;
  float* x;
};
__global__ void write_through(Pointers p) { p.x[0] = 1; }

struct Sizes {
  std::int64_t rows;
  int columns;  // padding follows
};
__global__ void read_sizes(Sizes) {}

struct Device {
  Device() { duet_sim::reset(1); }
  ~Device() {
    duet_sim::reset(1);
    cudaSetDevice(0);
  }
};

}  // namespace

TEST_CASE("an index past the end is caught") {
  Device device;
  cudaStream_t stream = make_stream();
  Buffer x(1000);
  SECTION("nothing there") {
    good(launch(write_at, 1, 32, stream, x.data, 999));
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
  }
  SECTION("in the next page") {
    good(launch(write_at, 1, 32, stream, x.data, 1100));
    CHECK(cudaStreamSynchronize(stream) == cudaErrorIllegalAddress);
    CHECK_THAT(duet_sim::take_report(), ContainsSubstring("byte 4400 of memory of device 0 (4000 bytes)"));
    CHECK(cudaStreamSynchronize(stream) == cudaErrorIllegalAddress);  // sticky
  }
  SECTION("just behind") {
    good(launch(write_at, 1, 32, stream, x.data, 1000));
    CHECK(cudaStreamSynchronize(stream) == cudaErrorIllegalAddress);
    CHECK_THAT(duet_sim::take_report(), ContainsSubstring("past memory of device 0 (4000 bytes)"));
  }
  SECTION("just before") {
    good(launch(write_at, 1, 32, stream, x.data, -1));
    CHECK(cudaStreamSynchronize(stream) == cudaErrorIllegalAddress);
  }
  SECTION("by a copy") {
    CHECK(cudaMemcpyAsync(x.data + 1, x.data, 4000, cudaMemcpyDeviceToDevice, stream) == cudaErrorInvalidValue);
  }
}

TEST_CASE("a use after free is caught at launch, when it runs, and by copies") {
  Device device;
  cudaStream_t stream = make_stream();
  float *x, *y;
  good(cudaMalloc(reinterpret_cast<void**>(&x), 64));
  good(cudaMalloc(reinterpret_cast<void**>(&y), 64));
  const duet_sim::Live before = duet_sim::live(0);
  good(cudaFree(x));
  CHECK(duet_sim::live(0).allocations == before.allocations - 1);
  CHECK(duet_sim::live(0).bytes == before.bytes - 64);
  CHECK(launch(add_number, 1, 1, stream, x, 1, 1.0f) == cudaErrorIllegalAddress);
  CHECK_THAT(duet_sim::take_report(), ContainsSubstring("is freed memory of device 0 (64 bytes)"));
  CHECK(launch(write_through, 1, 1, stream, Pointers{1, x}) == cudaErrorIllegalAddress);
  CHECK(cudaMemcpyAsync(y, x, 64, cudaMemcpyDeviceToDevice, stream) == cudaErrorInvalidValue);
  CHECK(cudaFree(x) == cudaErrorInvalidValue);
  CHECK_THAT(duet_sim::take_report(), ContainsSubstring("freed twice"));
  CHECK(cudaFree(y + 1) == cudaErrorInvalidValue);

  // The device is another: its free does not wait for the work of device 0.
  good(launch(write_through, 1, 1, stream, Pointers{1, y}));
  good(cudaSetDevice(1));
  good(cudaFree(y));
  good(cudaSetDevice(0));
  CHECK(cudaStreamSynchronize(stream) == cudaErrorIllegalAddress);
  CHECK_THAT(duet_sim::take_report(), ContainsSubstring("argument 0"));
}

TEST_CASE("what the padding of a structure holds is no pointer") {
  Device device;
  cudaStream_t stream = make_stream();
  float* freed;
  good(cudaMalloc(reinterpret_cast<void**>(&freed), 64));
  good(cudaFree(freed));
  Sizes sizes{};
  std::memcpy(&sizes.columns, &freed, sizeof freed);  // the other half of the pointer lies in the padding
  CHECK(launch(read_sizes, 1, 1, stream, sizes) == cudaSuccess);
  good(cudaStreamSynchronize(stream));
  CHECK(duet_sim::take_report() == "");
}

TEST_CASE("memory of another device is refused until peer access is enabled") {
  Device device;
  Buffer x(4, 1);
  cudaStream_t zero = make_stream(0), one = make_stream(1);
  good(cudaSetDevice(0));
  CHECK(launch(add_number, 1, 4, zero, x.data, 4, 1.0f) == cudaErrorIllegalAddress);
  CHECK_THAT(duet_sim::take_report(), ContainsSubstring("memory of device 1 (16 bytes), which device 0 cannot reach"));
  // A forgotten cudaSetDevice: the stream is of another device than the current one.
  CHECK(launch(add_number, 1, 4, one, x.data, 4, 1.0f) == cudaErrorInvalidResourceHandle);
  cudaEvent_t event = make_event();
  CHECK(cudaEventRecord(event, one) == cudaErrorInvalidResourceHandle);
  duet_sim::reset(1);

  ::setenv("DUET_SIM_PEER", "0", 1);
  int can = -1;
  good(cudaDeviceCanAccessPeer(&can, 2, 1));
  CHECK(can == 0);
  ::unsetenv("DUET_SIM_PEER");
  good(cudaDeviceCanAccessPeer(&can, 2, 1));
  CHECK(can == 1);
  cudaStream_t two = make_stream(2);
  good(cudaDeviceEnablePeerAccess(1, 0));
  CHECK(cudaDeviceEnablePeerAccess(1, 0) == cudaErrorPeerAccessAlreadyEnabled);
  good(launch(add_number, 1, 4, two, x.data, 4, 1.0f));
  good(cudaStreamSynchronize(two));
  good(cudaEventDestroy(event));
}

TEST_CASE("kernels cannot reach host memory that is not pinned") {
  Device device;
  cudaStream_t stream = make_stream();
  float on_stack = 0;
  CHECK(launch(add_number, 1, 1, stream, &on_stack, 1, 1.0f) == cudaErrorIllegalAddress);
  duet_sim::reset(1);
  float* pinned;
  good(cudaMallocHost(reinterpret_cast<void**>(&pinned), 4));
  *pinned = 1;
  good(launch(add_number, 1, 1, stream, pinned, 1, 1.0f));
  good(cudaStreamSynchronize(stream));
  CHECK(*pinned == 2);
}

TEST_CASE("memory is limited, fresh memory is no number, and only used devices have a context") {
  Device device;
  void* p;
  CHECK(cudaMalloc(&p, std::size_t{1} << 40) == cudaErrorMemoryAllocation);
  CHECK(p == nullptr);
  cudaStream_t stream = make_stream();
  Buffer x(3);
  const auto values = x.get(stream);
  CHECK(values[0] != values[0]);
  CHECK(duet_sim::has_context(0));
  CHECK_FALSE(duet_sim::has_context(3));
  CHECK(cudaSetDevice(4) == cudaErrorInvalidDevice);
}
