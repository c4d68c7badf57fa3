// Runs the host tests, or loads programs. Prints one JSON line a result:
//   main run DATA [soak]            every case: {"case", "failures": [text]}
//   main probe METHOD FILE...       every program: {"file", "code", "message", "plan", "dispatches", "unfused_dispatches",
//                                                      "passes_apart"}
#include <cstdio>
#include <cstring>

#include "check.h"
#include "program/contracts.h"
#include "program/model.h"
#include "program/one_pass.h"
#include "program/recorder.h"
#include "test_limits.h"

namespace gemma4::test {

namespace {
// The runner's own state: which case runs, and what it was started with.
std::vector<std::string> failures;
std::string data_folder;
bool soak = false;
}  // namespace

std::vector<Case>& Cases() {
  static std::vector<Case> cases;
  return cases;
}

void Failed(const char* file, int line, const std::string& what) {
  const char* name = std::strrchr(file, '/');
  failures.push_back(Text(name == nullptr ? file : name + 1, ":", line, ": ", what));
}

void Refused(const char* file, int line, const Status& status, std::vector<std::string> parts) {
  if (status.ok()) return Failed(file, line, "was accepted, wanted an error");
  for (const std::string& part : parts) {
    if (status.message().find(part) == std::string::npos) {
      Failed(file, line, Text("the message lacks '", part, "': ", status.message()));
    }
  }
}

std::vector<uint8_t> ReadFile(const std::string& path) {
  std::vector<uint8_t> bytes;
  std::FILE* stream = std::fopen(path.c_str(), "rb");
  if (stream == nullptr) {
    Failed(__FILE__, __LINE__, Text("cannot open ", path));
    return bytes;
  }
  uint8_t block[65536];
  for (size_t count; (count = std::fread(block, 1, sizeof(block), stream)) > 0;)
    bytes.insert(bytes.end(), block, block + count);
  std::fclose(stream);
  return bytes;
}

std::string DataPath(std::string_view name) { return Text(data_folder, "/", name); }
bool Soak() { return soak; }

namespace {

void Print(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

int RunCases() {
  for (const Case& test : Cases()) {
    failures.clear();
    test.body();
    JsonWriter json;
    json.BeginObject().Key("case").String(test.name).Key("failures").BeginArray();
    for (const std::string& failure : failures) json.String(failure);
    Print(json.EndArray().EndObject().Take());
  }
  return 0;
}

// Of a decode step, or of a round where the program has them.
uint64_t Dispatches(const std::vector<uint8_t>& file, const char* method, uint32_t mask) {
  const Result<program::Plan> plan = program::Model::MakePlan(file, method, LargeLimits(), mask);
  if (!plan.ok()) return 0;
  const uint32_t rows = plan->header.mtp() ? program::kRoundRows : 1;
  return program::BuildPass(plan.value(), plan->header.mtp(), {rows, rows}).size();
}

// Why no compute pass holds all of a decode step, or round; "" where one does.
std::string PassesApart(const program::Plan& plan) {
  const bool round = plan.header.mtp();
  const uint32_t rows = round ? program::kRoundRows : 1;
  return program::MayShareOnePass(plan, program::BuildPass(plan, round, {rows, rows}), round).message();
}

int Probe(const char* method, std::span<char*> files) {
  for (const char* file : files) {
    const std::vector<uint8_t> bytes = ReadFile(file);
    const Result<program::Plan> plan = program::Model::MakePlan(bytes, method, LargeLimits());
    JsonWriter json;
    json.BeginObject().Key("file").String(file).Key("code").String(plan.ok() ? "ok" : CodeName(plan.status().code()));
    json.Key("message").String(plan.status().message()).Key("plan").String(plan.ok() ? plan->ToJson() : "");
    json.Key("dispatches").Number(Dispatches(bytes, method, ops::kDefaultRoutes));
    json.Key("unfused_dispatches").Number(Dispatches(bytes, method, ops::kDefaultRoutes & ~ops::kFusions));
    json.Key("passes_apart").String(plan.ok() ? PassesApart(plan.value()) : "");
    Print(json.EndObject().Take());
  }
  return 0;
}

}  // namespace
}  // namespace gemma4::test

int main(int argc, char** argv) {
  using namespace gemma4::test;
  if (argc >= 3 && std::strcmp(argv[1], "run") == 0) {
    data_folder = argv[2];
    soak = argc > 3 && std::strcmp(argv[3], "soak") == 0;
    return RunCases();
  }
  if (argc >= 4 && std::strcmp(argv[1], "probe") == 0) return Probe(argv[2], {argv + 3, static_cast<size_t>(argc - 3)});
  std::fputs("main run DATA [soak] | main probe METHOD FILE...\n", stderr);
  return 2;
}
