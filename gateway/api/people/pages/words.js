/** Suggests a name for this device. */
export function deviceName() {
  const agent = navigator.userAgent;
  const browser = /Firefox|Edg|OPR|Chrome|Safari/.exec(agent)?.[0] ?? 'Browser';
  const system = /iPhone|iPad|Android|Windows|Mac OS|Linux/.exec(agent)?.[0] ?? '';
  return [browser.replace('Edg', 'Edge').replace('OPR', 'Opera'), system && `on ${system}`].filter(Boolean).join(' ');
}

const levels = {
  look: 'look at sessions', talk: 'talk to agents', approve: 'approve what agents do', operate: 'operate hosts: terminals, files', own: 'do everything, and invite others',
};

/** What a level permits, in words. */
export const levelWords = (level) => levels[level] ?? level;

/** Names a person's hosts, in which * stands for any characters. */
export const hostWords = (hosts) => (hosts.includes('*') ? 'all hosts' : `hosts ${hosts.join(', ')}`);

/** Returns a choice of the named levels, by default of all. Other labels the empty value. */
export function levelChoice(group, names = Object.keys(levels), checked = '', other = '') {
  return [...(other ? [['', other]] : []), ...names.map((name) => [name, levelWords(name)])].map(([value, label]) => (
    make('label', [make('input', [], { type: 'radio', name: group, value, ...(value === checked && { checked: '' }) }), ` ${label}`], { class: 'choice' })));
}

/** Shows a message. */
export function say(text, bad = false) {
  const said = document.getElementById('said');
  said.textContent = text;
  said.className = bad ? 'bad' : '';
}

/** Makes an element with text or elements in it. */
export function make(tag, inside = [], attributes = {}) {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) e.setAttribute(name, value);
  e.append(...[inside].flat());
  return e;
}

/** Shows a link with a button that shares it, or copies it if the browser cannot share. A command is always copied. */
export function linkToSend(link, command = false) {
  const shares = Boolean(navigator.share) && !command;
  const send = make('button', shares ? 'Send' : 'Copy', { type: 'button' });
  send.addEventListener('click', async () => {
    try {
      await (shares ? navigator.share({ url: link }) : navigator.clipboard.writeText(link));
      if (!shares) send.textContent = 'Copied';
    } catch {
      // The user canceled, or the browser refused: the shown link can be selected.
    }
  });
  return [make('code', link, { class: 'link' }), send];
}

/** Draws a QR code from rows of 0 and 1. */
export function qrCode(rows) {
  const size = rows.length + 8;
  const space = 'http://www.w3.org/2000/svg';
  const svg = document.createElementNS(space, 'svg');
  svg.setAttribute('viewBox', `0 0 ${size} ${size}`);
  svg.setAttribute('role', 'img');
  svg.setAttribute('aria-label', 'QR code of the link');
  svg.setAttribute('class', 'qr');
  const path = document.createElementNS(space, 'path');
  path.setAttribute('d', rows.flatMap((row, y) => [...row].map((c, x) => (c === '1' ? `M${x + 4} ${y + 4}h1v1h-1z` : ''))).join(''));
  svg.append(path);
  return svg;
}
