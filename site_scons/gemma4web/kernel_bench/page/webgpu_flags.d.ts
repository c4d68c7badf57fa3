// The flags of WebGPU are values of the global scope, which the compiler's own DOM types leave out.

declare const GPUBufferUsage: Record<
  'MAP_READ' | 'COPY_SRC' | 'COPY_DST' | 'UNIFORM' | 'STORAGE' | 'QUERY_RESOLVE', number>;
declare const GPUMapMode: Record<'READ', number>;
declare const GPUShaderStage: Record<'COMPUTE', number>;
