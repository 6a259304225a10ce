// Runs on the audio thread: sends the samples of a microphone to the port that the page gives, a tenth of a second at a
// time.
class Microphone extends AudioWorkletProcessor {
  #samples = new Float32Array(Math.round(sampleRate / 10));
  #count = 0;
  #to = null;

  constructor() {
    super();
    this.port.onmessage = ({data}) => { this.#to = data; };
  }

  process([input]) {
    if (this.#to === null) return true;
    for (const sample of input[0] ?? []) {  // no channel: nothing is connected
      this.#samples[this.#count++] = sample;
      if (this.#count < this.#samples.length) continue;
      this.#to.postMessage(this.#samples.slice());
      this.#count = 0;
    }
    return true;
  }
}
registerProcessor('microphone', Microphone);
