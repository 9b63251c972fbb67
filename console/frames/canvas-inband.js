// Rebuilds a canvas inside its sandbox. It runs in the canvas's own realm,
// before anything of the canvas does, and keeps no secrets from it: the port by
// which it asks for the canvas's content lets nobody do more than that, since
// canvas.ts looks at all that is asked for.
//
// Whatever the document refers to is read first, and becomes a blob: URL: the
// sandbox has an origin of its own, so blobs must be made here. Modules keep
// their addresses, which an import map leads to blobs, so that they may import
// each other in circles. What scripts ask for later goes through fetch,
// XMLHttpRequest, import() and the attributes of elements, which are replaced.
//
// What does not work: workers, frames, forms, storage, WebSockets, and all
// that is not below the canvas's own address.

/* global parseModule */
/* exported rebuild */
async function rebuild(port, { entry, content }) {
  const root = entry.replace(/^(ahp-canvas-content:\/[^/?#]+).*$/s, '$1/');
  const inBand = root !== entry || entry.startsWith('ahp-canvas-content:');
  const here = new URL('.', location.href).href; // what scripts take for the document's directory
  const nativeFetch = fetch.bind(window);
  const missing = 'blob:null/missing'; // is not there, and breaks no policy
  let base = entry;

  // ---- asking for content

  const waiting = new Map();
  let asked = 0;
  port.onmessage = ({ data }) => {
    const call = waiting.get(data.id);
    waiting.delete(data.id);
    if (data.error) call?.reject(Object.assign(new Error(data.error), { code: data.code }));
    else call?.resolve(data);
  };

  const reads = new Map();

  /** The content {data, type} at an address: data is a string or bytes. */
  function read(uri) {
    if (!reads.has(uri)) {
      reads.set(uri, new Promise((resolve, reject) => {
        waiting.set(++asked, { resolve, reject });
        port.postMessage({ id: asked, uri });
      }));
    }
    return reads.get(uri);
  }

  /** The address of content that a reference means, null if it means something else. */
  function resolve(ref, from = base) {
    if (!inBand || typeof ref !== 'string' || ref.trim().startsWith('#')) return null;
    let url;
    try {
      // A path from the root means the root of the canvas.
      url = new URL(/^\s*\/(?!\/)/.test(ref) ? root + ref.trim().slice(1) : ref, from);
      if (url.href.startsWith(here)) url = new URL(url.href.slice(here.length), base);
    } catch {
      return null;
    }
    url.hash = '';
    return url.href.startsWith(root) ? url.href.replaceAll("'", '%27') : null;
  }

  // ---- blobs

  const blobs = new Map();

  function blob(data, type) {
    return URL.createObjectURL(new Blob([data], { type }));
  }

  /** A blob: URL with the content at an address, or one that leads nowhere. */
  function blobFor(uri, trail = []) {
    if (trail.includes(uri)) return missing; // style sheets that import each other
    if (!blobs.has(uri)) {
      blobs.set(uri, read(uri).then(
        async ({ data, type }) => blob(type === 'text/css' ? await style(data, uri, [...trail, uri]) : data, type),
        () => missing));
    }
    return blobs.get(uri);
  }

  /** Replaces the references in a style sheet. */
  async function style(css, from, trail = []) {
    const pattern = /(@import\s+)(["'])(.*?)\2|url\(\s*(?:"([^"]*)"|'([^']*)'|([^"')\s]+))\s*\)/g;
    const found = [...css.matchAll(pattern)];
    const urls = await Promise.all(found.map(([, , , ...refs]) => {
      const uri = resolve(refs.find((ref) => ref !== undefined), from);
      return uri && blobFor(uri, trail);
    }));
    let i = 0;
    return css.replace(pattern, (all, at) => {
      const url = urls[i++];
      return url ? `${at ?? ''}url("${url}")` : all;
    });
  }

  async function srcset(value) {
    const parts = await Promise.all(value.split(/,\s+/).map(async (part) => {
      const [ref, ...size] = part.trim().split(/\s+/);
      const uri = resolve(ref);
      return [uri ? await blobFor(uri) : ref, ...size].join(' ');
    }));
    return parts.join(', ');
  }

  // ---- modules

  /** The imports in a module. One that cannot be read has none: the browser will say why. */
  function importsOf(source) {
    try {
      return parseModule(source)[0];
    } catch {
      return [];
    }
  }

  function isScript(type) {
    return /javascript|ecmascript|^text\/plain$|^application\/octet-stream$/.test(type);
  }

  const modules = new Map(); // address to a promise of {url, needed}
  const mapped = new Set(); // addresses that an import map has
  let named = {}; // the document's own import map

  /** The address that a specifier means, null if the browser should see to it. */
  function specified(specifier, from) {
    if (/^(\.{0,2}\/|[a-z][a-z0-9+.-]*:)/i.test(specifier)) return resolve(specifier, from);
    const key = Object.keys(named)
      .filter((k) => k === specifier || (k.endsWith('/') && specifier.startsWith(k)))
      .sort((a, b) => b.length - a.length)[0];
    return key === undefined ? null : resolve(named[key] + specifier.slice(key.length));
  }

  /** Replaces the specifiers in a module. */
  function rewrite(source, from) {
    const needed = [];
    let out = '';
    let done = 0;
    let meta = false;
    for (const { n, s, e, ss, d } of importsOf(source)) {
      if (d === -2) meta = true;
      else if (d >= 0) { // import(…): the specifier is known when it runs
        out += `${source.slice(done, ss)}importInBand(${JSON.stringify(from)}, `;
        done = d + 1;
      } else {
        const uri = specified(n ?? '', from);
        if (!uri) continue;
        needed.push(uri);
        out += source.slice(done, s) + uri;
        done = e;
      }
    }
    out += source.slice(done);
    return { needed, source: meta ? `import.meta.url = ${JSON.stringify(from)}; ${out}` : out };
  }

  function module(uri) {
    if (!modules.has(uri)) {
      modules.set(uri, read(uri).then(({ data, type }) => {
        if (typeof data !== 'string' || !isScript(type)) return { url: blob(data, type), needed: [] }; // JSON and the like
        const { source, needed } = rewrite(data, uri);
        return { url: blob(source, 'text/javascript'), needed };
      }).catch((err) => ({
        url: blob(`throw new TypeError(${JSON.stringify(`${uri}: ${err.message}`)})`, 'text/javascript'), needed: [],
      })));
    }
    return modules.get(uri);
  }

  /** Finds all modules that these need, and adds their blobs to found. */
  async function closure(uris, found) {
    await Promise.all(uris.map(async (uri) => {
      if (found.has(uri)) return;
      found.set(uri, missing);
      const { url, needed } = await module(uri);
      found.set(uri, url);
      await closure(needed, found);
    }));
    return found;
  }

  /** An import map for what no map has yet, null if there is nothing. */
  function importMap(found, doc) {
    const imports = {};
    for (const [uri, url] of found) if (!mapped.has(uri)) imports[uri] = url;
    if (Object.keys(imports).length === 0) return null;
    for (const uri of Object.keys(imports)) mapped.add(uri);
    const script = doc.createElement('script');
    script.type = 'importmap';
    script.textContent = JSON.stringify({ imports });
    return script;
  }

  /** Makes a module ready to be imported, and returns its blob: URL. */
  async function provide(uri) {
    const found = await closure([uri], new Map());
    const map = importMap(found, document);
    if (map) document.head.append(map);
    return found.get(uri);
  }

  window.importInBand = async (from, specifier, options) => {
    const uri = specified(String(specifier), from);
    if (uri) await provide(uri);
    return options === undefined ? import(uri ?? specifier) : import(uri ?? specifier, options);
  };

  // ---- what scripts ask for

  // Policies do not cover WebRTC (Chromium ignores webrtc 'block'). This keeps
  // honest canvases from it; one that makes a frame with srcdoc still has it.
  for (const name of ['RTCPeerConnection', 'webkitRTCPeerConnection']) delete window[name];

  window.fetch = async (input, init) => {
    const uri = resolve(input instanceof Request ? input.url : String(input));
    if (!uri) return nativeFetch(input, init); // data: and blob: work, the rest is refused
    const method = String(init?.method ?? input.method ?? 'GET').toUpperCase();
    if (method !== 'GET' && method !== 'HEAD') return new Response(null, { status: 405 });
    try {
      const { data, type } = await read(uri);
      return new Response(method === 'HEAD' ? null : data, { headers: { 'content-type': type } });
    } catch (err) {
      if (err.code === -32008) return new Response(err.message, { status: 404 });
      throw new TypeError(err.message);
    }
  };

  const NativeRequest = XMLHttpRequest;
  window.XMLHttpRequest = class XMLHttpRequest extends NativeRequest {
    #uri = null;
    #writes = false; // content can only be read
    #refused = false; // and so the answer is 405

    get readyState() { return this.#refused ? 4 : super.readyState; }
    get status() { return this.#refused ? 405 : super.status; }
    get statusText() { return this.#refused ? 'Method Not Allowed' : super.statusText; }
    get response() { return this.#refused ? '' : super.response; }
    get responseText() { return this.#refused ? '' : super.responseText; }

    open(method, url, ...rest) {
      this.#uri = resolve(String(url));
      this.#writes = !/^(get|head)$/i.test(method);
      this.#refused = false;
      super.open(method, this.#uri ? missing : url, ...rest);
    }

    send(body) {
      const uri = this.#uri;
      if (!uri) {
        super.send(body);
        return;
      }
      if (this.#writes) {
        setTimeout(() => {
          this.#refused = true;
          for (const type of ['readystatechange', 'load', 'loadend']) this.dispatchEvent(new ProgressEvent(type));
        });
        return;
      }
      Promise.resolve(blobFor(uri)).then((url) => {
        super.open('GET', url);
        super.send();
      });
    }
  };

  /** Sets an attribute that refers to content once the content is there. */
  async function refer(node, uri, set) {
    if (node.localName === 'script' && node.type === 'module') set(await provide(uri));
    else set(await blobFor(uri));
  }

  function replaceProperty(type, name) {
    const native = Object.getOwnPropertyDescriptor(type.prototype, name);
    Object.defineProperty(type.prototype, name, {
      ...native,
      set(value) {
        const uri = resolve(String(value));
        if (uri) refer(this, uri, (url) => native.set.call(this, url));
        else native.set.call(this, value);
      },
    });
  }
  const properties = [
    [HTMLImageElement, 'src'], [HTMLScriptElement, 'src'], [HTMLLinkElement, 'href'], [HTMLMediaElement, 'src'],
    [HTMLSourceElement, 'src'], [HTMLVideoElement, 'poster'], [HTMLInputElement, 'src'],
  ];
  for (const [type, name] of properties) replaceProperty(type, name);

  const setAttribute = Element.prototype.setAttribute;
  Element.prototype.setAttribute = function set(name, value) {
    const known = properties.some(([type, property]) => this instanceof type && property === String(name).toLowerCase());
    const uri = known ? resolve(String(value)) : null;
    if (uri) refer(this, uri, (url) => setAttribute.call(this, name, url));
    else setAttribute.call(this, name, value);
  };

  // ---- the document

  const sources = 'img[src], audio[src], video[src], source[src], track[src], input[src], embed[src]';

  /** Gives the references of elements below a node blobs. */
  async function refresh(node) {
    const all = (selector) => [...(node.matches?.(selector) ? [node] : []), ...node.querySelectorAll(selector)];
    const jobs = [];
    const attribute = (selector, name) => {
      for (const element of all(selector)) {
        const uri = resolve(element.getAttribute(name));
        if (uri) jobs.push(Promise.resolve(blobFor(uri)).then((url) => setAttribute.call(element, name, url)));
      }
    };
    attribute(sources, 'src');
    attribute('video[poster]', 'poster');
    attribute('svg image[href]', 'href');
    attribute('link[rel~="stylesheet"][href], link[rel~="icon"][href]', 'href');
    for (const element of all('[srcset]')) {
      jobs.push(srcset(element.getAttribute('srcset')).then((v) => setAttribute.call(element, 'srcset', v)));
    }
    for (const element of all('[style*="url("]')) {
      jobs.push(style(element.getAttribute('style'), base).then((v) => setAttribute.call(element, 'style', v)));
    }
    for (const element of all('style')) {
      jobs.push(style(element.textContent, base).then((v) => { if (v !== element.textContent) element.textContent = v; }));
    }
    await Promise.all(jobs);
  }

  /** Gives the document's scripts blobs, and returns the modules that they need. */
  async function scripts(doc) {
    const needed = [];
    const jobs = [...doc.querySelectorAll('script')].map(async (script) => {
      const asModule = script.type === 'module';
      const uri = script.hasAttribute('src') ? resolve(script.getAttribute('src')) : null;
      if (uri && asModule) {
        needed.push(uri);
        setAttribute.call(script, 'src', (await module(uri)).url);
      } else if (uri) {
        setAttribute.call(script, 'src', await blobFor(uri));
      } else if (asModule && !script.hasAttribute('src')) {
        const inline = rewrite(script.textContent, base);
        needed.push(...inline.needed);
        script.textContent = inline.source;
      }
    });
    await Promise.all(jobs);
    return closure(needed, new Map());
  }

  /** Takes out what would work against this. */
  function strip(doc) {
    const own = doc.querySelector('base[href]')?.getAttribute('href');
    if (own) base = resolve(own) ?? base;
    for (const script of doc.querySelectorAll('script[type="importmap"]')) {
      try {
        Object.assign(named, JSON.parse(script.textContent).imports);
      } catch {
        // The browser would complain, and go on.
      }
    }
    const useless = 'base, script[type="importmap"], meta[http-equiv="refresh" i], meta[http-equiv="content-security-policy" i], ' +
      'link[rel~="preload"], link[rel~="modulepreload"], link[rel~="prefetch"], link[rel~="preconnect"], link[rel~="dns-prefetch"], link[rel~="manifest"]';
    for (const element of doc.querySelectorAll(useless)) element.remove();
  }

  /** Follows links to other pages of the canvas; to anything else, nothing leads. */
  function follow(event) {
    const link = event.target.closest?.('a[href], area[href]');
    if (!link || event.defaultPrevented) return;
    const ref = link.getAttribute('href');
    if (ref.startsWith('#')) return;
    event.preventDefault();
    const uri = resolve(ref);
    if (uri) port.postMessage({ navigate: uri });
  }

  async function write(html) {
    const doc = new DOMParser().parseFromString(html, 'text/html');
    strip(doc);
    const [found] = await Promise.all([scripts(doc), refresh(doc)]);
    const map = importMap(found, doc);
    if (map) doc.head.prepend(map);
    document.open(); // keeps this realm, and its policy
    document.write((doc.doctype ? '<!doctype html>' : '') + doc.documentElement.outerHTML);
    document.close();
    document.addEventListener('click', follow);
    new MutationObserver((changes) => {
      for (const { addedNodes } of changes) {
        for (const node of addedNodes) if (node.nodeType === Node.ELEMENT_NODE) refresh(node);
      }
    }).observe(document, { childList: true, subtree: true });
  }

  async function load() {
    if (content) return content;
    const response = await nativeFetch(entry); // data:
    const type = response.headers.get('content-type') ?? '';
    return { type, data: type.startsWith('text/') ? await response.text() : new Uint8Array(await response.arrayBuffer()) };
  }

  try {
    const { data, type } = await load();
    if (type.startsWith('text/html') || type.startsWith('application/xhtml+xml')) {
      await write(typeof data === 'string' ? data : new TextDecoder().decode(data));
    } else if (type.startsWith('image/')) {
      const image = document.createElement('img');
      image.style.maxWidth = '100%';
      image.src = blob(data, type);
      document.body.append(image);
    } else if (typeof data === 'string') {
      const text = document.createElement('pre');
      text.textContent = data;
      document.body.append(text);
    } else {
      throw new Error(`Content of the type ${type} cannot be shown.`);
    }
    port.postMessage({ ended: 'shown' });
  } catch {
    port.postMessage({ ended: 'failed' });
  }
}
