// The session's requests on a device whose commit kernel is played by a small sequence machine: every token has one
// successor, drafts are right or wrong by a pattern. Loops, endings, faults, health and teardown. R2-R7, R12, V6, V9, X6.
#include "decode/session.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "check.h"
#include "fake_webgpu.h"

namespace gemma4 {
namespace {

using decode::Session;
using test::DataPath;
using test::Fake;
using test::FakeDispatch;
using test::Pump;
using test::ReadFile;

constexpr bool kMtp = GEMMA4_MTP;
constexpr const char* kMethod = kMtp ? "k2_round" : "text_decoder";

struct Event {
  std::string kind;  // "done", "failed", "tokens", "data", "lost"
  uint32_t request = 0;
  std::string text;
  std::vector<int32_t> tokens;
};

class Recorder final : public decode::EventSink {
 public:
  void Done(uint32_t request, std::string_view json) override { events.push_back({"done", request, std::string(json), {}}); }
  void Failed(uint32_t request, const Status& status) override {
    events.push_back({"failed", request, Text(CodeName(status.code()), ": ", status.message()), {}});
  }
  void Tokens(uint32_t request, std::span<const int32_t> tokens) override {
    events.push_back({"tokens", request, {}, {tokens.begin(), tokens.end()}});
    if (on_tokens) on_tokens();
  }
  void Progress(uint32_t request, uint32_t rows, uint32_t total) override {
    progress.push_back({request, rows, total});
    if (on_progress) on_progress();
  }
  void Data(uint32_t request, std::span<const uint8_t> bytes) override {
    events.push_back({"data", request, Text(bytes.size()), {}});
  }
  void Lost(std::string_view reason, std::string_view message) override {
    events.push_back({"lost", 0, Text(reason, ": ", message), {}});
  }

  std::vector<Event> events;
  std::function<void()> on_tokens;
  std::vector<std::array<uint32_t, 3>> progress;  // request, rows, total
  std::function<void()> on_progress;
};

int32_t* Words(const std::shared_ptr<test::FakeBuffer>& buffer) { return reinterpret_cast<int32_t*>(buffer->bytes.data()); }
int32_t* Words(const char* label) { return Words(Fake().Find(label)); }

// What target, assistant, accept kernel and commit kernel would do together.
struct Machine {
  uint32_t vocab = 0;
  uint32_t context = 0;
  std::vector<uint32_t> accepts = {0};   // right drafts of round i, repeated
  uint32_t rounds = 0;                   // played so far, those past an ending too
  std::function<void()> after;           // may falsify outputs
  std::vector<int32_t> passes;           // where each pass handed to the GPU began, those without a commit too
  std::vector<int32_t> first_positions;  // of every pass that ended in a commit

  int32_t Next(int32_t token) const { return static_cast<int32_t>((static_cast<uint32_t>(token) * 7 + 5) % vocab); }
  int32_t Wrong(int32_t token) const { return static_cast<int32_t>((static_cast<uint32_t>(token) + 1) % vocab); }

  std::vector<int32_t> Chain(int32_t token, size_t count) const {
    std::vector<int32_t> chain;
    while (chain.size() < count) chain.push_back(token = Next(token));
    return chain;
  }

  void Play(const FakeDispatch& dispatch) {
    if (const int32_t first = Words("positions")[0]; passes.empty() || passes.back() != first) passes.push_back(first);
    if (dispatch.kernel == "commit_step") PlayStep(dispatch);
    if (dispatch.kernel == "commit_round") PlayRound(dispatch);
  }

  uint32_t RowsOf(const FakeDispatch& dispatch) const {
    uint32_t rows = 0;
    std::memcpy(&rows, dispatch.buffers.back()->bytes.data() + dispatch.offsets.back(), sizeof(rows));
    return rows;
  }

  void PlayStep(const FakeDispatch& dispatch) {
    const uint32_t rows = RowsOf(dispatch);
    int32_t *ids = Words("ids"), *positions = Words("positions"), *next = Words("next_token");
    CheckPosition(positions[rows - 1]);
    first_positions.push_back(positions[0]);
    next[0] = Next(ids[rows - 1]);
    if (after) after();
    positions[0] = positions[rows - 1] + 1;
    ids[0] = next[0];
    ++rounds;
  }

  void PlayRound(const FakeDispatch& dispatch) {
    const uint32_t rows = RowsOf(dispatch);
    int32_t *ids = Words("ids"), *positions = Words("positions"), *flag = Words("round_flag");
    int32_t *donor = Words("donor_length"), *drafts = Words("candidates"), *greedy = Words("target_greedy");
    int32_t *match = Words("match_count"), *bonus = Words("bonus");
    Words("state_probe")[0] = 0x3f000000;
    if (flag[0] == 0) {
      drafts[0] = drafts[1] = -1;
      greedy[0] = greedy[1] = greedy[2] = bonus[0] = Next(ids[rows - 1]);
      match[0] = 0;
      first_positions.push_back(positions[0]);
      CheckPosition(positions[rows - 1]);
    } else {
      CHECK_EQ(rows, 3u);
      CHECK_EQ(positions[0], donor[0]);
      CheckPosition(donor[0]);  // its last row is donor + 2, the last of a full cache
      first_positions.push_back(donor[0]);
      const uint32_t right = accepts[rounds++ % accepts.size()];
      greedy[0] = Next(ids[0]);
      drafts[0] = right >= 1 ? greedy[0] : Wrong(greedy[0]);
      greedy[1] = Next(drafts[0]);
      drafts[1] = right >= 2 ? greedy[1] : Wrong(greedy[1]);
      greedy[2] = Next(drafts[1]);
      match[0] = static_cast<int32_t>(right);
      bonus[0] = greedy[right];
    }
    if (after) after();
    const int32_t position = flag[0] == 0 ? positions[rows - 1] + 1 : donor[0] + match[0] + 1;
    ids[0] = bonus[0];
    positions[0] = donor[0] = position;
    flag[0] = 1;
  }

  void CheckPosition(int32_t position) const { CHECK(position >= 0 && static_cast<uint32_t>(position) < context); }
};

// A session from nothing; Ready() loads the micro model.
struct Stand {
  Stand() {
    test::ResetFake();
    session = std::make_unique<Session>(counter, recorder);
  }
  ~Stand() {
    session.reset();
    Pump();
    CHECK_EQ(counter.objects, 0);
    CHECK_EQ(counter.buffer_bytes, 0u);
    CHECK_EQ(Fake().live_objects, 0);
    for (const std::string& error : Fake().validation_errors) test::Failed(__FILE__, __LINE__, error);
  }

  Status Open() { return Finish([&](uint32_t request) { return session->Open(request); }); }

  Status Plan() { return session->MakePlan(ReadFile(DataPath(Text("q4/", kMethod, ".g4p")))).status(); }

  Status LoadAndFinish() {
    GEMMA4_RETURN_IF_ERROR(Finish([&](uint32_t request) { return session->Load(request); }));
    const auto plan = program::Model::MakePlan(ReadFile(DataPath(Text("q4/", kMethod, ".g4p"))), kMethod, Limits());
    machine.vocab = plan->header.vocab;
    machine.context = plan->header.context;
    for (uint32_t i = 0; i < plan->shards.size(); ++i) {
      GEMMA4_RETURN_IF_ERROR(session->BeginShard(i));
      GEMMA4_RETURN_IF_ERROR(session->WriteShard(i, ReadFile(DataPath(Text("q4/", plan->shards[i].file)))));
      GEMMA4_RETURN_IF_ERROR(session->EndShard(i, plan->shards[i].sha256));
    }
    return Finish([&](uint32_t request) { return session->FinishLoad(request); });
  }

  void Ready() {
    CHECK_OK(Open());
    CHECK_OK(Plan());
    CHECK_OK(LoadAndFinish());
    Fake().on_dispatch = [this](const FakeDispatch& dispatch) { machine.Play(dispatch); };
  }

  static gpu::Limits Limits() {
    gpu::Limits limits;
    limits.max_buffer_bytes = limits.max_storage_binding_bytes = uint64_t{1} << 30;
    limits.max_uniform_binding_bytes = 65536;
    limits.max_storage_buffers_per_stage = 8;
    limits.max_invocations_per_workgroup = limits.max_workgroup_size_x = limits.max_workgroup_size_y = 256;
    limits.max_workgroup_size_z = 64;
    limits.max_workgroup_storage_bytes = 16384;
    return limits;
  }

  // Runs one request to its end; the events are those since it began, tokens joined.
  Status Finish(const std::function<Status(uint32_t)>& start) {
    recorder.events.clear();
    tokens.clear();
    done.clear();
    GEMMA4_RETURN_IF_ERROR(start(++request));
    Pump();
    int ends = 0;
    Status status;
    for (const Event& event : recorder.events) {
      CHECK_EQ(event.request, request);
      if (event.kind == "tokens") {
        CHECK_EQ(ends, 0);
        tokens.insert(tokens.end(), event.tokens.begin(), event.tokens.end());
        continue;
      }
      ++ends;
      if (event.kind == "failed") status = Internal(event.text);
      if (event.kind == "done") done = event.text;
    }
    CHECK_EQ(ends, 1);
    return status;
  }

  Status Generate(std::vector<int32_t> ids, uint32_t max_new_tokens, std::vector<int32_t> stop_ids = {}) {
    return Finish([&](uint32_t number) { return session->Generate(number, ids, max_new_tokens, stop_ids); });
  }
  Status Prefill(std::vector<int32_t> ids, uint32_t position) {
    return Finish([&](uint32_t number) { return session->Prefill(number, ids, position); });
  }
  Status Step(int32_t token, uint32_t position) {
    return Finish([&](uint32_t number) { return session->Step(number, token, position); });
  }
  Status Reset() { return Finish([&](uint32_t number) { return session->Reset(number); }); }
  Status Unload() { return Finish([&](uint32_t number) { return session->Unload(number); }); }

  bool DoneHas(std::string_view part) const { return done.find(part) != std::string::npos; }

  gpu::ObjectCounter counter;
  Recorder recorder;
  Machine machine;
  std::unique_ptr<Session> session;
  uint32_t request = 0;
  std::vector<int32_t> tokens;
  std::string done;
};

// The counters agree with each other, whatever happened.
void CheckCounters(const Stand& stand, size_t emitted) {
  const decode::Counters& counters = stand.session->counters();
  CHECK_EQ(counters.emitted, uint64_t{emitted});
  CHECK_EQ(counters.drafted, 2 * counters.rounds);
  CHECK_EQ(counters.buffered, 0u);
  if (kMtp) CHECK_EQ(counters.emitted + counters.cut, 1 + counters.accepted + counters.rounds);
  if (!kMtp) CHECK_EQ(counters.rounds, 0u);
}

// R12, R3, R6: whatever the accept pattern, the budget and the prompt's length, the tokens are those of plain decoding.
GEMMA4_TEST(SessionTokensDoNotDependOnAcceptance) {
  Stand stand;
  stand.Ready();
  const std::vector<std::vector<uint32_t>> patterns = {{0}, {1}, {2}, {0, 1, 2}, {2, 2, 0}, {1, 2, 0, 0, 2}};
  for (const auto& pattern : patterns) {
    for (const uint32_t budget : {1u, 2u, 3u, 4u, 7u, 20u}) {
      for (const size_t length : {size_t{1}, size_t{8}, size_t{9}, size_t{21}}) {
        stand.machine.accepts = pattern;
        stand.machine.rounds = 0;
        std::vector<int32_t> ids(length, 1);
        ids.back() = 2;
        CHECK_OK(stand.Generate(ids, budget));
        CHECK(stand.tokens == stand.machine.Chain(2, budget));
        CHECK(stand.DoneHas("\"finish\":\"length\""));
        CheckCounters(stand, budget);
      }
    }
  }
}

// R6: a stop id ends the text, wherever in an accepted block it lies, and is neither returned nor counted as emitted.
GEMMA4_TEST(SessionStopsAtAStopId) {
  Stand stand;
  stand.Ready();
  stand.machine.accepts = {2, 1, 0};
  for (size_t at = 0; at < 12; ++at) {
    stand.machine.rounds = 0;
    const std::vector<int32_t> chain = stand.machine.Chain(2, 13);
    const auto first = static_cast<size_t>(std::find(chain.begin(), chain.end(), chain[at]) - chain.begin());
    CHECK_OK(stand.Generate({1, 2}, 13, {chain[at]}));
    CHECK(stand.tokens == std::vector<int32_t>(chain.begin(), chain.begin() + static_cast<ptrdiff_t>(first)));
    CHECK(stand.DoneHas("\"finish\":\"stop\""));
    CheckCounters(stand, first);
    CHECK(stand.session->counters().cut >= 1);
  }
}

// X6: the text ends where the context does, whatever is accepted there; Machine checks that no row lies beyond it.
GEMMA4_TEST(SessionEndsAtTheEndOfTheContext) {
  Stand stand;
  stand.Ready();
  const uint32_t context = stand.machine.context;
  for (const auto& pattern : {std::vector<uint32_t>{0}, {1}, {2}, {2, 0, 1}}) {
    for (uint32_t room = 0; room < 9; ++room) {
      stand.machine.accepts = pattern;
      stand.machine.rounds = 0;
      CHECK_OK(stand.Generate(std::vector<int32_t>(context - room, 3), 100));
      CHECK(stand.tokens == stand.machine.Chain(3, room + 1));
      CHECK(stand.DoneHas("\"finish\":\"context\""));
    }
  }
  CHECK_REFUSED(stand.Generate(std::vector<int32_t>(context + 1, 3), 1), Text(context + 1), Text(context));
  CHECK_OK(stand.Prefill(std::vector<int32_t>(context, 3), 0));
  CHECK_REFUSED(stand.Step(stand.machine.Next(3), context), "full");
}

// R5: a round that contradicts itself, a NaN and a broken probe fail the request and count for nothing; the session lives.
GEMMA4_TEST(SessionRefusesBadOutputs) {
  Stand stand;
  stand.Ready();
  const std::vector<std::pair<const char*, std::function<void()>>> faults = {
#if GEMMA4_MTP
      {"match", [] { Words("match_count")[0] += 1; }},
      {"bonus", [] { Words("bonus")[0] += Words("bonus")[0] == 0 ? 1 : -1; }},
      {"NaN", [] { Words("target_greedy")[0] = -1; }},
      {"vocabulary", [] { Words("target_greedy")[2] = 1 << 30; }},
      {"draft", [] { Words("candidates")[1] = -1; }},
      {"not finite", [] { Words("state_probe")[0] = 0x7fc00000; }},
      {"not finite", [] { Words("state_probe")[0] = static_cast<int32_t>(0xff800000); }},
#else
      {"NaN", [] { Words("next_token")[0] = -1; }},
      {"vocabulary", [] { Words("next_token")[0] = 1 << 30; }},
#endif
  };
  for (const auto& [says, fault] : faults) {
    stand.machine.rounds = 0;
    stand.machine.accepts = {0};
    stand.machine.after = [&stand, &fault = fault] {
      if (stand.machine.rounds == 3) fault();
    };
    const Status status = stand.Generate({1, 2}, 30);
    CHECK_REFUSED(status, "bad_output", says);
    const size_t good = 3;  // the prefill and two passes of one token each
    CHECK(stand.tokens == stand.machine.Chain(2, good));
    CheckCounters(stand, good);
    stand.machine.after = nullptr;
    CHECK_OK(stand.Generate({1, 2}, 5));
    CHECK(stand.tokens == stand.machine.Chain(2, 5));
  }
}

// R7: prefill and step continue exactly where the sequence ends.
GEMMA4_TEST(SessionContinuesOnlyWhereItEnded) {
  Stand stand;
  stand.Ready();
  stand.machine.accepts = {1, 2, 0};
  CHECK_REFUSED(stand.Step(1, 0), "prefill");
  CHECK_REFUSED(stand.Prefill({1, 2}, 1), "position 0", "1");
  CHECK_OK(stand.Prefill({1, 2, 3}, 0));
  CHECK_OK(stand.Prefill({4, 2}, 3));
  std::vector<int32_t> tokens = stand.machine.Chain(2, 1);
  CHECK(stand.DoneHas(Text("\"tokens\":[", tokens[0], "]")));
  uint32_t position = 5;
  for (int i = 0; i < 6; ++i) {
    const int32_t pending = tokens.back();
    CHECK_REFUSED(stand.Step(pending + 1, position), Text("token ", pending), Text("position ", position));
    CHECK_REFUSED(stand.Step(pending, position + 1), Text("position ", position));
    const uint64_t before = stand.session->counters().emitted;
    CHECK_OK(stand.Step(pending, position));
    const auto count = static_cast<uint32_t>(stand.session->counters().emitted - before);
    CHECK_EQ(count, kMtp ? stand.machine.accepts[static_cast<size_t>(i) % 3] + 1 : 1u);
    position += count;
    for (const int32_t token : stand.machine.Chain(pending, count)) tokens.push_back(token);
  }
  CHECK_OK(stand.Generate({1, 2}, 4));
  CHECK_REFUSED(stand.Step(stand.tokens.back(), 5), "prefill");
  CHECK_OK(stand.Prefill({7}, 0));
}

// V6, R4: a reset clears counters and state, and what follows is what came first.
GEMMA4_TEST(SessionReplaysAfterAReset) {
  Stand stand;
  stand.Ready();
  stand.machine.accepts = {2, 0};
  CHECK_OK(stand.Generate({1, 2, 3}, 11));
  const std::string first = stand.done;
  stand.machine.rounds = 0;
  CHECK_OK(stand.Reset());
  CHECK_EQ(stand.session->counters().emitted, 0u);
  CHECK_OK(stand.Generate({1, 2, 3}, 11));
  CHECK_EQ(stand.done, first);
}

// A request ends when nothing of it is left on the GPU; one request at a time.
GEMMA4_TEST(SessionRunsOneRequestAtATime) {
  Stand stand;
  stand.Ready();
  const std::vector<int32_t> ids = {1, 2};
  CHECK_OK(stand.session->Generate(100, ids, 20, {}));
  CHECK_REFUSED(stand.session->Generate(101, ids, 20, {}), "generate is running");
  CHECK_REFUSED(stand.session->Prefill(102, ids, 0), "generate is running");
  CHECK_REFUSED(stand.session->Read(103, "logits"), "generate is running");
  CHECK_REFUSED(stand.session->MakePlan({}).status(), "generate is running");
  stand.recorder.events.clear();
  CHECK_OK(stand.session->Reset(104));
  CHECK_REFUSED(stand.session->Unload(105), "already waiting");
  Pump();
  const auto& events = stand.recorder.events;
  CHECK_EQ(events.size(), size_t{2});
  CHECK_EQ(events[0].request, 100u);
  CHECK(events[0].text.find("\"finish\":\"cancelled\"") != std::string::npos);
  CHECK_EQ(events[1].request, 104u);
  CHECK_OK(stand.Generate({1, 2}, 3));
}

GEMMA4_TEST(SessionCancels) {
  Stand stand;
  stand.Ready();
  stand.machine.accepts = {1};
  stand.recorder.on_tokens = [&] {
    if (stand.recorder.events.size() == 3) stand.session->Cancel();
  };
  CHECK_OK(stand.Generate({1, 2}, 20));
  CHECK(stand.DoneHas("\"finish\":\"cancelled\""));
  const size_t emitted = kMtp ? 5 : 3;
  CHECK(stand.tokens == stand.machine.Chain(2, emitted));
  CheckCounters(stand, emitted);
  stand.session->Cancel();  // of nothing
  stand.recorder.on_tokens = nullptr;
  CHECK_OK(stand.Generate({1, 2}, 4));
  CHECK_EQ(stand.tokens.size(), size_t{4});
}

// The micro model's chunks have 8 rows. Two are on a GPU at once, on a software adapter one; the host is told of each
// but the last.
GEMMA4_TEST(SessionHandsOverAPromptChunkByChunk) {
  for (const bool software : {false, true}) {
    Stand stand;
    Fake().software = software;
    stand.Ready();
    const std::vector<int32_t> ids(29, 2);
    CHECK_OK(stand.session->Generate(1, ids, 3, {}));
    CHECK(stand.machine.passes == (software ? std::vector<int32_t>{0} : std::vector<int32_t>{0, 8}));
    Pump();
    CHECK(stand.recorder.progress == (std::vector<std::array<uint32_t, 3>>{{1, 8, 29}, {1, 16, 29}, {1, 24, 29}}));
    CHECK_EQ(stand.recorder.events.back().kind, "done");
    CHECK(std::vector<int32_t>(stand.machine.passes.begin(), stand.machine.passes.begin() + 4) ==
          (std::vector<int32_t>{0, 8, 16, 24}));
  }
}

// A cancel between the chunks of a prompt: no further one is handed over, nothing is emitted or counted, and the session
// is as it was.
GEMMA4_TEST(SessionCancelsAPrefill) {
  for (const bool software : {false, true}) {
    Stand stand;
    Fake().software = software;
    stand.Ready();
    stand.machine.accepts = {1, 2, 0};
    std::vector<int32_t> ids(21, 1);
    ids.back() = 2;
    stand.recorder.on_progress = [&] { stand.session->Cancel(); };
    CHECK_OK(stand.Generate(ids, 9));
    CHECK(stand.DoneHas("\"finish\":\"cancelled\""));
    CHECK(stand.machine.passes == (software ? std::vector<int32_t>{0} : std::vector<int32_t>{0, 8}));
    CHECK_EQ(stand.recorder.progress.size(), size_t{1});
    CHECK(stand.tokens.empty());
    CHECK_EQ(stand.session->counters().emitted, 0u);
    CHECK_REFUSED(stand.Step(2, 21), "prefill");
    stand.recorder.on_progress = nullptr;
    CHECK_OK(stand.Generate(ids, 9));
    CHECK(stand.tokens == stand.machine.Chain(2, 9));
    CheckCounters(stand, 9);
  }
}

// The same before the first chunk has ended, and too late to stop anything.
GEMMA4_TEST(SessionCancelsAPrefillAtAnyTime) {
  Stand stand;
  stand.Ready();
  const std::vector<int32_t> ids(21, 2);
  CHECK_OK(stand.session->Generate(1, ids, 9, {}));
  stand.session->Cancel();
  stand.session->Cancel();
  Pump();
  CHECK(stand.recorder.events.back().text.find("cancelled") != std::string::npos);
  CHECK(stand.machine.passes == (std::vector<int32_t>{0, 8}));
  const std::vector<int32_t> two_chunks(16, 2);
  CHECK_OK(stand.session->Generate(2, two_chunks, 9, {}));
  stand.session->Cancel();
  Pump();
  CHECK(stand.recorder.events.back().text.find("cancelled") != std::string::npos);
  CHECK_OK(stand.Generate(ids, 9));
  CHECK(stand.tokens == stand.machine.Chain(2, 9));
}

// A prefill of its own is cancelled by what waits for it, and says so.
GEMMA4_TEST(SessionResetsInTheMiddleOfAPrefill) {
  Stand stand;
  stand.Ready();
  const std::vector<int32_t> ids(29, 2);
  CHECK_OK(stand.session->Prefill(1, ids, 0));
  stand.recorder.events.clear();
  CHECK_OK(stand.session->Reset(2));
  Pump();
  CHECK_EQ(stand.recorder.events.size(), size_t{2});
  CHECK_EQ(stand.recorder.events[0].kind, "failed");
  CHECK(stand.recorder.events[0].text.find("begin again at position 0") != std::string::npos);
  CHECK_EQ(stand.recorder.events[1].kind, "done");
  CHECK_OK(stand.Prefill(ids, 0));
  CHECK(stand.DoneHas(Text("\"tokens\":[", stand.machine.Next(2), "]")));
}

// A chunk that fails ends the request once, when nothing of it is on the GPU any more.
GEMMA4_TEST(SessionFailsWhenAChunkFails) {
  Stand stand;
  stand.Ready();
  stand.recorder.on_progress = [] { Fake().fail_work = true; };
  CHECK_REFUSED(stand.Generate(std::vector<int32_t>(60, 2), 9), "gpu_error", "waiting for the GPU failed");
  stand.recorder.on_progress = nullptr;
  Fake().fail_work = false;
  CHECK_REFUSED(stand.Generate({1, 2}, 3), "reset or load again");
  CHECK_OK(stand.Reset());
  CHECK_OK(stand.Generate({1, 2}, 3));
}

GEMMA4_TEST(SessionRefusesBadRequests) {
  Stand stand;
  CHECK_REFUSED(stand.Generate({1}, 1), "nothing is open");
  CHECK_REFUSED(stand.Plan(), "nothing is open");
  CHECK_OK(stand.Open());
  CHECK_REFUSED(stand.Open(), "unload first");
  CHECK_REFUSED(stand.Finish([&](uint32_t request) { return stand.session->Load(request); }), "plan");
  CHECK_REFUSED(stand.session->MakePlan({}).status(), "program");
  CHECK_OK(stand.Plan());
  CHECK_OK(stand.Plan());
  CHECK_REFUSED(stand.session->BeginShard(0), "load first");
  CHECK_OK(stand.LoadAndFinish());
  Fake().on_dispatch = [&](const FakeDispatch& dispatch) { stand.machine.Play(dispatch); };
  const auto vocab = static_cast<int32_t>(stand.machine.vocab);
  CHECK_REFUSED(stand.Generate({}, 5), "empty");
  CHECK_REFUSED(stand.Generate({1, -1}, 5), "-1", "index 1");
  CHECK_REFUSED(stand.Generate({1, 2, vocab}, 5), Text(vocab), "index 2");
  CHECK_REFUSED(stand.Generate({1}, 0), "at least 1");
  CHECK_REFUSED(stand.Finish([&](uint32_t request) { return stand.session->Read(request, "logits"); }), "pass before");
  CHECK_OK(stand.Prefill({1, 2}, 0));
  CHECK_OK(stand.Finish([&](uint32_t request) { return stand.session->Read(request, "logits"); }));
  CHECK_EQ(stand.recorder.events.back().text, Text(uint64_t{4} * stand.machine.vocab));
  CHECK_REFUSED(stand.Finish([&](uint32_t request) { return stand.session->Read(request, "nothing"); }), "nothing");
}

// R2, P25: whichever allocation of a load fails, nothing of the model stays and a second load works.
GEMMA4_TEST(SessionSurvivesAFailedLoad) {
  for (const int32_t allocation : {0, 5, 50}) {
    Stand stand;
    CHECK_OK(stand.Open());
    CHECK_OK(stand.Plan());
    const int32_t objects = stand.counter.objects;
    Fake().fail_buffer = allocation;
    CHECK_REFUSED(stand.LoadAndFinish(), "out_of_memory", "buffer ");
    CHECK_EQ(stand.counter.objects, objects);
    CHECK_EQ(stand.counter.buffer_bytes, 0u);
    CHECK_REFUSED(stand.Generate({1}, 1), "load");
    CHECK_OK(stand.Plan());
    CHECK_OK(stand.LoadAndFinish());
    Fake().on_dispatch = [&](const FakeDispatch& dispatch) { stand.machine.Play(dispatch); };
    CHECK_OK(stand.Generate({1}, 3));
  }
  Stand stand;
  CHECK_OK(stand.Open());
  CHECK_OK(stand.Plan());
  Fake().fail_pipeline = "rope";
  CHECK_REFUSED(stand.LoadAndFinish(), "gpu_error", "rope");
  CHECK_EQ(stand.counter.buffer_bytes, 0u);
}

// V9: nothing is owned after an unload, not even the device; a second one succeeds; all of it can be done again.
GEMMA4_TEST(SessionUnloadsEverything) {
  Stand stand;
  CHECK_OK(stand.Unload());
  for (int round = 0; round < 2; ++round) {
    stand.Ready();
    CHECK_OK(stand.Generate({1, 2}, 6));
    CHECK(stand.counter.objects > 100);
    CHECK_OK(stand.Unload());
    CHECK_EQ(stand.counter.objects, 0);
    CHECK_EQ(Fake().live_objects, 0);
    CHECK_OK(stand.Unload());
    CHECK_REFUSED(stand.Generate({1, 2}, 6), "nothing is open");
    CHECK_REFUSED(stand.Reset(), "nothing is open");
  }
}

// A session that goes while a request runs fails it, once, and leaves nothing.
GEMMA4_TEST(SessionFailsWhatRunsWhenItGoes) {
  Stand stand;
  stand.Ready();
  const std::vector<int32_t> ids = {1, 2};
  CHECK_OK(stand.session->Generate(7, ids, 20, {}));
  CHECK_OK(stand.session->Unload(8));
  stand.recorder.events.clear();
  stand.session.reset();
  Pump();
  CHECK_EQ(stand.recorder.events.size(), size_t{2});
  for (const Event& event : stand.recorder.events) {
    CHECK_EQ(event.kind, "failed");
    CHECK(event.text.find("closed") != std::string::npos);
  }
}

}  // namespace
}  // namespace gemma4
