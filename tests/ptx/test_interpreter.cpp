// The interpreter itself: each kind of mistake is made on purpose and must be found.
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "lib/error.h"
#include "tests/support/catch2.h"
#include "tests/support/ptx/interpreter.h"
#include "tests/support/ptx/memory.h"

namespace {

using duet_test::ContainsSubstring;

/// A kernel f(float* a, unsigned n) with these lines behind: %rd1 = a, %r1 = tid.x, %r2 = n, %rd2 = &a[tid.x].
std::string kernel(const std::string& lines, const std::string& declarations = "") {
  return ".version 9.0\n.target sm_90\n.address_size 64\n.visible .entry f(.param .u64 p0, .param .u32 p1)\n" +
         std::string(".maxntid 64\n{\n.reg .pred %p<4>; .reg .b32 %r<9>; .reg .f32 %f<9>; .reg .b64 %rd<9>;\n") +
         declarations +
         "ld.param.u64 %rd3, [p0]; cvta.to.global.u64 %rd1, %rd3; ld.param.u32 %r2, [p1]; mov.u32 %r1, %tid.x;\n"
         "mul.wide.u32 %rd4, %r1, 4; add.s64 %rd2, %rd1, %rd4;\n" +
         lines + "\nret;\n}\n";
}

struct Result {
  duet_ptx::Findings findings;
  std::vector<float> a;
};

/// Runs it over the array 0, 1, 2..., of 64 elements unless the launch needs more.
Result run(const std::string& text, unsigned blocks, unsigned threads, duet_ptx::Options options = {},
           bool initialised = true) {
  const duet_ptx::Module module(text);
  Result result;
  result.a.resize(66);
  for (std::size_t i = 0; i < result.a.size(); ++i) result.a[i] = static_cast<float>(i);
  duet_ptx::Memory memory;
  memory.add(result.a.data(), 64 * sizeof(float), sizeof(float), "a", initialised);
  unsigned char arguments[12];
  const float* const pointer = result.a.data();
  std::memcpy(arguments, &pointer, sizeof pointer);
  std::memcpy(arguments + 8, &threads, sizeof threads);
  duet_ptx::Statistics statistics;
  duet_ptx::run(*module.find("f"), {blocks, 1, 1}, {threads, 1, 1}, 0, arguments, memory, options, result.findings,
                statistics);
  return result;
}

void check_found(const std::string& kind, const Result& result) {
  INFO(kind);
  CHECK(result.findings.counts.count(kind) == 1);
}

const std::string kShared = ".shared .align 4 .b8 part[256];\n";
const std::string kPlace = "mov.u32 %r3, part; shl.b32 %r4, %r1, 2; add.s32 %r5, %r3, %r4;\n";

}  // namespace

TEST_CASE("ptx interpreter: a kernel without mistakes") {
  const Result result =
      run(kernel("ld.global.f32 %f1, [%rd2]; add.rn.f32 %f2, %f1, 0f3F800000; st.global.f32 [%rd2], %f2;"), 1, 64);
  CHECK(result.findings.texts.empty());
  CHECK(result.a[63] == 64);
}

TEST_CASE("ptx interpreter: mistakes with global memory are found") {
  check_found("global write out of bounds",
              run(kernel("mov.f32 %f1, 0f00000000; st.global.f32 [%rd2+4], %f1;"), 1, 64));
  check_found("global read out of bounds", run(kernel("ld.global.f32 %f1, [%rd2+-4];"), 1, 64));
  check_found("misaligned", run(kernel("ld.global.v2.f32 {%f1, %f2}, [%rd1+4];"), 1, 1));
  check_found("uninitialised global read", run(kernel("ld.global.f32 %f1, [%rd2];"), 1, 64, {}, false));
  const std::string store = "mov.f32 %f1, 0f00000000; st.global.f32 [%rd1], %f1;";
  check_found("global race, write after write", run(kernel(store), 1, 2));
  check_found("global race, write after write", run(kernel(store), 2, 1));
  check_found("global race, read after write",
              run(kernel("mov.f32 %f1, 0f00000000; st.global.f32 [%rd2], %f1; ld.global.f32 %f2, [%rd1];"), 1, 2));
  check_found("global race, write after read",
              run(kernel("ld.global.f32 %f2, [%rd1+4]; st.global.f32 [%rd2], %f2;"), 1, 2));
  check_found("written after a read by ld.global.nc",
              run(kernel("ld.global.nc.f32 %f2, [%rd2]; st.global.f32 [%rd2], %f2;"), 1, 2));
  check_found("ld.global.nc of what the kernel wrote",
              run(kernel("mov.f32 %f1, 0f00000000; st.global.f32 [%rd2], %f1; ld.global.nc.f32 %f2, [%rd2];"), 1, 1));
}

TEST_CASE("ptx interpreter: mistakes with shared memory are found") {
  const std::string store = kPlace + "st.shared.u32 [%r5], %r1;\n";
  const std::string next = "xor.b32 %r6, %r4, 4; add.s32 %r7, %r3, %r6; ld.shared.u32 %r8, [%r7];\n";
  check_found("shared read out of bounds", run(kernel(store + "ld.shared.u32 %r8, [%r5+256];", kShared), 1, 64));
  check_found("shared write out of bounds", run(kernel(kPlace + "st.shared.u32 [%r5+-4], %r1;", kShared), 1, 64));
  check_found("uninitialised shared read", run(kernel(kPlace + "ld.shared.u32 %r8, [%r5];", kShared), 1, 64));
  check_found("misaligned", run(kernel(kPlace + "st.shared.u32 [%r3+2], %r1;", kShared), 1, 1));
  check_found("shared race, read after write", run(kernel(store + next, kShared), 1, 64));
  check_found("shared race, write after read",
              run(kernel(store + "bar.sync 0;\n" + next + "st.shared.u32 [%r5], %r8;", kShared), 1, 64));
  check_found("shared race, write after write", run(kernel(kPlace + "st.shared.u32 [%r3], %r1;", kShared), 1, 64));
  CHECK(run(kernel(store + "bar.sync 0;\n" + next, kShared), 1, 64).findings.texts.empty());
  check_found("more than 48 KiB of shared memory",
              run(kernel("mov.u32 %r3, part;", ".shared .align 4 .b8 part[49156];\n"), 1, 1));
}

TEST_CASE("ptx interpreter: mistakes with a thread's own memory are found") {
  const std::string own = ".local .align 4 .b8 own[8];\n", place = "mov.u64 %rd5, own;\n";
  check_found("local write out of bounds", run(kernel(place + "st.local.u32 [%rd5+8], %r1;", own), 1, 1));
  check_found("local read out of bounds", run(kernel(place + "ld.local.u32 %r3, [%rd5+-4];", own), 1, 1));
  check_found("uninitialised local read", run(kernel(place + "ld.local.u32 %r3, [%rd5];", own), 1, 1));
  CHECK(run(kernel(place + "st.local.u32 [%rd5+4], %r1; ld.local.u32 %r3, [%rd5+4];", own), 1, 64)
            .findings.texts.empty());
}

TEST_CASE("ptx interpreter: mistakes with warps and blocks are found") {
  const std::string some = "setp.lt.u32 %p1, %r1, 5;\n";
  check_found("divergent shuffle",
              run(kernel(some + "@!%p1 bra $out; shfl.sync.bfly.b32 %r3|%p2, %r1, 1, 31, -1;\n$out:"), 1, 32));
  check_found("divergent barrier", run(kernel(some + "@%p1 bra $out; bar.sync 0;\n$out:"), 1, 32));
  check_found("threads at different barriers",
              run(kernel(some + "@%p1 bra $other; bar.sync 0; ret;\n$other: bar.sync 0;"), 1, 32));
  check_found("barrier after whole warps have left",
              run(kernel("setp.gt.u32 %p1, %r1, 31; @%p1 bra $out; bar.sync 0;\n$out:"), 1, 64));
  check_found("undefined register", run(kernel("add.s32 %r3, %r4, %r1;"), 1, 1));
  check_found("integer division by zero", run(kernel("div.u32 %r3, %r2, %r1;"), 1, 1));
  check_found("more threads than launch bounds", run(kernel(""), 1, 65));
  check_found("invalid configuration", run(kernel(""), 1, 1025));
  duet_ptx::Options few;
  few.most_instructions = 1000;
  check_found("endless", run(kernel("$again: bra $again;"), 1, 1, few));
  check_found("endless", run(kernel("$again: bar.sync 0; bra $again;"), 1, 64, few));
}

TEST_CASE("ptx interpreter: a product and a sum are fused where ptxas may fuse them, when asked") {
  // (1 + 2^-12)^2 - (1 + 2^-11) is 2^-24 when it is rounded once, 0 when the product is rounded.
  const std::string lines =
      "mov.f32 %f1, 0f3F800800; mul.f32 %f2, %f1, %f1; sub.f32 %f3, %f2, 0f3F801000; st.global.f32 [%rd1], %f3;";
  duet_ptx::Options fused;
  fused.contract = true;
  CHECK(run(kernel(lines), 1, 1).a[0] == 0);
  CHECK(run(kernel(lines), 1, 1, fused).a[0] == 0x1p-24f);
  CHECK(duet_ptx::fusible_products(*duet_ptx::Module(kernel(lines)).find("f")) == 1);
  std::string rounded = lines;
  rounded.replace(rounded.find("mul.f32"), 7, "mul.rn.f32");
  CHECK(run(kernel(rounded), 1, 1, fused).a[0] == 0);
}

TEST_CASE("ptx interpreter: what is not interpreted is refused by name and line") {
  for (const std::string instruction :
       {"mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", "cp.async.ca.shared.global", "griddepcontrol.wait",
        "atom.global.add.f32", "red.global.add.f32", "vote.sync.ballot.b32", "wgmma.fence.sync.aligned"})
    CHECK_THROWS_WITH(
        duet_ptx::Module(kernel(instruction + (instruction == "griddepcontrol.wait" ? ";" : " %r1, [%rd1];"))),
        ContainsSubstring("line 11: instruction " + instruction + " is not interpreted"));
  CHECK_THROWS_WITH(duet_ptx::Module(kernel("call (%r1), g, (%r2);")),
                    ContainsSubstring("instruction call is not interpreted"));
  CHECK_THROWS_WITH(duet_ptx::Module(kernel("mov.u32 %r1, %laneid;")),
                    ContainsSubstring("register %laneid is not interpreted"));
  CHECK_THROWS_AS(duet_ptx::Module("nothing"), duet::DataError);
}
