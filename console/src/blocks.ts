// Splits an agent's growing text into blocks, so finished blocks are neither parsed nor drawn again.

import { Lexer, Marked } from 'marked';

export const mostBlock = 100_000; // characters of a block to parse as Markdown
const mostInRun = 16; // blocks
export const syntax = { gfm: true, breaks: false };
const options = new Marked(syntax).defaults;

/** How many blocks at the end of a text may still change. */
export const open = 2;

/**
 * Splits a growing text into blocks. Finished text is not parsed again. Blocks are grouped into runs, so that
 * only the last run of a long answer is drawn and laid out again.
 */
export class Blocks {
  #text = '';
  #raws: string[] = [];
  #runs: string[][] = []; // runs whose blocks are finished

  of(text: string): string[][] {
    const had = this.#text;
    const raws = this.#blocksOf(text);
    if (!text.startsWith(had) || raws.length === 1) this.#runs = [];
    const runs = this.#runs.slice();
    for (let at = runs.length * mostInRun; at < raws.length; at += mostInRun) {
      runs.push(raws.slice(at, at + mostInRun));
      if (at + mostInRun <= raws.length - open) this.#runs = runs.slice();
    }
    return runs;
  }

  #blocksOf(text: string): string[] {
    let keep: string[] = [];
    if (text === this.#text) return this.#raws;
    const grown = this.#raws.length > 0 && text.length > this.#text.length && text.startsWith(this.#text) ? text.slice(this.#text.length) : '\n';
    if (!grown.includes('\n')) { // the text continues the last block
      this.#text = text;
      this.#raws = this.#raws.with(-1, this.#raws.at(-1) + grown);
      return this.#raws;
    }
    if (text.length >= this.#text.length && text.startsWith(this.#text)) keep = this.#raws.slice(0, -open);
    const from = keep.reduce((n, raw) => n + raw.length, 0);
    const raws = keep;
    const rest = text.slice(from);
    if (rest.length > mostBlock) raws.push(rest);
    else {
      let at = 0;
      for (const { type, raw } of new Lexer(options).blockTokens(rest)) { // inline content is parsed when a block is drawn
        const piece = rest.slice(at, at += raw.length); // the lexer may change white space
        if (type === 'space' && raws.length > 0) raws[raws.length - 1] += piece;
        else raws.push(piece);
      }
    }
    // If the lexer has changed white space, the lengths differ. The rest then becomes a single block.
    if (raws.reduce((n, raw) => n + raw.length, 0) !== text.length) {
      this.#text = '';
      this.#raws = [];
      return [text];
    }
    this.#text = text;
    this.#raws = raws;
    return raws;
  }
}
