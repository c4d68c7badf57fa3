"""The process behind native_gpu.py: pickled requests come in, (whether it went well, answer) goes out, till input ends."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Iterable
from typing import IO, Any, Final

import wgpu

_STORAGE: Final = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_DST | wgpu.BufferUsage.COPY_SRC
_TYPES: Final = {"read": "read-only-storage", "read_write": "storage", "uniform": "uniform"}
_WANTED: Final = ("shader-f16",)


class Device:
    """A device of default limits, and the pipelines that it compiled."""

    def __init__(self) -> None:
        found = [adapter for adapter in wgpu.gpu.enumerate_adapters_sync() if adapter.info["backend_type"] == "Vulkan"]
        if not found:
            raise RuntimeError("no Vulkan adapter")
        adapter = found[0]
        self._device = adapter.request_device_sync(required_features=[name for name in _WANTED if name in adapter.features])
        self.adapter = {"vendor": adapter.info["vendor"], "description": adapter.info["description"],
                        "features": sorted(adapter.features)}
        self._pipelines: dict[str, tuple[Any, Any]] = {}

    def compile(self, wgsl: str, kinds: Iterable[str]) -> tuple[Any, Any]:
        """The layout lists every binding, used or not, as the runtime's does."""
        if wgsl not in self._pipelines:
            module = self._device.create_shader_module(code=wgsl)
            group = self._device.create_bind_group_layout(entries=[
                {"binding": binding, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": {"type": _TYPES[kind]}}
                for binding, kind in enumerate(kinds)])
            layout = self._device.create_pipeline_layout(bind_group_layouts=[group])
            pipeline = self._device.create_compute_pipeline(layout=layout, compute={"module": module, "entry_point": "main"})
            self._pipelines[wgsl] = pipeline, group
        return self._pipelines[wgsl]

    def run(self, wgsl: str, bindings: list[tuple[str, bytes]], grid: tuple[int, int, int]) -> list[bytes]:
        pipeline, layout = self.compile(wgsl, [kind for kind, _ in bindings])
        buffers = [self._device.create_buffer_with_data(
            data=data, usage=wgpu.BufferUsage.UNIFORM if kind == "uniform" else _STORAGE) for kind, data in bindings]
        try:
            group = self._device.create_bind_group(layout=layout, entries=[
                {"binding": binding, "resource": {"buffer": buffer, "offset": 0, "size": buffer.size}}
                for binding, buffer in enumerate(buffers)])
            encoder = self._device.create_command_encoder()
            compute = encoder.begin_compute_pass()
            compute.set_pipeline(pipeline)
            compute.set_bind_group(0, group)
            compute.dispatch_workgroups(*grid)
            compute.end()
            self._device.queue.submit([encoder.finish()])
            return [bytes(self._device.queue.read_buffer(buffer))
                    for buffer, (kind, _) in zip(buffers, bindings, strict=True) if kind == "read_write"]
        finally:
            for buffer in buffers:
                buffer.destroy()


def send(stream: IO[bytes], good: bool, found: Any) -> None:
    pickle.dump((good, found), stream)
    stream.flush()


def main() -> None:
    """What the driver prints must not come between the answers, so it goes to the error stream."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    device = Device()
    send(answers, True, device.adapter)
    while True:
        try:
            what, *words = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            if what == "run":
                send(answers, True, device.run(*words))
            else:
                device.compile(*words)
                send(answers, True, None)
        except (wgpu.GPUError, RuntimeError, ValueError, TypeError) as error:
            send(answers, False, str(error))


if __name__ == "__main__":
    main()
