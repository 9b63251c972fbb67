// Converts an agent's TeX into MathML, which the page sanitizes.

import katex from 'katex';
import { serve } from './sandbox-frame';

const mostExpand = 500; // macro expansions of a formula
const mostSize = 20; // em

serve(({ tex, display }: { tex: string; display: boolean }) => katex
  .renderToString(String(tex), { displayMode: display === true, output: 'mathml', errorColor: 'currentcolor', throwOnError: true, trust: false, strict: 'ignore', maxExpand: mostExpand, maxSize: mostSize })
  .replace(/<annotation[^>]*>[^]*?<\/annotation>/g, '')); // the TeX source is not part of the formula
