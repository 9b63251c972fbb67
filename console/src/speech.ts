// Dictation and reading aloud, by the browser's own speech functions.

/** A part of what the user has said. */
interface Heard { results: ArrayLike<{ 0: { transcript: string }; isFinal: boolean }>; resultIndex: number }

interface Recognition {
  continuous: boolean; interimResults: boolean; lang: string;
  onresult: ((e: Heard) => void) | null; onend: (() => void) | null;
  start(): void; stop(): void;
}

const maker = (): (new () => Recognition) | undefined => {
  const all = globalThis as { SpeechRecognition?: new () => Recognition; webkitSpeechRecognition?: new () => Recognition };
  return all.SpeechRecognition ?? all.webkitSpeechRecognition;
};

/** Whether the browser can transcribe speech. Some browsers send it to a service of their vendor. */
export function canDictate(): boolean {
  return maker() !== undefined;
}

/** Transcribes speech until stop is called or the user is silent. heard receives each finished phrase. */
export function dictate(heard: (words: string) => void, ended: () => void): { stop: () => void } {
  const listening = new (maker()!)();
  listening.continuous = true;
  listening.interimResults = false;
  listening.lang = navigator.language;
  listening.onresult = ({ results, resultIndex }) => {
    for (let i = resultIndex; i < results.length; i++) if (results[i].isFinal) heard(results[i][0].transcript.trim());
  };
  listening.onend = ended;
  listening.start();
  return { stop: () => listening.stop() };
}

export function canSpeak(): boolean {
  return 'speechSynthesis' in globalThis;
}

/** Reads an answer aloud without its code and marks, or stops reading. */
export function speak(markdown: string): void {
  if (speechSynthesis.speaking) {
    speechSynthesis.cancel();
    return;
  }
  speechSynthesis.speak(new SpeechSynthesisUtterance(spoken(markdown)));
}

/** Returns the words of Markdown that should be read aloud. */
export function spoken(markdown: string): string {
  return markdown.replace(/^(```|~~~)[^]*?^\1.*$/gm, ' ').replace(/!?\[([^\]]*)\]\([^)]*\)/g, '$1').replace(/^[ \t]*(#+|>|[-*+]|\d+\.)[ \t]+/gm, '').replace(/^\|?[-:| ]+\|$/gm, '').replace(/[`*_~|]+/g, ' ').replace(/\s+/g, ' ').trim();
}
