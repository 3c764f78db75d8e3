#!/usr/bin/env python3
"""Checks the rules of the source tree: directions of includes, places of vendor headers, sizes, formatting.

    check.py ROOT            checks the tree at ROOT
    check.py --self-test     plants one violation of every rule and sees each reported

Every rule is one test, and "N passed, N failed, N skipped" sums them up. The last line has the lines of each part of the tree.
"""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tools"))
from includes import lacking
from public_headers import FOR_TORCH, PRIVATE, UMBRELLA, public_headers

PROGRAM = ("train", "compare", "cli")  # which includes as ORDER says
FOLDERS = ("lib", "samplers", "dp", "ddp", "torch", *PROGRAM, "examples", "tests")
SOURCE = (".h", ".hpp", ".cpp", ".cu", ".cuh")
MAX_LINES = 600
CLANG_FORMAT = 14  # versions format differently; this one counts

# Folder -> folders that it may include, besides itself.
MAY_INCLUDE = {
    "lib": (),
    "samplers": ("lib",),
    "dp": ("lib",),
    "ddp": ("lib", "dp"),
    "torch": ("lib", "ddp"),
    **{folder: ("lib", "samplers", "dp", "ddp", *PROGRAM) for folder in PROGRAM},
    "examples": (),
    UMBRELLA: ("lib", "samplers", "dp", "ddp"),
}
# The folders of a part of the tree, from the lowest up: a file may include its own folder and those before it. What is
# not listed belongs to the folder above it. The program's part has several folders of the first level.
ORDER = {
    "lib": ("lib", "lib/base", "lib/io", "lib/backend", "lib/autograd", "lib/ops", "lib/nn", "lib/optim"),
    "lib/data": ("lib", "lib/base", "lib/io", "lib/backend", "lib/data", "lib/data/mnist", "lib/data/images"),
    "ddp": ("ddp/store", "ddp/group", "ddp/transport", "ddp/tcp", "ddp/gloo", "ddp/mpi", "ddp/shm", "ddp/nccl", "ddp/launch",
            "ddp"),
    "torch": ("torch", "torch/c10d", "torch/python"),
    PROGRAM: ("train/system", "train/measure", "train/options", "train", "compare/cost_model", "compare", "compare/report", "cli"),
}
MAX_FILES = 30
MAX_FUNCTION = 60  # lines
# Most lines of C++ and CUDA in the product (without examples), of C++, CUDA, Python and shell in the tests, of Python and shell in
# tools/, and most files of all three. An issue states by how much its change may raise one; nothing else does.
MAXIMA = {"product": 69_130, "tests": 68_800, "tools": 2_720, "files": 946}

# Vendor header -> files that may include it.
VENDORS = {
    r"(oneapi/)?dnnl": r"lib/backend/.*",
    r"(cuda|cublas|cudnn|nccl|curand)": r"lib/backend/cuda/.*|ddp/nccl/.*|tests/(cuda|fake_cuda|ptx|support/fake_cuda|support/ptx)/.*|tests/torch/simulated_gpu.cpp",
    r"gloo/": r"ddp/gloo/.*",
    r"mpi\.h": r"(tests/)?ddp/mpi/.*",
    r"boost/": r"ddp/.*\.cpp|ddp/store/connection\.h|(train|cli)/.*\.cpp",
    r"zlib\.h": r"lib/data/.*\.cpp|tests/.*",
    r"curl/": r"lib/data/.*\.cpp",
    r"(jpeglib|jerror|png)\.h": r"lib/data/images/.*\.cpp",
    r"nlohmann/": r"lib/io/safetensors\.cpp|ddp/launch/error_file\.cpp|train/measure/json_fields\.h|(train|compare|cli)/.*\.cpp|tests/.*\.cpp",
    r"CLI/": r"(train/options|cli)/.*\.cpp|train/options/command_line\.h|examples/.*",
    r"(spdlog|fmt)/": r"(train|cli|ddp)/.*\.cpp",
    r"catch2/": r"tests/support/.*",
    r"pybind11/": r"torch/python/.*",
    r"(torch|ATen|c10)/": r"(torch|tests/torch|examples/torch)/.*",
}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)


def sources(root):
    if os.path.exists(os.path.join(root, UMBRELLA)):
        yield UMBRELLA
    for folder in FOLDERS:
        for path, _, names in os.walk(os.path.join(root, folder)):
            for name in sorted(names):
                if name.endswith(SOURCE):
                    yield os.path.relpath(os.path.join(path, name), root)


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as file:
        return file.read()


def part_of(path):
    if path.split("/")[0] in PROGRAM:
        return PROGRAM
    return max((part for part in ORDER if part != PROGRAM and path.startswith(part + "/")), key=len, default=None)


def room_of(path):
    return max((room for room in ORDER[part_of(path)] if path.startswith(room + "/")), key=len)


def includes(root):
    for path in sources(root):
        for bracket, header in INCLUDE.findall(read(root, path)):
            yield path, bracket, header


def check_folders(root):
    """lib <- samplers, dp <- ddp <- the program, examples; lib, ddp <- torch"""
    for path, bracket, header in includes(root):
        own, target = path.split("/")[0], header.split("/")[0]
        if bracket != '"' or own == "tests" or target == own or target not in FOLDERS:
            continue
        if target not in MAY_INCLUDE[own]:
            yield f'{path} includes "{header}": {own} may not include {target}'


def siblings(path):
    return PROGRAM if path.split("/")[0] in PROGRAM else path.split("/")[:1]


def check_order(root):
    """a folder includes itself and those below it"""
    for path, _, header in includes(root):
        if part_of(path) is None or part_of(header) is None or header.split("/")[0] not in siblings(path):
            continue
        order, own, target = ORDER[part_of(path)], room_of(path), room_of(header)
        if target not in order[: order.index(own) + 1]:
            yield f'{path} includes "{header}": {own} may not include {target}'


def check_vendors(root):
    """vendor headers only behind the walls made for them"""
    for path, _, header in includes(root):
        for vendor, allowed in VENDORS.items():
            if re.match(vendor, header) and not re.fullmatch(allowed, path):
                yield f"{path} includes <{header}>: allowed in {allowed}"


def check_public_headers(root):
    """public headers include no vendor's and no private headers"""
    public = public_headers(root)
    for path, bracket, header in includes(root):
        if path in public and (any(re.match(vendor, header) for vendor in VENDORS) or PRIVATE.fullmatch(header)):
            yield f'{path} includes "{header}"'


def check_examples(root):
    """examples include what is installed, as <duet/...>, and their own headers; nothing else in the tree does"""
    public = public_headers(root, (UMBRELLA, *FOR_TORCH))
    for path, bracket, header in includes(root):
        installed = bracket == "<" and header.startswith("duet/")
        if path.startswith("examples/"):
            own = os.path.normpath(os.path.join(os.path.dirname(path), header)).startswith("examples/")
            good = header[len("duet/") :] in public if installed else bracket == "<" or own
        else:
            good = not installed or path.startswith("tests/install/outside/")
        if not good:
            yield f"{path} includes {header}"


def check_roots(root):
    """includes are named from the root, but in examples and in what is outside of the tree"""
    for path, bracket, header in includes(root):
        apart = path.startswith(("examples/", "tests/install/outside/"))
        if bracket == '"' and header.split("/")[0] not in (*FOLDERS, UMBRELLA) and not apart:
            yield f'{path} includes "{header}"'


def check_own_includes(root):
    """every file includes what it uses, or the header of its own name does"""
    for path in sources(root):
        for name, headers in lacking(root, path):
            yield f"{path} uses {name} without <{'> or <'.join(headers[:4])}>"


def check_catch(root):
    """Approx is named as duet_test::Approx: only Catch2 2 has one outside of its namespace"""
    for path in sources(root):
        text = read(root, path)
        if path.startswith("tests/") and re.search(r"(?<![:\w])Approx\(", text) and "duet_test::Approx" not in text:
            yield path


def check_sizes(root):
    """no file past 600 lines"""
    for path in sources(root):
        lines = read(root, path).count("\n")
        if lines > MAX_LINES:
            yield f"{path} has {lines} lines"


def check_folder_sizes(root):
    """no folder of more than 30 files"""
    folders = {}
    for path in sources(root):
        folders.setdefault(os.path.dirname(path), []).append(path)
    for folder, files in folders.items():
        if len(files) > MAX_FILES:
            yield f"{folder} has {len(files)} files"


def sizes(root):
    """Lines of the product without examples, of examples, tests and tools, and the files of all but the examples."""
    lines = {"product": 0, "examples": 0, "tests": 0, "tools": 0, "files": 0}
    for part, folders, endings in (("product", FOLDERS[:-2], (*SOURCE, ".inc")), ("examples", ("examples",), SOURCE),
                                   ("tests", ("tests",), (*SOURCE, ".py", ".sh")), ("tools", ("tools",), (".py", ".sh"))):
        for folder in folders:
            for path, _, names in os.walk(os.path.join(root, folder)):
                for name in names:
                    if name.endswith(endings):
                        lines[part] += read(path, name).count("\n")
                        lines["files"] += part != "examples"
    return lines


def check_maxima(root):
    """no part of the tree past its maximum of lines, nor all of them past that of files"""
    for part, size in sizes(root).items():
        if size > MAXIMA.get(part, size):
            yield f"{part}: {size}, expected at most {MAXIMA[part]}"


def check_functions(root):
    """no function past 60 lines, but in tests"""
    # As clang-format lays them out: the closing brace stands under the begin of the head, all between further right.
    other = re.compile(r"\s*((namespace|class|struct|enum|union|extern|if|for|while|switch|else|catch|do|case|default)\b|\})")
    for path in sources(root):
        lines = [] if path.startswith("tests/") else read(root, path).splitlines()
        begins = {}  # by indentation: the last line that begins there
        for number, line in enumerate(lines):
            text = line.strip()
            indent = len(line) - len(line.lstrip())
            if text == "}" and indent in begins:
                begin = begins[indent]
                head = next((i for i in range(begin, number) if lines[i].endswith("{")), number)
                called = "(" in "".join(lines[begin : head + 1])
                if called and not other.match(lines[begin]) and number - head - 1 > MAX_FUNCTION:
                    yield f"{path}:{begin + 1}: {number - head - 1} lines"
            if text and not text.startswith(("#", "//")):
                begins[indent] = number


def check_words(root):
    """no unfinished work, no detail namespaces, no standard distributions or hashes, no sig_atomic_t"""
    unwanted = re.compile(r"\b(TODO|FIXME|XXX)\b|namespace detail\b|std::shuffle\b|std::\w+_distribution\b|"
                          r"std::hash\b|\bsig_atomic_t\b")
    for path in sources(root):
        for number, line in enumerate(read(root, path).splitlines(), 1):
            match = unwanted.search(line)
            if match:
                yield f"{path}:{number}: {match.group()}"


def check_types(root):
    """a type's name means one type in all sources"""
    # As clang-format lays them out: what stands in a namespace begins in the first column.
    defined = re.compile(r"(?:struct|class|union|enum(?: class)?) (?:alignas\(\w+\) )?([\w:]+)(?![\w:<])[^;]*\{")
    files = {}
    for path in sources(root):
        spaces, lines = [], read(root, path).splitlines()
        for number, line in enumerate(lines):
            if space := re.match(r"(?:inline )?namespace ?([\w:]*) ?\{$", line):
                spaces.append(space[1])
            elif line.startswith("}  // namespace") or (line == "}" and lines[number - 2].startswith("namespace")):
                spaces.pop()
            elif (found := defined.match(line)) and "" not in spaces:
                files.setdefault("::".join([*spaces, found[1]]), []).append(path)
    for name, paths in files.items():
        if len(paths) > 1:
            yield f"{name} is defined in {' and '.join(paths)}"


def check_documents(root):
    """links of the documentation lead to installed pages, its paths exist, and from README.md they reach every page"""
    paths = [os.path.relpath(path, root) for name in ("README.md", "docs/*/*.md", "examples/README.md") for path in glob.glob(os.path.join(root, name))]
    pages = {path: re.sub(r"^```.*?^```", "", read(root, path), flags=re.M | re.S) for path in sorted(paths)}
    # As GitHub makes them of headings.
    anchors = {path: [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-")
                      for heading in re.findall(r"^#+ (.*)$", text, re.M)] for path, text in pages.items()}
    links = {path: set() for path in pages}
    for path, text in pages.items():
        for target, anchor in re.findall(r"\]\((?!\w+:)([^)#]*)#?([^)]*)\)", text):
            file = os.path.normpath(os.path.join(os.path.dirname(path), target)) if target else path
            links[path].add(file)
            installed = file in ("README.md", "LICENSE", "examples/README.md") or re.fullmatch(r"docs/\w+/\w+\.(md|png|svg)", file)
            found = installed and os.path.exists(os.path.join(root, file))
            if not found or (anchor and anchor not in anchors.get(file, ())):
                yield f"{path} leads to {target}{'#' if anchor else ''}{anchor}"
        for name in re.findall(rf"`((?:{'|'.join(FOLDERS)}|docs|tools|\.ci)/[\w./-]*)`", text):
            if not os.path.exists(os.path.join(root, name)):
                yield f"{path} names {name}"
    reached, rest = set(), ["README.md"]
    while rest:
        path = rest.pop()
        rest += [] if path in reached else links.get(path, ())
        reached.add(path)
    for path in sorted(set(pages) - reached):
        yield f"no links lead from README.md to {path}"


def clang_format():
    for program in (f"clang-format-{CLANG_FORMAT}", "clang-format"):
        if shutil.which(program):
            version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
            if re.search(rf"version {CLANG_FORMAT}\.", version):
                return program
    return None


def check_format(root):
    """clang-format clean"""
    files = [os.path.join(root, path) for path in sources(root)]
    run = subprocess.run([clang_format(), "--dry-run", "--ferror-limit=1", *files], capture_output=True, text=True)
    for line in run.stderr.splitlines():
        if "warning:" in line or "error:" in line:
            yield os.path.relpath(line.split(": ")[0], root)


CHECKS = (check_folders, check_order, check_vendors, check_public_headers, check_examples, check_roots, check_own_includes,
          check_catch, check_sizes, check_folder_sizes, check_maxima, check_functions, check_words, check_types,
          check_documents, check_format)


def check_tree(root):
    passed = failed = skipped = 0
    for check in CHECKS:
        if check is check_format and not clang_format():
            print(f"skipped: clang-format {CLANG_FORMAT} is not installed", file=sys.stderr)
            skipped += 1
            continue
        found = list(check(root))
        passed += not found
        failed += bool(found)
        for line in found:
            print(f"{check.__doc__}: {line}", file=sys.stderr)
    print(f"{passed} passed, {failed} failed, {skipped} skipped", file=sys.stderr)
    total = sizes(root)
    print(f"lines: {', '.join(f'{part} {total[part]:,}' for part in ('product', 'examples', 'tests', 'tools'))}", file=sys.stderr)
    return failed


PLANTED = {
    check_folders: ("dp/a.cpp", '#include "ddp/b.h"\n'),
    check_vendors: ("lib/nn/a.cpp", "#include <dnnl.hpp>\n"),
    check_public_headers: (UMBRELLA, "#include <nlohmann/json.hpp>\n"),
    check_examples: ("examples/a.cpp", "#include <duet/lib/backend/cpu/kernels/kernels.h>\n"),
    check_roots: ("lib/a.cpp", '#include "b.h"\n'),
    check_own_includes: ("lib/a.cpp", "std::int64_t a;\n"),
    check_catch: ("tests/lib/a.cpp", "int a = Approx(1);\n"),
    check_sizes: ("lib/a.cpp", "\n" * (MAX_LINES + 1)),
    check_maxima: ("tools/a.py", "\n" * (MAXIMA["tools"] + 1)),
    check_functions: ("lib/a.cpp", "int a() {\n" + "\n" * (MAX_FUNCTION + 1) + "}\n"),
    check_words: ("lib/a.cpp", "// TO" + "DO\n"),
    check_types: ("lib/a.cpp", "namespace duet {\nstruct A {\n};\n}  // namespace duet\n"
                  "namespace {\nstruct A {};\n}  // namespace\nnamespace duet {\nclass A final : B {\n"),
    check_documents: ("README.md", "[a](docs/a/a.md)\n"),
    check_format: ("lib/a.cpp", "int  a ;\n"),
}


# What a check must not report, though it is close: a file and the header of its own name.
HARMLESS = {
    check_own_includes: (
        ("lib/a.h", "#include <cstdint>\n#include <string_view>\n"),
        ("lib/a.cpp", """#include <utility>\n
// std::vector would need <vector>
std::int64_t big = 1'000'000;
const char* text = "std::map", *raw = R"(std::set)";
std::string_view::size_type at = std::pair(1, 2).first + a.close() + std::my_own;
"""),
    ),
    check_documents: (
        ("README.md", "# A\n[b](docs/a/b.md#c-d) [e](https://e/f.md) `docs/a/b.md` `lib/<name>.cpp`\n```\n[g](h)\n```\n"),
        ("docs/a/b.md", "## C, d\n[a](../../README.md#a) [c](#c-d)\n"),
    ),
}


def plant(check, files):
    """What `check` finds in a tree of these files only."""
    with tempfile.TemporaryDirectory() as root:
        for path, text in files:
            os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                file.write(text)
        return list(check(root))


def self_test():
    cases = [(check, (file,), 1) for check, file in PLANTED.items()]
    for part, order in ORDER.items():  # every folder but the last of each part includes the next one up
        for low, high in zip(order, order[1:]):
            path = f"{low}/a.cpp" if low.startswith(part) else f"{part}/a.cpp"
            high = high if low.startswith(part) else "lib/nn"
            cases.append((check_order, ((path, f'#include "{high}/b.h"\n'),), 1))
    for head in ("A::A(int a,\n     int b)\n    : a_(a), b_{b} {", "  auto f() -> int {", "      int g() const override {"):
        indent = head[: len(head) - len(head.lstrip())]
        cases.append((check_functions, (("lib/a.cpp", head + f"\n{indent}  b();" * (MAX_FUNCTION + 1) + f"\n{indent}}}\n"),), 1))
    for path, text in (("docs/a/a.md", ""), ("README.md", "`lib/a.h`"), ("README.md", "# A\n[a](#b)"), ("README.md", "[a](lib)")):
        cases.append((check_documents, ((path, text),), 1))
    cases.append((check_folder_sizes, [(f"lib/{i}.h", "") for i in range(MAX_FILES + 1)], 1))
    cases += [(check, files, 0) for check, files in HARMLESS.items()]
    failed = 0
    for check, files, expected in cases:
        if check is check_format and not clang_format():
            continue
        found = plant(check, files)
        if len(found) != expected:
            print(f"{check.__name__} reports {found} for {files}", file=sys.stderr)
            failed += 1
    print(f"{len(cases) - failed} passed, {failed} failed, 0 skipped", file=sys.stderr)
    return failed


if __name__ == "__main__":
    sys.exit(1 if (self_test() if sys.argv[1] == "--self-test" else check_tree(sys.argv[1])) else 0)
