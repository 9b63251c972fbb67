// Reads what JSON.parse makes of frames, one question a line, base64 fields
// separated by commas, and answers one JSON line each:
//
//   frame,<frame>,<params>,<result>,<error>  the envelope, and whether the raw
//                                            values are those in the frame
//   id,<id>,<id>                             whether the two ids come back as the same
'use strict';

const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });
const parse = (base64) => JSON.parse(utf8.decode(Buffer.from(base64, 'base64')));

// show tells a value's type too, and an infinity from null.
const show = (value) => {
  if (value === null) return 'null';
  if (typeof value === 'object') return 'object';
  return `${typeof value} ${value}`;
};

const member = (value, key) =>
  value !== null && typeof value === 'object' && !Array.isArray(value) && Object.hasOwn(value, key)
    ? show(value[key])
    : '';

const questions = {
  frame(frame, ...raw) {
    const message = parse(frame);
    const keys = ['params', 'result', 'error'];
    return {
      id: member(message, 'id'),
      method: member(message, 'method'),
      topChannel: member(message, 'channel'),
      channel: member(message.params, 'channel'),
      same: keys.every((key, i) =>
        raw[i] === '' ? !(key in message) : JSON.stringify(parse(raw[i])) === JSON.stringify(message[key])),
    };
  },
  id: (a, b) => ({ same: JSON.stringify(parse(a)) === JSON.stringify(parse(b)) }),
};

const answer = (line) => {
  const [question, ...fields] = line.split(',');
  try {
    return JSON.stringify(questions[question](...fields));
  } catch (error) {
    return JSON.stringify({ refused: error.name });
  }
};

const lines = require('fs').readFileSync(0, 'utf8').split('\n');
process.stdout.write(lines.filter((line) => line !== '').map((line) => answer(line) + '\n').join(''));
