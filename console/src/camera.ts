// Opens this device's camera while its picture is shown.

import { t } from './language';

const longest = 1280; // pixels of the picture's longer side
const quality = 0.8;

/** A picture, with its data in Base64. */
export interface Picture { mimeType: string; data: string | undefined; width: number; height: number }

export class Camera {
  stream: MediaStream | null = null;
  why = ''; // why the camera is unavailable
  facing: 'environment' | 'user' = 'environment';

  #changed: () => void;
  #turn = 0;

  constructor(changed: () => void) {
    this.#changed = changed;
  }

  get on(): boolean {
    return this.stream !== null;
  }

  async start(): Promise<void> {
    this.stop();
    const turn = ++this.#turn;
    try {
      if (!navigator.mediaDevices) throw new Error(t`This browser gives pages no camera, or only over https:.`);
      const stream = await navigator.mediaDevices.getUserMedia({ audio: false, video: { facingMode: this.facing, width: { ideal: longest } } });
      if (turn !== this.#turn) {
        end(stream);
        return;
      }
      this.stream = stream;
      stream.getVideoTracks()[0]!.onended = () => { if (this.stream === stream) this.stop(); };
      this.why = '';
    } catch (err) {
      if (turn === this.#turn) this.why = (err as Error).message;
    }
    this.#changed();
  }

  stop(): void {
    this.#turn++;
    if (this.stream) end(this.stream);
    this.stream = null;
    this.why = '';
    this.#changed();
  }

  async turnAround(): Promise<void> {
    this.facing = this.facing === 'user' ? 'environment' : 'user';
    await this.start();
  }

  /** Returns the current picture: {mimeType, data, width, height}. */
  async picture(): Promise<Picture> {
    const { stream } = this;
    if (!stream) throw new Error(t`The camera is off.`);
    const video = document.createElement('video');
    video.muted = true;
    video.srcObject = stream;
    try {
      await video.play();
      return drawn(video);
    } finally {
      video.srcObject = null;
    }
  }
}

function end(stream: MediaStream): void {
  for (const track of stream.getTracks()) track.stop();
}

function drawn(video: HTMLVideoElement): Picture {
  const scale = Math.min(1, longest / Math.max(video.videoWidth, video.videoHeight));
  const canvas = document.createElement('canvas');
  canvas.width = Math.round(video.videoWidth * scale);
  canvas.height = Math.round(video.videoHeight * scale);
  canvas.getContext('2d')!.drawImage(video, 0, 0, canvas.width, canvas.height);
  const [head, data] = canvas.toDataURL('image/jpeg', quality).split(',');
  return { mimeType: head!.slice('data:'.length, head!.indexOf(';')), data, width: canvas.width, height: canvas.height };
}
