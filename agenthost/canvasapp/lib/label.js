import { unit } from './notes.js';

export function label(n) {
  return `${n} ${unit}${n === 1 ? '' : 's'}`;
}
