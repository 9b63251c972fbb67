// Renders an agent's Mermaid as an SVG, which the page shows as a picture.

import { serve } from './sandbox-frame';

declare const mermaid: { initialize(config: object): void; render(id: string, text: string): Promise<{ svg: string }> }; // loaded by the frame's first script

const mostEdges = 300;
const longest = 20_000; // characters
let drawn = 0;

serve(async ({ text, dark }: { text: unknown; dark: boolean }) => {
  mermaid.initialize({
    startOnLoad: false, securityLevel: 'strict', suppressErrorRendering: true, theme: dark ? 'dark' : 'neutral', themeCSS: '* { filter: none !important; }',
    maxTextSize: longest, maxEdges: mostEdges, htmlLabels: false, flowchart: { htmlLabels: false }, // pictures show no HTML
    secure: ['secure', 'securityLevel', 'startOnLoad', 'maxTextSize', 'maxEdges', 'suppressErrorRendering', 'htmlLabels', 'flowchart', 'theme', 'themeCSS'],
  });
  const { svg } = await mermaid.render(`d${drawn++}`, String(text));
  const root = new DOMParser().parseFromString(svg, 'text/html').querySelector('svg')!;
  const [, , width, height] = (root.getAttribute('viewBox') ?? '').split(/[\s,]+/);
  root.setAttribute('width', width ?? '100%'); // a picture needs a size
  root.setAttribute('height', height ?? '100%');
  return new XMLSerializer().serializeToString(root);
});
