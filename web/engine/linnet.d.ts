// Types of linnet.js. The comments there describe the functions. Calls with wrong arguments throw a LinnetError of kind
// 'input'.

export type Kind = 'input' | 'runtime' | 'memory' | 'internal' | 'cancelled';

export class LinnetError extends Error {
  constructor(kind: Kind, message: string);
  readonly kind: Kind;
}

type Bytes = ArrayBuffer | Uint8Array;
type Precision = 'f32' | 'bf16' | 'int8';

export interface Sampling {
  /** 0: the most likely token. Default 1. */
  temperature?: number;
  /** In (0, 1]: only the most likely tokens, until their probabilities sum to topP. Default 1. */
  topP?: number;
  /** Only the topK most likely tokens. Default 0: all. */
  topK?: number;
  /** Default 0. The draws are a function of seed and stream. */
  seed?: number | bigint;
  /** Default 0. Streams of one seed are independent. */
  stream?: number | bigint;
}

export interface ImageSampling {
  /** Default 0. */
  seed?: number | bigint;
  /** Image i draws from stream firstStream + i of the seed. Default 0. */
  firstStream?: number | bigint;
  /** Above 0. Default 1: the predicted distribution. */
  temperature?: number;
}

export interface ImageOptions extends ImageSampling {
  /** Images generated together. Default 64. */
  batch?: number;
  /** Called after each batch; must not call linnet. Returns false to end the call with a LinnetError of kind
   *  'cancelled'. */
  progress?(done: number, total: number): boolean | void;
}

export function load(source: Bytes | Response | WebAssembly.Module | Promise<Bytes | Response>): Promise<Linnet>;

export class Linnet {
  private constructor();
  readonly version: string;
  open(file: Bytes, options?: {precision?: Precision | null; label?: string}): Model;
  choose(logits: ArrayLike<number>, draw: number | bigint, options?: Sampling): number;
}

export interface Couplet {
  text: string;
  /** Log-probability of the line: the sum over its characters, in nats. */
  logProbability: number;
  /** log p of each character of the text; 0 for copied punctuation. */
  scores: Float64Array;
}

export interface Phone {
  name: string;
  /** Start of its first frame. */
  seconds: number;
  /** In its first frame. */
  probability: number;
}

export class Transcriber {
  private constructor();
  readonly delay: number;
  feed(samples: ArrayLike<number>): Phone[];
  finish(): Phone[];
  free(): void;
}

export class Model {
  private constructor();
  readonly task: string;
  readonly precision: Precision;
  readonly spec: Record<string, unknown>;
  readonly training: Record<string, unknown>;
  readonly parameters: number;
  /** Number of tokens; 0 for models that read frames. */
  readonly vocabulary: number;
  /** Floats that the model returns per position. */
  readonly outputs: number;
  /** Maximum length of the training sequences. */
  readonly positions: number;
  /** Whether sequences longer than `positions` are an error. */
  readonly limited: boolean;
  readonly stateKind: 'none' | 'constant' | 'cache' | 'tokens';
  /** Bytes of one sequence's new state. */
  readonly stateBytes: number;
  readonly weightBytes: number;
  /** [height, width, channels]; null for models of other tasks. */
  readonly imageShape: [number, number, number] | null;
  readonly imageBytes: number;
  /** Samples per second of a speech model's audio; 0 for other models. */
  readonly sampleRate: number;
  /** The token that ends a text; -1 for models without text. */
  readonly end: number;
  free(): void;
  newState(batch?: number): State;
  loadState(bytes: Uint8Array): State;
  sample(count?: number, options?: ImageOptions): Uint8Array;
  /** known: bytes of each image to keep. */
  complete(images: Uint8Array, known: number, options?: ImageOptions): Uint8Array;
  drawByte(outputs: Float32Array | null, position: number, options?: ImageSampling & {image?: number}): number;
  byteBits(outputs: Float32Array | null, byte: number, position: number): number;
  bitsPerDim(images: Uint8Array): Float64Array;
  encode(text: string, options?: {prompt?: boolean}): Int32Array;
  decode(tokens: ArrayLike<number>): string;
  tokenBytes(token: number): Uint8Array;
  generate(prompt?: string, options?: Sampling & {
    maxTokens?: number;
    stop?: string | string[];
    /** Receives each piece of text; must not call linnet. Returns false to end the text. */
    reader?(piece: string): boolean | void;
  }): string;
  transcribe(samples: ArrayLike<number>, options?: {beam?: number}): Phone[];
  transcriber(): Transcriber;
  frames(samples: ArrayLike<number>): Float32Array;
  /** `candidates` is 5 by default. */
  couplets(first: string, options?: Sampling & {candidates?: number; beam?: number; freeForm?: boolean}):
    Couplet[] & {unknown: string[]};
}

export class State {
  private constructor();
  readonly model: Model;
  readonly batch: number;
  readonly bytes: number;
  position(sequence?: number): number;
  step(tokens: ArrayLike<number>): Float32Array;
  read(tokens: ArrayLike<number>, options?: {every?: boolean}): Float32Array;
  copy(): State;
  fork(copies: number): State;
  select(sequences: ArrayLike<number>): State;
  append(other: State): void;
  reset(): void;
  save(): Uint8Array;
  free(): void;
}
