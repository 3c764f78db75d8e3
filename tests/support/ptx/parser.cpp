// PTX as text -> kernels. All text is parsed; what is not known is an error with its line.
#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/error.h"
#include "tests/support/ptx/instructions.h"
#include "tests/support/ptx/interpreter.h"
#include "tests/support/ptx/kernel.h"
#include "tests/support/ptx/machine.h"

namespace duet_ptx {
namespace {

struct Token {
  std::string text;
  int line;
};

bool in_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || std::string_view("_$%.").find(c) != std::string_view::npos;
}

std::vector<Token> split_tokens(const std::string& text) {
  std::vector<Token> tokens;
  int line = 1;
  for (std::size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (c == '\n') ++line;
    std::size_t end = i + 1;
    if (std::isspace(static_cast<unsigned char>(c)) != 0 || c == '\0') {
    } else if (text.compare(i, 2, "//") == 0) {
      end = std::min(text.find('\n', i), text.size());
    } else if (text.compare(i, 2, "/*") == 0) {
      end = std::min(text.find("*/", i), text.size() - 2) + 2;
    } else {
      if (c == '"') end = std::min(text.find('"', i + 1), text.size() - 1) + 1;
      while (in_word(c) && end < text.size() && in_word(text[end])) ++end;
      tokens.push_back({text.substr(i, end - i), line});
    }
    i = end;
  }
  return tokens;
}

std::vector<std::string> split_opcode(const std::string& opcode) {
  std::vector<std::string> parts;
  for (std::size_t from = 0; from <= opcode.size();) {
    const std::size_t dot = std::min(opcode.find('.', from), opcode.size());
    parts.push_back(opcode.substr(from, dot - from));
    from = dot + 1;
  }
  return parts;
}

struct Declared {
  std::size_t bytes, align;
};

/// The tokens of a file, from the first to the last.
class Reader {
 public:
  explicit Reader(const std::string& text) : tokens_(split_tokens(text)) {}

  bool done() const { return at_ >= tokens_.size(); }
  std::size_t position() const { return at_; }
  const std::string& peek(std::size_t ahead = 0) const {
    if (at_ + ahead >= tokens_.size()) fail("the text ends early");
    return tokens_[at_ + ahead].text;
  }
  const std::string& next() {
    peek();
    return tokens_[at_++].text;
  }
  bool accept(std::string_view text) {
    if (done() || peek() != text) return false;
    ++at_;
    return true;
  }
  void expect(std::string_view text) {
    if (!accept(text)) fail("expected " + std::string(text) + ", found " + peek());
  }
  std::uint64_t number() { return number(next()); }
  std::uint64_t number(std::string_view text) const {
    const bool negative = text.substr(0, 1) == "-";
    std::string digits(text.substr(negative ? 1 : 0));
    if (!digits.empty() && digits.back() == 'U') digits.pop_back();
    std::size_t used = 0;
    std::uint64_t value = 0;
    try {
      value = std::stoull(digits, &used, 0);
    } catch (const std::exception&) {
      used = 0;
    }
    if (used == 0 || used != digits.size()) fail("no number: " + std::string(text));
    return negative ? 0 - value : value;
  }
  unsigned width(const std::string& type) const {
    if (type == "pred") return 1;
    const std::size_t digits = type.find_first_of("0123456789");
    if (digits == std::string::npos) fail("no type: " + type);
    return static_cast<unsigned>(number(type.substr(digits))) / 8;
  }
  /// Behind .shared or .param: ".align N .b8 name[size]" or ".f32 name".
  std::pair<std::string, Declared> declaration() {
    std::size_t align = accept(".align") ? number() : 0;
    const unsigned element = width(next().substr(1));
    if (align == 0) align = element;
    if (accept(".ptr")) {  // what the parameter points to
      if (peek() == ".global" || peek() == ".shared" || peek() == ".const" || peek() == ".local") next();
      if (accept(".align")) next();
    }
    const std::string name = next();
    if (!accept("[")) return {name, {element, align}};
    const std::size_t count = peek() == "]" ? 0 : number();
    expect("]");
    return {name, {element * count, align}};
  }
  /// The text of the tokens from `begin` to here, with the line of the first.
  std::string text_from(std::size_t begin) const {
    std::string text = "line " + std::to_string(tokens_[begin].line) + ":";
    for (std::size_t n = begin; n + 1 < at_; ++n) text += " " + tokens_[n].text;
    return text;
  }
  [[noreturn]] void fail(const std::string& why) const {
    const int line = tokens_.empty() ? 0 : tokens_[std::min(at_, tokens_.size() - 1)].line;
    throw duet::DataError(duet::concat("PTX, line ", line, ": ", why));
  }

 private:
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
};

/// One operand: a register, number or symbol, a vector {a, b}, or an address [a + offset].
struct Operand {
  std::vector<std::string> names;
  bool vector = false, address = false;
  std::uint64_t offset = 0;
  std::string second;  // the other predicate of p|q
};

class KernelParser {
 public:
  KernelParser(Reader& reader, Kernel& kernel, const std::map<std::string, Declared>& module_shared)
      : in_(reader), kernel_(kernel), module_shared_(module_shared) {}

  void parse();

 private:
  void parse_head();
  void parse_registers(bool inner_scope);
  void parse_instruction();
  void parse_arithmetic(Instruction& i, const std::vector<std::string>& opcode, const std::vector<Operand>& operands);
  void parse_memory(Instruction& i, const std::vector<std::string>& opcode, const std::vector<Operand>& operands);
  void parse_shuffle(Instruction& i, const std::vector<std::string>& opcode, const std::vector<Operand>& operands);
  void parse_product(Instruction& i, const std::vector<std::string>& opcode, const std::vector<Operand>& operands);
  Operand parse_operand();
  std::string name_or_number() { return in_.accept("-") ? "-" + in_.next() : in_.next(); }

  Slot new_slot(const std::string& name, std::uint64_t value, bool defined);
  Slot constant(std::uint64_t value);
  Slot special(const std::string& name);
  Slot slot_of(const std::string& operand);
  std::size_t place_shared(const std::string& name);
  [[noreturn]] void refuse(const std::vector<std::string>& opcode) const {
    std::string name;
    for (const std::string& part : opcode) name += (name.empty() ? "" : ".") + part;
    in_.fail("instruction " + name + " is not interpreted");
  }

  Reader& in_;
  Kernel& kernel_;
  const std::map<std::string, Declared>& module_shared_;
  std::map<std::string, Slot> slots_;
  std::map<std::uint64_t, Slot> constants_;
  std::map<std::string, std::size_t> labels_;
  std::vector<std::pair<std::size_t, std::string>> jumps_;
  std::map<std::string, std::size_t> parameter_at_, shared_at_, local_at_;
  std::map<std::string, Declared> shared_;
};

Slot KernelParser::new_slot(const std::string& name, std::uint64_t value, bool defined) {
  kernel_.initial.push_back(value);
  kernel_.defined.push_back(defined ? 1 : 0);
  kernel_.slot_names.push_back(name);
  return static_cast<Slot>(kernel_.initial.size() - 1);
}

Slot KernelParser::constant(std::uint64_t value) {
  const auto [place, fresh] = constants_.try_emplace(value, 0);
  if (fresh) place->second = new_slot("constant", value, true);
  return place->second;
}

/// kNoSlot: the name is that of an ordinary register.
Slot KernelParser::special(const std::string& name) {
  static const char* const names[kSpecialRegisters] = {"%tid.x",   "%tid.y",    "%tid.z",    "%ntid.x",
                                                       "%ntid.y",  "%ntid.z",   "%ctaid.x",  "%ctaid.y",
                                                       "%ctaid.z", "%nctaid.x", "%nctaid.y", "%nctaid.z"};
  for (std::size_t s = 0; s < kSpecialRegisters; ++s) {
    if (name != names[s]) continue;
    if (kernel_.special[s] == kNoSlot) kernel_.special[s] = new_slot(name, 0, true);
    return kernel_.special[s];
  }
  // Registers of a kernel are declared as %name<count>, so that what has a dot or is of these is a special one.
  if (name.find('.') != std::string::npos || name == "%laneid" || name == "%warpid" || name == "%smid" ||
      name.rfind("%clock", 0) == 0 || name.rfind("%lanemask", 0) == 0 || name.rfind("%globaltimer", 0) == 0)
    in_.fail("register " + name + " is not interpreted");
  return kNoSlot;
}

Slot KernelParser::slot_of(const std::string& operand) {
  if (operand == "_") return kNoSlot;
  if (operand[0] == '%') {
    if (const Slot known = special(operand); known != kNoSlot) return known;
    const auto [place, fresh] = slots_.try_emplace(operand, 0);
    if (fresh) place->second = new_slot(operand, 0xdeadbeefdeadbeef, false);
    return place->second;
  }
  if (const auto found = slots_.find(operand); found != slots_.end()) return found->second;
  const char kind = static_cast<char>(operand.size() > 1 ? std::tolower(static_cast<unsigned char>(operand[1])) : ' ');
  if (operand[0] == '0' && ((kind == 'f' && operand.size() == 10) || (kind == 'd' && operand.size() == 18)))
    return constant(in_.number("0x" + operand.substr(2)));
  if (std::isdigit(static_cast<unsigned char>(operand[0])) != 0 || operand[0] == '-')
    return constant(in_.number(operand));
  if (const auto found = parameter_at_.find(operand); found != parameter_at_.end()) return constant(found->second);
  if (const auto found = local_at_.find(operand); found != local_at_.end()) return constant(found->second);
  return constant(place_shared(operand));
}

/// Lays a variable of shared memory out, with 256 closed bytes before it.
std::size_t KernelParser::place_shared(const std::string& name) {
  if (const auto found = shared_at_.find(name); found != shared_at_.end()) return found->second;
  const bool local = shared_.count(name) != 0;
  if (!local && module_shared_.count(name) == 0) in_.fail("unknown symbol " + name);
  const Declared variable = local ? shared_.at(name) : module_shared_.at(name);
  const auto rounded = [](std::size_t n, std::size_t to) { return (n + to - 1) / to * to; };
  const std::size_t at = rounded(kernel_.shared_bytes + 256, std::max<std::size_t>(variable.align, 16));
  kernel_.shared.push_back({at, variable.bytes, variable.bytes == 0});
  kernel_.shared_needed = rounded(kernel_.shared_needed, variable.align) + variable.bytes;
  kernel_.shared_bytes = at + variable.bytes;
  return shared_at_[name] = at;
}

Operand KernelParser::parse_operand() {
  Operand operand;
  if (in_.accept("{")) {
    operand.vector = true;
    do operand.names.push_back(name_or_number());
    while (in_.accept(","));
    in_.expect("}");
  } else if (in_.accept("[")) {
    operand.address = true;
    operand.names.push_back(name_or_number());
    if (in_.accept("+")) operand.offset = in_.number(name_or_number());
    in_.expect("]");
  } else {
    operand.names.push_back(name_or_number());
    if (in_.accept("|")) operand.second = in_.next();
  }
  return operand;
}

void KernelParser::parse_memory(Instruction& i, const std::vector<std::string>& opcode,
                                const std::vector<Operand>& operands) {
  const bool loads = opcode[0] == "ld";
  if (opcode.size() < 3 || operands.size() != 2) refuse(opcode);
  i.width = static_cast<std::uint8_t>(in_.width(opcode.back()));
  i.is_signed = opcode.back()[0] == 's';
  for (std::size_t n = 2; n + 1 < opcode.size(); ++n) {
    if (opcode[n] == "nc")
      i.constant_cache = true;
    else if (opcode[n] == "v2")
      i.count = 2;
    else if (opcode[n] == "v4")
      i.count = 4;
    else
      refuse(opcode);
  }
  const Operand &address = operands[loads ? 1 : 0], &values = operands[loads ? 0 : 1];
  if (!address.address || values.names.size() != i.count) refuse(opcode);
  i.offset = address.offset;
  const std::string& space = opcode[1];
  const auto parameter = parameter_at_.find(address.names[0]);
  if (space == "param" && parameter != parameter_at_.end()) {
    i.offset += parameter->second;
    if (i.offset + i.bytes() > kernel_.parameter_bytes) in_.fail("parameter read out of bounds");
  } else {
    i.from[0] = slot_of(address.names[0]);
  }
  for (std::size_t n = 0; n < i.count; ++n) (loads ? i.to[n] : i.from[1 + n]) = slot_of(values.names[n]);
  if (space == "param" && loads)
    i.act = &load_parameter;
  else if (space == "global")
    i.act = loads ? &load_global : &store_global;
  else if (space == "shared")
    i.act = loads ? &load_shared : &store_shared;
  else if (space == "local")
    i.act = loads ? &load_local : &store_local;
  else
    refuse(opcode);
}

void KernelParser::parse_shuffle(Instruction& i, const std::vector<std::string>& opcode,
                                 const std::vector<Operand>& operands) {
  static const std::map<std::string, ShuffleMode> modes = {{"bfly", ShuffleMode::butterfly},
                                                           {"down", ShuffleMode::down},
                                                           {"up", ShuffleMode::up},
                                                           {"idx", ShuffleMode::index}};
  if (opcode.size() != 4 || opcode[1] != "sync" || modes.count(opcode[2]) == 0 || operands.size() != 5) refuse(opcode);
  i.flow = Flow::shuffle;
  i.mode = modes.at(opcode[2]);
  i.to[0] = slot_of(operands[0].names[0]);
  if (!operands[0].second.empty()) i.to[1] = slot_of(operands[0].second);
  for (std::size_t n = 0; n < 4; ++n) i.from[n] = slot_of(operands[1 + n].names[0]);
}

void KernelParser::parse_product(Instruction& i, const std::vector<std::string>& opcode,
                                 const std::vector<Operand>& operands) {
  static const std::vector<std::string> known = {"mma", "sync", "aligned", "m16n8k8", "row",
                                                 "col", "f32",  "tf32",    "tf32",    "f32"};
  if (opcode != known || operands.size() != 4) refuse(opcode);
  i.flow = Flow::product;
  std::size_t at = 0;
  for (const std::size_t count : {4, 4, 2, 4}) {
    const std::vector<std::string>& names = operands[at++].names;
    if (names.size() != count) refuse(opcode);
    for (std::size_t n = 0; n < count; ++n)
      at == 1 ? i.to[n] = slot_of(names[n]) : i.from[(at == 2 ? 0 : at == 3 ? 4 : 6) + n] = slot_of(names[n]);
  }
}

void KernelParser::parse_arithmetic(Instruction& i, const std::vector<std::string>& opcode,
                                    const std::vector<Operand>& operands) {
  if (operands.empty() || operands.size() > 5) refuse(opcode);
  if (opcode[0] == "mov" && operands.size() == 2 && opcode.size() == 2 && operands[0].vector != operands[1].vector) {
    const bool packs = operands[1].vector;
    i.act = find_pack(packs, opcode[1]);
    if (operands[packs ? 1 : 0].names.size() != 2) refuse(opcode);
    for (std::size_t n = 0; n < operands[0].names.size(); ++n) i.to[n] = slot_of(operands[0].names[n]);
    for (std::size_t n = 0; n < operands[1].names.size(); ++n) i.from[n] = slot_of(operands[1].names[n]);
  } else {
    i.act = find_action(opcode);
    i.fusible = fusible(opcode);
    i.width = static_cast<std::uint8_t>(i.fusible == Fusible::no ? 0 : in_.width(opcode.back()));
    i.to[0] = i.act == nullptr ? kNoSlot : slot_of(operands[0].names[0]);
    if (!operands[0].second.empty()) i.to[1] = slot_of(operands[0].second);
    for (std::size_t n = 1; n < operands.size() && i.act != nullptr; ++n) {
      if (operands[n].vector || operands[n].address) refuse(opcode);
      i.from[n - 1] = slot_of(operands[n].names[0]);
    }
  }
  if (i.act == nullptr) refuse(opcode);
}

void KernelParser::parse_instruction() {
  Instruction i;
  const std::size_t begin = in_.position();
  if (in_.accept("@")) {
    i.guard_not = in_.accept("!");
    i.guard = slot_of(in_.next());
  }
  const std::vector<std::string> opcode = split_opcode(in_.next());
  std::vector<Operand> operands;
  if (in_.peek() == "(") refuse(opcode);  // a call
  while (!in_.accept(";")) {
    operands.push_back(parse_operand());
    if (in_.peek() != ";") in_.expect(",");
  }
  i.text = in_.text_from(begin);
  const std::string& name = opcode[0];
  const bool whole_block = operands.size() == 1 && operands[0].names[0] == "0";
  if (name == "bra" && operands.size() == 1) {
    i.flow = Flow::branch;
    jumps_.emplace_back(kernel_.code.size(), operands[0].names[0]);
  } else if (name == "ret" || name == "exit") {
    i.flow = Flow::leave;
  } else if ((name == "bar" || name == "barrier") && opcode.size() > 1 && opcode[1] == "sync" && whole_block) {
    i.flow = Flow::barrier;
  } else if (name == "membar" || name == "fence") {
    i.act = &do_nothing;
  } else if (name == "shfl") {
    parse_shuffle(i, opcode, operands);
  } else if (name == "mma") {
    parse_product(i, opcode, operands);
  } else if (name == "ld" || name == "st") {
    parse_memory(i, opcode, operands);
  } else {
    parse_arithmetic(i, opcode, operands);
  }
  kernel_.code.push_back(std::move(i));
}

/// Behind .reg: names of an inner scope are new registers in each. Scopes that share a name do not nest here.
void KernelParser::parse_registers(bool inner_scope) {
  while (!in_.accept(";")) {
    const std::string& word = in_.next();
    if (inner_scope && word[0] != '.' && word != ",") slots_[word] = new_slot(word, 0, false);
  }
}

void KernelParser::parse_head() {
  kernel_.name = in_.next();
  if (in_.accept("(")) {
    while (!in_.accept(")")) {
      in_.expect(".param");
      const auto [name, declared] = in_.declaration();
      const std::size_t at = (kernel_.parameter_bytes + declared.align - 1) / declared.align * declared.align;
      parameter_at_[name] = at;
      kernel_.parameters.push_back({at, declared.bytes});
      kernel_.parameter_bytes = at + declared.bytes;
      in_.accept(",");
    }
  }
  while (!in_.accept("{")) {
    if (in_.accept(".maxntid")) {
      kernel_.most_threads = 1;
      do kernel_.most_threads *= static_cast<unsigned>(in_.number());
      while (in_.accept(","));
    } else if (in_.accept(".minnctapersm")) {
      in_.next();
    } else {
      in_.fail("directive " + in_.peek() + " is not interpreted");
    }
  }
}

void KernelParser::parse() {
  std::fill_n(kernel_.special, kSpecialRegisters, kNoSlot);
  parse_head();
  for (int depth = 1; depth > 0;) {
    if (in_.accept("{")) {
      ++depth;
    } else if (in_.accept("}")) {
      --depth;
    } else if (in_.accept(".reg")) {
      parse_registers(depth > 1);
    } else if (in_.accept(".pragma")) {
      parse_registers(false);
    } else if (in_.accept(".shared")) {
      shared_.insert(in_.declaration());
      in_.expect(";");
    } else if (in_.accept(".local")) {
      const auto [name, declared] = in_.declaration();
      local_at_[name] = (kernel_.local_bytes + declared.align - 1) / declared.align * declared.align;
      kernel_.local_bytes = local_at_[name] + declared.bytes;
      in_.expect(";");
    } else if (in_.peek()[0] == '.') {
      in_.fail("directive " + in_.peek() + " is not interpreted");
    } else if (in_.peek(1) == ":") {
      labels_[in_.next()] = kernel_.code.size();
      in_.expect(":");
    } else {
      parse_instruction();
    }
  }
  for (const auto& [at, label] : jumps_) {
    const auto found = labels_.find(label);
    if (found == labels_.end()) in_.fail("unknown label " + label);
    kernel_.code[at].target = found->second;
  }
  Instruction end;
  end.flow = Flow::leave;
  end.text = "the end";
  end.runs = 1;  // reached or not, it is no instruction of the kernel
  kernel_.code.push_back(std::move(end));
  kernel_.contracted = contract(kernel_);
}

}  // namespace

Module::Module(const std::string& text) {
  Reader in(text);
  std::map<std::string, Declared> shared;
  while (!in.done()) {
    if (in.accept(".version") || in.accept(".address_size")) {
      in.next();
    } else if (in.accept(".target")) {
      do in.next();
      while (in.accept(","));
    } else if (in.accept(".visible") || in.accept(".weak") || in.accept(".extern")) {
    } else if (in.accept(".shared")) {
      shared.insert(in.declaration());
      in.expect(";");
    } else if (in.accept(".entry")) {
      auto kernel = std::make_unique<Kernel>();
      KernelParser(in, *kernel, shared).parse();
      kernels_[kernel->name] = std::move(kernel);
    } else {
      in.fail("directive " + in.peek() + " is not interpreted");
    }
  }
}

Module::~Module() = default;

std::vector<std::string> Module::names() const {
  std::vector<std::string> all;
  for (const auto& [name, kernel] : kernels_) all.push_back(name);
  return all;
}

const Kernel* Module::find(const std::string& name) const {
  const auto found = kernels_.find(name);
  return found == kernels_.end() ? nullptr : found->second.get();
}

}  // namespace duet_ptx
