// The one function that C++ calls in JavaScript. Hands every event to Module['onGemma4Event'](handle, request, kind,
// data, bytes); `data` is an address in wasm memory, valid during the call only. Without a handler events are dropped.
addToLibrary({
  g4_event: (handle, request, kind, data, bytes) => {
    const handler = Module['onGemma4Event'];
    if (handler) handler(handle, request, kind, data, bytes);
  },
});
