// Imports the module that imports it, as modules may.
import { label } from './label.js';

export const unit = 'note';

export function count(n) {
  return label(n);
}
