// Runs in a frame without an origin and without a network: turns an agent's TeX into
// MathML, which the page sanitizes.

import katex from 'katex';

const mostExpand = 500; // macro expansions of a formula
const mostSize = 20; // em

addEventListener('message', function first({ source, ports: [port] }: MessageEvent) {
  if (source !== parent || !port) return;
  removeEventListener('message', first);
  port.onmessage = ({ data: { id, tex, display } }) => {
    let mathml = '';
    try {
      mathml = katex.renderToString(String(tex), { displayMode: display === true, output: 'mathml', throwOnError: true, trust: false, strict: 'ignore', maxExpand: mostExpand, maxSize: mostSize });
    } catch {
      // The page shows the source.
    }
    port.postMessage({ id, mathml: mathml.replace(/<annotation[^>]*>[^]*?<\/annotation>/g, '') }); // the source is no part of the formula
  };
  port.start();
});
