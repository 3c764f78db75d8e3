"""Every file includes what it uses: which header brings which name, and what a file lacks.

The names are those that other headers bring by luck: a newer compiler's, or another's, may not.
"""
import os
import re

# One of these headers must be included: the first is the one to add. Names are std's; a trailing * is any ending.
CONTAINERS = "array deque list map set span string string_view unordered_map unordered_set vector"
STD = {
    "algorithm": "adjacent_find all_of any_of binary_search clamp copy copy_if copy_n count count_if equal equal_range"
    " fill fill_n find find_if find_if_not for_each generate inplace_merge is_sorted lexicographical_compare"
    " lower_bound make_heap max max_element merge min min_element minmax minmax_element mismatch next_permutation"
    " none_of nth_element partial_sort partition pop_heap push_heap remove_copy_if remove_if replace replace_if reverse"
    " rotate search sort stable_partition stable_sort swap_ranges transform unique upper_bound",
    "any": "any any_cast make_any",
    "array": "array to_array",
    "atomic": "atomic atomic_* memory_order*",
    "barrier": "barrier",
    "bit": "bit_cast bit_ceil bit_floor bit_width countl_* countr_* endian has_single_bit popcount rotl rotr",
    "bitset": "bitset",
    "cctype locale": "isalnum isalpha isdigit islower isprint ispunct isspace isupper isxdigit tolower toupper",
    "charconv": "chars_format from_chars from_chars_result to_chars to_chars_result",
    "chrono": "chrono chrono_literals",
    "cmath": "ceil cos exp exp2 expm1 fabs floor fma fmod hypot isfinite isinf isnan ldexp llround log log10 log1p log2"
    " lround nan nanf nearbyint nextafter pow rint round signbit sin sqrt tan tanh trunc",
    "cmath cstdlib complex": "abs",
    "compare": "partial_ordering strong_ordering weak_ordering",
    "complex": "complex",
    "concepts": "convertible_to derived_from floating_point integral invocable same_as",
    "condition_variable": "condition_variable condition_variable_any cv_status",
    "csignal signal.h": "raise sig_atomic_t signal",
    "cstdarg": "va_list",
    "cstddef": "byte max_align_t nullptr_t ptrdiff_t to_integer",
    "cstddef cstdio cstdlib cstring ctime " + CONTAINERS: "size_t",
    "cstdint cinttypes": "int*_t uint*_t",
    "cstdio": "FILE fclose ferror fflush fgets fopen fprintf fputs fread fseek ftell fwrite perror printf puts setvbuf"
    " snprintf sprintf sscanf tmpfile vfprintf vsnprintf",
    "cstdlib": "abort aligned_alloc at_quick_exit atexit atof atoi atol calloc exit free getenv malloc qsort quick_exit"
    " realloc strtod strtof strtol strtoll strtoul strtoull system",
    "cstring": "memchr memcmp memcpy memmove memset strcat strchr strcmp strcpy strerror strlen strncat strncmp strncpy"
    " strrchr strstr",
    "ctime": "clock_t gmtime localtime mktime strftime time tm",
    "ctime chrono": "time_t",
    "deque": "deque",
    "exception": "current_exception exception_ptr make_exception_ptr nested_exception rethrow_exception"
    " rethrow_if_nested set_terminate terminate throw_with_nested uncaught_exceptions",
    "exception stdexcept": "exception",
    "filesystem": "filesystem",
    "fstream": "filebuf fstream ifstream ofstream",
    "functional": "bind bind_front cref divides function greater invoke less mem_fn minus multiplies negate plus"
    " reference_wrapper",
    "future": "async future future_status launch packaged_task promise shared_future",
    "initializer_list algorithm string vector map set unordered_map unordered_set": "initializer_list",
    "iomanip": "put_time quoted setfill setprecision setw",
    "ios iostream istream ostream fstream sstream": "defaultfloat fixed hex ios ios_base scientific streamoff streamsize",
    "iosfwd iostream istream ostream fstream sstream": "istream ostream",
    "iostream": "cerr cin clog cout",
    "istream iostream fstream sstream": "ws",
    "iterator": "advance back_inserter contiguous_iterator* default_sentinel default_sentinel_t distance front_inserter"
    " input_iterator_tag inserter istream_iterator istreambuf_iterator make_move_iterator next ostream_iterator"
    " output_iterator* prev random_access_iterator* reverse_iterator",
    "latch": "latch",
    "limits": "numeric_limits",
    "list": "list",
    "locale": "locale",
    "map": "map multimap",
    "memory": "addressof align allocate_shared allocator* assume_aligned construct_at const_pointer_cast default_delete"
    " destroy_at destroy_n dynamic_pointer_cast enable_shared_from_this make_shared make_unique owner_less"
    " pointer_traits shared_ptr static_pointer_cast to_address uninitialized_* unique_ptr weak_ptr",
    "memory_resource": "pmr",
    "mutex": "call_once lock_guard mutex once_flag recursive_mutex scoped_lock timed_mutex",
    "mutex shared_mutex": "adopt_lock defer_lock try_to_lock unique_lock",
    "new": "align_val_t bad_alloc bad_array_new_length hardware_*_interference_size launder nothrow nothrow_t",
    "numbers": "numbers",
    "numeric": "accumulate exclusive_scan gcd inclusive_scan inner_product iota lcm midpoint partial_sum reduce"
    " transform_reduce",
    "optional": "make_optional nullopt nullopt_t optional",
    "ostream iostream fstream sstream": "endl flush",
    "queue": "priority_queue queue",
    "random": "bernoulli_distribution mt19937 mt19937_64 random_device seed_seq",
    "ratio chrono": "micro milli nano ratio",
    "regex": "regex regex_* smatch cmatch sregex_iterator",
    "semaphore": "binary_semaphore counting_semaphore",
    "set": "multiset set",
    "shared_mutex": "shared_lock shared_mutex",
    "source_location": "source_location",
    "span": "as_bytes as_writable_bytes dynamic_extent span",
    "sstream": "istringstream ostringstream stringbuf stringstream",
    "stack": "stack",
    "stdexcept": "domain_error invalid_argument length_error logic_error out_of_range overflow_error range_error"
    " runtime_error underflow_error",
    "stop_token": "stop_callback stop_source stop_token",
    "string": "basic_string char_traits getline stod stof stoi stol stold stoll stoul stoull string string_literals"
    " to_string wstring",
    "string_view": "basic_string_view string_view string_view_literals",
    "system_error": "errc error_category error_code error_condition generic_category make_error_code system_category"
    " system_error",
    "thread": "jthread this_thread thread",
    "tuple": "apply forward_as_tuple ignore make_from_tuple make_tuple tie tuple tuple_cat",
    "variant array tuple utility": "get tuple_element* tuple_size*",
    "type_traits": "common_type* conditional* decay* enable_if* extent* false_type integral_constant invoke_result*"
    " is_(?!sorted)* make_signed* make_unsigned* remove_const* remove_cv* remove_extent* remove_pointer* remove_reference*"
    " true_type type_identity* underlying_type* void_t",
    "typeindex": "type_index",
    "typeinfo": "bad_cast bad_typeid type_info",
    "unordered_map": "unordered_map unordered_multimap",
    "unordered_set": "unordered_multiset unordered_set",
    "utility": "as_const cmp_* declval exchange forward in_place* in_range index_sequence integer_sequence"
    " make_index_sequence make_integer_sequence make_pair move piecewise_construct swap",
    "utility map unordered_map": "pair",
    "variant": "bad_variant_access get_if holds_alternative monostate variant visit",
    "vector": "vector",
    "iterator " + CONTAINERS: "ssize",
}
# Names of C and POSIX, which stand outside of std: a pattern each. Functions are written ::close(), so that no member is
# taken for one of them.
C = {
    "cassert assert.h": r"\bassert\(",
    "cerrno errno.h": r"\berrno\b",
    "cfloat float.h": r"\b(?:FLT|DBL)_(?:MAX|MIN|EPSILON|MANT_DIG|TRUE_MIN)\b",
    "cinttypes": r"\bPRI[diuxX](?:8|16|32|64)\b",
    "climits limits.h": r"\b(?:CHAR_BIT|(?:CHAR|SHRT|U?INT|U?LONG|U?LLONG)_(?:MAX|MIN)|PATH_MAX)\b",
    "csignal signal.h": r"\bSIG(?:ABRT|ALRM|BUS|CHLD|CONT|FPE|HUP|ILL|INT|KILL|PIPE|QUIT|SEGV|STOP|TERM|USR1|USR2|WINCH)\b",
    "signal.h": r"(?<![\w>])::(?:kill|sigaction|sigprocmask|sigemptyset|pthread_sigmask)\(",
    "dlfcn.h": r"(?<![\w>])::(?:dlopen|dlsym|dlerror|dlclose|dladdr)\(",
    "fcntl.h": r"(?<![\w>])::(?:open|fcntl|posix_fallocate)\(|\bO_(?:RDONLY|WRONLY|RDWR|CLOEXEC|CREAT|NONBLOCK)\b",
    "netdb.h": r"(?<![\w>])::getaddrinfo\(",
    "poll.h": r"(?<![\w>])::poll\(|\bPOLLIN\b",
    "sched.h": r"(?<![\w>])::sched_\w+\(|\bcpu_set_t\b",
    "sys/file.h": r"(?<![\w>])::flock\(",
    "sys/mman.h": r"(?<![\w>])::(?:mmap|munmap|madvise|mprotect|memfd_create|shm_open)\(",
    "sys/prctl.h": r"(?<![\w>])::prctl\(",
    "sys/resource.h": r"(?<![\w>])::(?:getrlimit|setrlimit|getrusage)\(",
    "sys/socket.h": r"(?<![\w>])::(?:socket|bind|listen|accept|connect|getsockname|setsockopt)\(",
    "sys/stat.h": r"(?<![\w>])::(?:chmod|fstat|lstat|mkdir|stat|umask)\(",
    "sys/syscall.h": r"\bSYS_\w+\b",
    "sys/wait.h": r"(?<![\w>])::(?:waitid|waitpid)\(|\bW(?:IFEXITED|IFSIGNALED|EXITSTATUS|TERMSIG|NOHANG)\b",
    "sys/types.h fcntl.h poll.h sched.h signal.h stdio.h sys/mman.h sys/socket.h sys/stat.h sys/wait.h unistd.h": r"\bpid_t\b",
    "unistd.h": r"(?<![\w>])::(?:_exit|access|chdir|close|dup|dup2|execl|execv|execvp|execvpe|fork|fsync|ftruncate|getcwd"
    r"|getegid|geteuid|getgid|gethostname|getpid|getppid|getuid|isatty|link|lseek|pause|pipe|pipe2|pread|pwrite|read"
    r"|readlink|rmdir|setpgid|setsid|sysconf|unlink|usleep|write)\(",
}
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"\n]+)[>"]', re.M)
# Comments and literals, a raw string first.
NOT_CODE = re.compile(r'R"(\w*)\(.*?\)\1"|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\'', re.S)


def pattern(names):
    words = (name.replace("*", r"\w*") for name in names.split())
    return re.compile(rf"\bstd::(?:ranges::)?(?:{'|'.join(words)})\b")


TABLE = [(headers.split(), pattern(names)) for headers, names in STD.items()]
TABLE += [(headers.split(), re.compile(names)) for headers, names in C.items()]


def system_headers(text):
    return {header for bracket, header in INCLUDE.findall(text) if bracket == "<"}


def lacking(root, path):
    """(name, headers that have it) for names in the file of which neither it nor the header of its own name includes one"""
    with open(os.path.join(root, path), encoding="utf-8") as file:
        text = file.read()
    included = system_headers(text)
    own = os.path.join(root, os.path.splitext(path)[0] + ".h")
    if not path.endswith(".h") and os.path.exists(own):
        with open(own, encoding="utf-8") as file:
            included |= system_headers(file.read())
    code = NOT_CODE.sub(" ", INCLUDE.sub("", text))
    for headers, names in TABLE:
        found = names.search(code)
        if found and not included.intersection(headers):
            yield found.group().strip("("), headers
