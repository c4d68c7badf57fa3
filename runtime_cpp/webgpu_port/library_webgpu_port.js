/**
 * The JavaScript half of the compute subset of <webgpu/webgpu.h> over the browser's WebGPU API. It owns every browser
 * object in one table and gives the C++ half numbers for them; it receives scalars and flat arrays (imports.h says
 * which). Nothing here suspends the module: what the browser answers with a promise ends in one call of
 * webgpu_port_call_back from a later turn of the event loop.
 *
 * Rules of this file, each checked by a test:
 * - Every name that belongs to WebGPU is a quoted string, so Closure's advanced mode cannot rename it.
 * - A view of WASM memory is fetched where it is used, never kept: memory may grow at any call into the module.
 * - The browser is touched inside functions only, so that the module can be imported where there is none.
 */
const LibraryWebGpuPort = {
  $webgpuPort__deps: ['webgpu_port_call_back', 'malloc', 'free', '$UTF8ToString', '$stringToNewUTF8', '$callUserCallback'],
  $webgpuPort: {
    /** Handle to {object, references, ...}; an entry leaves with its last reference. Handles are not used again soon. */
    entries: new Map(),
    lastHandle: 0,

    insert: (object) => {
      do {
        webgpuPort.lastHandle = webgpuPort.lastHandle % 0x7fffffff + 1;
      } while (webgpuPort.entries.has(webgpuPort.lastHandle));
      webgpuPort.entries.set(webgpuPort.lastHandle, {object, references: 1});
      return webgpuPort.lastHandle;
    },
    entry: (handle) => {
      const entry = webgpuPort.entries.get(handle);
      if (!entry) abort(`WebGPU handle ${handle} does not exist or was released`);
      return entry;
    },
    get: (handle) => webgpuPort.entry(handle).object,
    addReference: (handle) => {
      webgpuPort.entry(handle).references++;
    },
    release: (handle) => {
      const entry = webgpuPort.entry(handle);
      if (--entry.references) return;
      webgpuPort.entries.delete(handle);
      entry.finalize?.();
    },

    text: (pointer, bytes) => (bytes ? UTF8ToString(pointer, bytes) : ''),
    messageOf: (error) => String(error?.['message'] || error),

    /** Calls a C callback; `kind` is a CallbackKind of imports.h. An error that it throws surfaces as an unhandled one. */
    callBack: (kind, request, status, value, message) => {
      callUserCallback(() => {
        const text = stringToNewUTF8(message);
        _webgpu_port_call_back(kind, request[0], request[1], request[2], status, value, text);
        _free(text);
      });
    },
    /** Ends `promise` in one call of the request's callback; both functions return [status, value, message]. */
    settle: (promise, kind, request, succeed, fail) => {
      {{{ runtimeKeepalivePush() }}}
      promise.then(succeed, fail).then((outcome) => {
        {{{ runtimeKeepalivePop() }}}
        webgpuPort.callBack(kind, request, outcome[0], outcome[1], outcome[2]);
      });
    },

    errorType: (error) => {
      const name = error['constructor']['name'];
      return name == 'GPUValidationError' ? 2 : name == 'GPUOutOfMemoryError' ? 3 : name == 'GPUInternalError' ? 4 : 5;
    },
    /**
     * Runs a call that the browser may refuse by throwing where the C API has a validation error of the device: the
     * message goes to the device's uncaptured-error callback in a later turn, and the call returns 0. A device without
     * that callback lets the error through.
     */
    guarded: (device, action) => {
      try {
        return action();
      } catch (error) {
        if (!device.report) throw error;
        Promise.resolve().then(() => device.report(2, webgpuPort.messageOf(error)));
        return 0;
      }
    },

    /** WGPUFeatureName to the browser's name. */
    featureNames: [
      , 'core-features-and-limits', 'depth-clip-control', 'depth32float-stencil8', 'texture-compression-bc',
      'texture-compression-bc-sliced-3d', 'texture-compression-etc2', 'texture-compression-astc',
      'texture-compression-astc-sliced-3d', 'timestamp-query', 'indirect-first-instance', 'shader-f16',
      'rg11b10ufloat-renderable', 'bgra8unorm-storage', 'float32-filterable', 'float32-blendable', 'clip-distances',
      'dual-source-blending', 'subgroups', 'texture-formats-tier1', 'texture-formats-tier2', 'primitive-index',
      'texture-component-swizzle',
    ],
    /** Likewise of features that are not WebGPU's own, by the numbers of Dawn's webgpu.h. */
    vendorFeatureNames: { 0x50034: 'chromium-experimental-subgroup-matrix' },
    featureName: (feature) => webgpuPort.featureNames[feature] ?? webgpuPort.vendorFeatureNames[feature],
    /** WGPUWGSLLanguageFeatureName to the browser's name. */
    languageFeatureNames: [
      , 'readonly_and_readwrite_storage_textures', 'packed_4x8_integer_dot_product', 'unrestricted_pointer_parameters',
      'pointer_composite_access', 'uniform_buffer_standard_layout', 'subgroup_id', 'texture_and_sampler_let',
      'subgroup_uniformity', 'texture_formats_tier1', 'linear_indexing', 'immediate_address_space', 'buffer_view',
    ],
    /** In the order of kLimits in adapter.cc. */
    limitNames: [
      'maxTextureDimension1D', 'maxTextureDimension2D', 'maxTextureDimension3D', 'maxTextureArrayLayers',
      'maxBindGroups', 'maxBindGroupsPlusVertexBuffers', 'maxBindingsPerBindGroup',
      'maxDynamicUniformBuffersPerPipelineLayout', 'maxDynamicStorageBuffersPerPipelineLayout',
      'maxSampledTexturesPerShaderStage', 'maxSamplersPerShaderStage', 'maxStorageBuffersPerShaderStage',
      'maxStorageTexturesPerShaderStage', 'maxUniformBuffersPerShaderStage', 'maxUniformBufferBindingSize',
      'maxStorageBufferBindingSize', 'minUniformBufferOffsetAlignment', 'minStorageBufferOffsetAlignment',
      'maxVertexBuffers', 'maxBufferSize', 'maxVertexAttributes', 'maxVertexBufferArrayStride',
      'maxInterStageShaderVariables', 'maxColorAttachments', 'maxColorAttachmentBytesPerSample',
      'maxComputeWorkgroupStorageSize', 'maxComputeInvocationsPerWorkgroup', 'maxComputeWorkgroupSizeX',
      'maxComputeWorkgroupSizeY', 'maxComputeWorkgroupSizeZ', 'maxComputeWorkgroupsPerDimension', 'maxImmediateSize',
    ],
    storeLimits: (handle, pointer) => {
      const limits = webgpuPort.get(handle)['limits'];
      webgpuPort.limitNames.forEach((name, i) => {
        HEAPF64[(pointer >>> 3) + i] = limits[name] ?? -1;
      });
    },
    hasFeature: (handle, feature) =>
      +webgpuPort.get(handle)['features'].has(webgpuPort.featureName(feature) ?? ''),

    /**
     * Copies a mapped range into WASM memory and returns its address there, or 0 when the range cannot be had. The copy
     * is freed, and written back when `writable`, by endMapping.
     */
    mapRange: (handle, offset, size, writable) => {
      const entry = webgpuPort.entry(handle);
      if (writable && entry.mapMode != 2) return 0;
      let mapped;
      try {
        const bytes = size >>> 0;
        mapped = entry.object['getMappedRange'](offset >>> 0, bytes == 0xffffffff ? undefined : bytes);
      } catch {
        return 0;
      }
      const source = new Uint8Array(mapped);
      const pointer = _malloc(source.length || 1) >>> 0;
      if (!pointer) return 0;
      HEAPU8.set(source, pointer);
      (entry.ranges ??= []).push({pointer, source, writable});
      return pointer;
    },
    endMapping: (entry, keep) => {
      for (const range of entry.ranges ?? []) {
        // A lost device has taken the range away: its length is 0 then.
        if (keep && range.writable && range.source.length) {
          range.source.set(HEAPU8.subarray(range.pointer, range.pointer + range.source.length));
        }
        _free(range.pointer);
      }
      entry.ranges = [];
      entry.mapMode = 0;
    },
  },

  webgpu_port_abort__deps: ['$webgpuPort'],
  webgpu_port_abort__sig: 'vpp',
  webgpu_port_abort: (name, reason) => {
    abort(`${UTF8ToString(name)}: ${UTF8ToString(reason)}`);
  },

  // References, of handles of every type (see the aliases at the end).

  webgpu_port_add_reference__deps: ['$webgpuPort'],
  webgpu_port_add_reference__sig: 'vp',
  webgpu_port_add_reference: (handle) => webgpuPort.addReference(handle),

  webgpu_port_release__deps: ['$webgpuPort'],
  webgpu_port_release__sig: 'vp',
  webgpu_port_release: (handle) => webgpuPort.release(handle),

  // Instance and adapter.

  webgpu_port_create_instance__deps: ['$webgpuPort'],
  webgpu_port_create_instance__sig: 'p',
  webgpu_port_create_instance: () => webgpuPort.insert({}),

  webgpu_port_request_adapter__deps: ['$webgpuPort'],
  webgpu_port_request_adapter__sig: 'viiippp',
  webgpu_port_request_adapter: (powerPreference, featureLevel, forceFallback, callback, userdata1, userdata2) => {
    const gpu = globalThis['navigator']?.['gpu'];
    const ask = async () => gpu?.['requestAdapter']({
      'powerPreference': [, 'low-power', 'high-performance'][powerPreference],
      'featureLevel': [, 'compatibility', 'core'][featureLevel],
      'forceFallbackAdapter': !!forceFallback,
    });
    webgpuPort.settle(ask(), 0, [callback, userdata1, userdata2], (adapter) => {
      if (adapter) return [1, webgpuPort.insert(adapter), ''];
      return [3, 0, gpu ? 'the browser offers WebGPU but no adapter that fits the request' :
        'WebGPU is missing (no navigator.gpu): it needs a browser with WebGPU and a page from https or localhost'];
    }, (error) => [4, 0, webgpuPort.messageOf(error)]);
  },

  wgpuInstanceHasWGSLLanguageFeature__deps: ['$webgpuPort'],
  wgpuInstanceHasWGSLLanguageFeature__sig: 'ipi',
  wgpuInstanceHasWGSLLanguageFeature: (instance, feature) =>
    +(navigator['gpu']?.['wgslLanguageFeatures']?.has(webgpuPort.languageFeatureNames[feature] ?? '') ?? false),

  webgpu_port_adapter_info__deps: ['$webgpuPort'],
  webgpu_port_adapter_info__sig: 'ppp',
  webgpu_port_adapter_info: (handle, numbers) => {
    const adapter = webgpuPort.get(handle);
    const info = adapter['info'] ?? {};
    const block = stringToNewUTF8(
      ['vendor', 'architecture', 'device', 'description'].map((name) => info[name] ?? '').join('\0') + '\0');
    HEAPU32[numbers >>> 2] = +(info['isFallbackAdapter'] ?? adapter['isFallbackAdapter'] ?? false);
    HEAPU32[(numbers >>> 2) + 1] = info['subgroupMinSize'] ?? 0;
    HEAPU32[(numbers >>> 2) + 2] = info['subgroupMaxSize'] ?? 0;
    return block;
  },

  webgpu_port_adapter_limits__deps: ['$webgpuPort'],
  webgpu_port_adapter_limits__sig: 'vpp',
  webgpu_port_adapter_limits: (adapter, limits) => webgpuPort.storeLimits(adapter, limits),

  wgpuAdapterHasFeature__deps: ['$webgpuPort'],
  wgpuAdapterHasFeature__sig: 'ipi',
  wgpuAdapterHasFeature: (adapter, feature) => webgpuPort.hasFeature(adapter, feature),

  // Device.

  webgpu_port_request_device__deps: ['$webgpuPort'],
  webgpu_port_request_device__sig: 'vppppppppp',
  webgpu_port_request_device: (adapter, label, labelBytes, queueLabel, queueLabelBytes, features, featureCount, limits, callbacks) => {
    const words = Array.from(HEAPU32.subarray(callbacks >>> 2, (callbacks >>> 2) + 9));
    const request = words.slice(0, 3);
    const lost = words.slice(3, 6);
    const uncaptured = words.slice(6);
    const requiredFeatures = Array.from(HEAPU32.subarray(features >>> 2, (features >>> 2) + featureCount));
    const requiredLimits = {};
    if (limits) {
      webgpuPort.limitNames.forEach((name, i) => {
        const value = HEAPF64[(limits >>> 3) + i];
        if (value >= 0) requiredLimits[name] = value;
      });
    }
    const descriptor = {
      'label': webgpuPort.text(label, labelBytes),
      'defaultQueue': {'label': webgpuPort.text(queueLabel, queueLabelBytes)},
      'requiredLimits': requiredLimits,
    };
    const ask = async () => {
      descriptor['requiredFeatures'] = requiredFeatures.map((feature) => {
        const name = webgpuPort.featureName(feature);
        if (!name) throw new Error(`feature ${feature} has no name in the browser's WebGPU`);
        return name;
      });
      return webgpuPort.get(adapter)['requestDevice'](descriptor);
    };
    webgpuPort.settle(ask(), 1, request, (device) => {
      const handle = webgpuPort.insert(device);
      const entry = webgpuPort.entry(handle);
      const ownHandle = () => (entry.references ? handle : 0);
      if (uncaptured[0]) {
        entry.report = (type, message) => {
          if (entry.references) webgpuPort.callBack(3, uncaptured, type, handle, message);
        };
        device['addEventListener']('uncapturederror', (event) => {
          entry.report(webgpuPort.errorType(event['error']), event['error']['message']);
        });
      }
      entry.finalize = () => device['destroy']();
      device['lost'].then((info) => {
        if (lost[0]) webgpuPort.callBack(2, lost, info['reason'] == 'destroyed' ? 2 : 1, ownHandle(), info['message']);
      });
      return [1, handle, ''];
    }, (error) => {
      const message = webgpuPort.messageOf(error);
      if (lost[0]) setTimeout(() => webgpuPort.callBack(2, lost, 4, 0, message));
      return [3, 0, message];
    });
  },

  webgpu_port_device_limits__deps: ['$webgpuPort'],
  webgpu_port_device_limits__sig: 'vpp',
  webgpu_port_device_limits: (device, limits) => webgpuPort.storeLimits(device, limits),

  wgpuDeviceHasFeature__deps: ['$webgpuPort'],
  wgpuDeviceHasFeature__sig: 'ipi',
  wgpuDeviceHasFeature: (device, feature) => webgpuPort.hasFeature(device, feature),

  wgpuDeviceGetQueue__deps: ['$webgpuPort'],
  wgpuDeviceGetQueue__sig: 'pp',
  wgpuDeviceGetQueue: (device) => {
    const entry = webgpuPort.entry(device);
    if (webgpuPort.entries.has(entry.queue)) {
      webgpuPort.addReference(entry.queue);
    } else {
      entry.queue = webgpuPort.insert(entry.object['queue']);
      webgpuPort.entry(entry.queue).device = entry;
    }
    return entry.queue;
  },

  wgpuDevicePushErrorScope__deps: ['$webgpuPort'],
  wgpuDevicePushErrorScope__sig: 'vpi',
  wgpuDevicePushErrorScope: (device, filter) => {
    webgpuPort.get(device)['pushErrorScope']([, 'validation', 'out-of-memory', 'internal'][filter]);
  },

  webgpu_port_pop_error_scope__deps: ['$webgpuPort'],
  webgpu_port_pop_error_scope__sig: 'vpppp',
  webgpu_port_pop_error_scope: (device, callback, userdata1, userdata2) => {
    webgpuPort.settle(webgpuPort.get(device)['popErrorScope'](), 4, [callback, userdata1, userdata2],
      (error) => (error ? [1, webgpuPort.errorType(error), error['message']] : [1, 1, '']),
      (error) => [3, 5, webgpuPort.messageOf(error)]);
  },

  wgpuDeviceDestroy__deps: ['$webgpuPort'],
  wgpuDeviceDestroy__sig: 'vp',
  wgpuDeviceDestroy: (device) => webgpuPort.get(device)['destroy'](),

  // Buffers.

  webgpu_port_create_buffer__deps: ['$webgpuPort'],
  webgpu_port_create_buffer__sig: 'ppppidi',
  webgpu_port_create_buffer: (device, label, labelBytes, usage, size, mappedAtCreation) => {
    const deviceEntry = webgpuPort.entry(device);
    return webgpuPort.guarded(deviceEntry, () => {
      const handle = webgpuPort.insert(deviceEntry.object['createBuffer']({
        'label': webgpuPort.text(label, labelBytes),
        'usage': usage >>> 0,
        'size': size,
        'mappedAtCreation': !!mappedAtCreation,
      }));
      const entry = webgpuPort.entry(handle);
      entry.mapMode = mappedAtCreation ? 2 : 0;
      // A map that is under way ends as aborted; the buffer's memory is the browser's to collect.
      entry.finalize = () => {
        webgpuPort.endMapping(entry, true);
        entry.object['unmap']();
      };
      return handle;
    });
  },

  webgpu_port_map_buffer__deps: ['$webgpuPort'],
  webgpu_port_map_buffer__sig: 'vpippppp',
  webgpu_port_map_buffer: (buffer, mode, offset, size, callback, userdata1, userdata2) => {
    const entry = webgpuPort.entry(buffer);
    const bytes = size >>> 0;
    const mapped = entry.object['mapAsync'](mode, offset >>> 0, bytes == 0xffffffff ? undefined : bytes);
    webgpuPort.settle(mapped, 6, [callback, userdata1, userdata2], () => {
      entry.mapMode = mode;
      return [1, 0, ''];
    }, (error) => [error['name'] == 'AbortError' ? 4 : 3, 0, webgpuPort.messageOf(error)]);
  },

  wgpuBufferGetConstMappedRange__deps: ['$webgpuPort'],
  wgpuBufferGetConstMappedRange__sig: 'pppp',
  wgpuBufferGetConstMappedRange: (buffer, offset, size) => webgpuPort.mapRange(buffer, offset, size, false),

  wgpuBufferGetMappedRange__deps: ['$webgpuPort'],
  wgpuBufferGetMappedRange__sig: 'pppp',
  wgpuBufferGetMappedRange: (buffer, offset, size) => webgpuPort.mapRange(buffer, offset, size, true),

  wgpuBufferUnmap__deps: ['$webgpuPort'],
  wgpuBufferUnmap__sig: 'vp',
  wgpuBufferUnmap: (buffer) => {
    const entry = webgpuPort.entry(buffer);
    webgpuPort.endMapping(entry, true);
    entry.object['unmap']();
  },

  wgpuBufferDestroy__deps: ['$webgpuPort'],
  wgpuBufferDestroy__sig: 'vp',
  wgpuBufferDestroy: (buffer) => {
    const entry = webgpuPort.entry(buffer);
    webgpuPort.endMapping(entry, false);
    entry.object['destroy']();
  },

  // Shaders, bindings and pipelines.

  webgpu_port_create_shader_module__deps: ['$webgpuPort'],
  webgpu_port_create_shader_module__sig: 'pppppp',
  webgpu_port_create_shader_module: (device, label, labelBytes, code, codeBytes) =>
    webgpuPort.insert(webgpuPort.get(device)['createShaderModule']({
      'label': webgpuPort.text(label, labelBytes),
      'code': webgpuPort.text(code, codeBytes),
    })),

  webgpu_port_create_bind_group_layout__deps: ['$webgpuPort'],
  webgpu_port_create_bind_group_layout__sig: 'pppppp',
  webgpu_port_create_bind_group_layout: (device, label, labelBytes, words, count) => {
    const entries = [];
    for (let at = words >>> 3; entries.length < count; at += 5) {
      entries.push({
        'binding': HEAPF64[at],
        'visibility': HEAPF64[at + 1],
        'buffer': {
          'type': [, , 'uniform', 'storage', 'read-only-storage'][HEAPF64[at + 2]],
          'hasDynamicOffset': !!HEAPF64[at + 3],
          'minBindingSize': HEAPF64[at + 4],
        },
      });
    }
    return webgpuPort.insert(webgpuPort.get(device)['createBindGroupLayout']({
      'label': webgpuPort.text(label, labelBytes),
      'entries': entries,
    }));
  },

  webgpu_port_create_bind_group__deps: ['$webgpuPort'],
  webgpu_port_create_bind_group__sig: 'ppppppp',
  webgpu_port_create_bind_group: (device, label, labelBytes, layout, words, count) => {
    const entries = [];
    for (let at = words >>> 3; entries.length < count; at += 4) {
      const size = HEAPF64[at + 3];
      entries.push({
        'binding': HEAPF64[at],
        'resource': {
          'buffer': webgpuPort.get(HEAPF64[at + 1]),
          'offset': HEAPF64[at + 2],
          'size': size < 0 ? undefined : size,
        },
      });
    }
    return webgpuPort.insert(webgpuPort.get(device)['createBindGroup']({
      'label': webgpuPort.text(label, labelBytes),
      'layout': webgpuPort.get(layout),
      'entries': entries,
    }));
  },

  webgpu_port_create_pipeline_layout__deps: ['$webgpuPort'],
  webgpu_port_create_pipeline_layout__sig: 'pppppp',
  webgpu_port_create_pipeline_layout: (device, label, labelBytes, layouts, count) => {
    const handles = Array.from(HEAPU32.subarray(layouts >>> 2, (layouts >>> 2) + count));
    return webgpuPort.insert(webgpuPort.get(device)['createPipelineLayout']({
      'label': webgpuPort.text(label, labelBytes),
      'bindGroupLayouts': handles.map((handle) => (handle ? webgpuPort.get(handle) : null)),
    }));
  },

  webgpu_port_create_compute_pipeline__deps: ['$webgpuPort'],
  webgpu_port_create_compute_pipeline__sig: 'vpppppppppp',
  webgpu_port_create_compute_pipeline: (
    device, label, labelBytes, layout, module, entryPoint, entryPointBytes, callback, userdata1, userdata2) => {
    const promise = webgpuPort.get(device)['createComputePipelineAsync']({
      'label': webgpuPort.text(label, labelBytes),
      'layout': layout ? webgpuPort.get(layout) : 'auto',
      'compute': {
        'module': webgpuPort.get(module),
        'entryPoint': entryPoint ? webgpuPort.text(entryPoint, entryPointBytes) : undefined,
      },
    });
    webgpuPort.settle(promise, 5, [callback, userdata1, userdata2],
      (pipeline) => [1, webgpuPort.insert(pipeline), ''],
      (error) => [error['reason'] == 'internal' ? 4 : 3, 0, webgpuPort.messageOf(error)]);
  },

  webgpu_port_create_query_set__deps: ['$webgpuPort'],
  webgpu_port_create_query_set__sig: 'ppppii',
  webgpu_port_create_query_set: (device, label, labelBytes, type, count) => {
    const entry = webgpuPort.entry(device);
    return webgpuPort.guarded(entry, () => webgpuPort.insert(entry.object['createQuerySet']({
      'label': webgpuPort.text(label, labelBytes),
      'type': [, 'occlusion', 'timestamp'][type],
      'count': count >>> 0,
    })));
  },

  wgpuQuerySetDestroy__deps: ['$webgpuPort'],
  wgpuQuerySetDestroy__sig: 'vp',
  wgpuQuerySetDestroy: (querySet) => webgpuPort.get(querySet)['destroy'](),

  // Commands.

  webgpu_port_create_command_encoder__deps: ['$webgpuPort'],
  webgpu_port_create_command_encoder__sig: 'pppp',
  webgpu_port_create_command_encoder: (device, label, labelBytes) =>
    webgpuPort.insert(webgpuPort.get(device)['createCommandEncoder']({'label': webgpuPort.text(label, labelBytes)})),

  webgpu_port_begin_compute_pass__deps: ['$webgpuPort'],
  webgpu_port_begin_compute_pass__sig: 'pppppii',
  webgpu_port_begin_compute_pass: (encoder, label, labelBytes, querySet, beginIndex, endIndex) => {
    const descriptor = {'label': webgpuPort.text(label, labelBytes)};
    if (querySet) {
      const writes = {'querySet': webgpuPort.get(querySet)};
      if (beginIndex != -1) writes['beginningOfPassWriteIndex'] = beginIndex >>> 0;
      if (endIndex != -1) writes['endOfPassWriteIndex'] = endIndex >>> 0;
      descriptor['timestampWrites'] = writes;
    }
    return webgpuPort.insert(webgpuPort.get(encoder)['beginComputePass'](descriptor));
  },

  wgpuComputePassEncoderSetPipeline__deps: ['$webgpuPort'],
  wgpuComputePassEncoderSetPipeline__sig: 'vpp',
  wgpuComputePassEncoderSetPipeline: (pass, pipeline) => webgpuPort.get(pass)['setPipeline'](webgpuPort.get(pipeline)),

  wgpuComputePassEncoderSetBindGroup__deps: ['$webgpuPort'],
  wgpuComputePassEncoderSetBindGroup__sig: 'vpippp',
  wgpuComputePassEncoderSetBindGroup: (pass, index, group, offsetCount, offsets) => {
    const object = group ? webgpuPort.get(group) : null;
    const encoder = webgpuPort.get(pass);
    if (offsetCount) encoder['setBindGroup'](index >>> 0, object, HEAPU32, offsets >>> 2, offsetCount);
    else encoder['setBindGroup'](index >>> 0, object);
  },

  wgpuComputePassEncoderDispatchWorkgroups__deps: ['$webgpuPort'],
  wgpuComputePassEncoderDispatchWorkgroups__sig: 'vpiii',
  wgpuComputePassEncoderDispatchWorkgroups: (pass, x, y, z) =>
    webgpuPort.get(pass)['dispatchWorkgroups'](x >>> 0, y >>> 0, z >>> 0),

  wgpuComputePassEncoderEnd__deps: ['$webgpuPort'],
  wgpuComputePassEncoderEnd__sig: 'vp',
  wgpuComputePassEncoderEnd: (pass) => webgpuPort.get(pass)['end'](),

  webgpu_port_copy_buffer__deps: ['$webgpuPort'],
  webgpu_port_copy_buffer__sig: 'vppdpdd',
  webgpu_port_copy_buffer: (encoder, source, sourceOffset, destination, destinationOffset, size) => {
    webgpuPort.get(encoder)['copyBufferToBuffer'](webgpuPort.get(source), sourceOffset, webgpuPort.get(destination),
      destinationOffset, size < 0 ? undefined : size);
  },

  webgpu_port_resolve_query_set__deps: ['$webgpuPort'],
  webgpu_port_resolve_query_set__sig: 'vppiipd',
  webgpu_port_resolve_query_set: (encoder, querySet, first, count, destination, destinationOffset) => {
    webgpuPort.get(encoder)['resolveQuerySet'](webgpuPort.get(querySet), first >>> 0, count >>> 0,
      webgpuPort.get(destination), destinationOffset);
  },

  webgpu_port_finish__deps: ['$webgpuPort'],
  webgpu_port_finish__sig: 'pppp',
  webgpu_port_finish: (encoder, label, labelBytes) =>
    webgpuPort.insert(webgpuPort.get(encoder)['finish']({'label': webgpuPort.text(label, labelBytes)})),

  // Queue.

  wgpuQueueSubmit__deps: ['$webgpuPort'],
  wgpuQueueSubmit__sig: 'vppp',
  wgpuQueueSubmit: (queue, count, commands) => {
    const handles = Array.from(HEAPU32.subarray(commands >>> 2, (commands >>> 2) + count));
    webgpuPort.get(queue)['submit'](handles.map(webgpuPort.get));
  },

  webgpu_port_write_buffer__deps: ['$webgpuPort'],
  webgpu_port_write_buffer__sig: 'vppdpp',
  webgpu_port_write_buffer: (queue, buffer, offset, data, bytes) => {
    const entry = webgpuPort.entry(queue);
    webgpuPort.guarded(entry.device, () =>
      entry.object['writeBuffer'](webgpuPort.get(buffer), offset, HEAPU8, data >>> 0, bytes >>> 0));
  },

  webgpu_port_work_done__deps: ['$webgpuPort'],
  webgpu_port_work_done__sig: 'vpppp',
  webgpu_port_work_done: (queue, callback, userdata1, userdata2) => {
    webgpuPort.settle(webgpuPort.get(queue)['onSubmittedWorkDone'](), 7, [callback, userdata1, userdata2],
      () => [1, 0, ''], (error) => [3, 0, webgpuPort.messageOf(error)]);
  },
};

for (const type of [
  'Instance', 'Adapter', 'Device', 'Queue', 'Buffer', 'ShaderModule', 'BindGroupLayout', 'BindGroup', 'PipelineLayout',
  'ComputePipeline', 'QuerySet', 'CommandEncoder', 'CommandBuffer', 'ComputePassEncoder',
]) {
  // A string names the function of which this one is an alias.
  LibraryWebGpuPort[`wgpu${type}AddRef`] = 'webgpu_port_add_reference';
  LibraryWebGpuPort[`wgpu${type}Release`] = 'webgpu_port_release';
}

addToLibrary(LibraryWebGpuPort);
