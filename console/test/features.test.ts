// Tests pure parts of features: search, usage, offline copies, questions in a row, and
// the buttons of notifications. TestConsolesScriptsPass runs this file.

import assert from 'node:assert/strict';
import { mock, test } from 'node:test';

Object.assign(globalThis, {
  sessionStorage: { getItem: () => null }, localStorage: { getItem: () => null }, location: { hash: '', hostname: 'relay.example', href: 'https://relay.example/sw.js' },
});

const turn = (id: string, text: string, more: object = {}) => ({ id, startedAt: '2026-11-20T10:00:00Z', message: { text }, responseParts: [{ kind: 'markdown', content: `About ${id}` }], ...more });

test('the latest turns are found first, in prompts, answers and tools', async () => {
  const { find } = await import('../src/ui/find');
  const tool = { kind: 'toolCall', toolCall: { displayName: 'Shell', toolInput: 'make test', content: [{ type: 'text', text: 'FAIL cart' }] } };
  const turns = [turn('a', 'Why is the cart slow?'), turn('b', 'Run the tests', { responseParts: [tool] }), turn('c', 'Nothing')];
  assert.deepEqual(find(turns, ' CART ').map((f) => [f.turn, f.who, f.match]), [['b', 'Shell', 'cart'], ['a', 'You', 'cart']]);
  assert.deepEqual(find(turns, 'about c').map((f) => f.turn), ['c']);
  assert.deepEqual(find(turns, '  '), []);
});

test('usage is summed by model and day, and unreadable numbers count nothing', async () => {
  const { sums, used } = await import('../src/ui/usage');
  const all = used([turn('a', '', { usage: { model: 'm', inputTokens: 10, outputTokens: 2 } }), turn('b', ''), turn('c', '', { usage: { model: 'm', inputTokens: '7', outputTokens: -1 } })]);
  assert.deepEqual(sums(all, (u) => u.model), [['m', 2, 10, 2, 0]]);
});

test('limits are the host\'s words, and unreadable ones are none', async () => {
  const { limitsOf } = await import('../src/ui/usage');
  const all = limitsOf({ chat: { entitlementRequests: 200, usedRequests: 50, resetDate: '2026-12-01T00:00:00Z' }, five_hour: { remainingPercentage: -3 }, free: { isUnlimitedEntitlement: true }, none: {}, odd: 'x', worse: { remainingPercentage: '7' } });
  assert.deepEqual(all.map((l) => [l.name, l.left, l.total, l.spent, l.unlimited]), [['chat', 75, 200, 50, false], ['five hour', 0, 0, 0, false], ['free', 0, 0, 0, true]]);
  for (const none of [undefined, null, 7, 'x', []]) assert.deepEqual(limitsOf(none), []);
});

test('the use of all sessions is read one after the other, and leaves no subscription', async () => {
  const { everywhere, sums } = await import('../src/ui/usage');
  const states: Record<string, object> = { 'a:/1': { title: 'One', chats: [{ resource: 'c1' }, { resource: 'c2' }] }, c1: { turns: [turn('x', '', { usage: { inputTokens: 5 } })] }, c2: { turns: [turn('y', '', { usage: { inputTokens: 7 } })] } };
  const followed = new Set<string>();
  let most = 0;
  const link: any = {
    live: true, tidy: () => followed.clear(), conn: { subscribe: async (c: string) => { followed.add(c); most = Math.max(most, followed.size); if (!states[c]) throw new Error('gone'); return { state: states[c] }; } },
    store: { get: () => undefined, agents: [{ provider: 'a', displayName: 'Ada' }], sessions: new Map([['a:/1', { resource: 'a:/1', provider: 'a', title: 'Old' }], ['b:/2', { resource: 'b:/2', provider: 'b', title: 'Gone', modifiedAt: '2026' }]]) },
  };
  const far: any = { ...link, host: 'lab@work', store: { ...link.store, sessions: new Map([['a:/1', { resource: 'a:/1', provider: 'a' }]]) } };
  let said: any;
  await everywhere([link], (all, read, of) => { said = { all, read, of }; }, () => false);
  assert.deepEqual(sums(said.all, (u: any) => `${u.agent} ${u.session}`), [['Ada One', 2, 12, 0, 0]]);
  assert.deepEqual([said.read, said.of, most, followed.size], [2, 2, 1, 0]);
  await everywhere([{ ...link, host: 'lab' }, far], (all, read, of) => { said = { all, read, of }; }, () => false);
  assert.deepEqual(sums(said.all, (u: any) => u.host), [['lab', 2, 12, 0, 0], ['lab@work', 2, 12, 0, 0]]);
  assert.deepEqual([said.read, said.of, most, followed.size], [3, 3, 1, 0]);
});

test('a turn costs what it adds to the conversation, and no more than is known', async () => {
  const { money, sums, used } = await import('../src/ui/usage');
  const cost = (id: string, sofar: unknown) => turn(id, '', { usage: { model: 'm', _meta: { cost: sofar, currency: 'EUR' } } });
  const turns = [cost('a', 0.25), cost('b', undefined), cost('c', 0.75), cost('d', -1), cost('e', 1)];
  assert.deepEqual(used(turns).map((u) => u.cost), [0.25, 0, 0.5, 0, 0.25]);
  assert.deepEqual(used(turns, false).map((u) => u.cost), [0, 0, 0.5, 0, 0.25]); // older turns may have a part in the first
  assert.equal(sums(used(turns), () => 'all')[0][4], 1);
  assert.match(money(1.5, 'EUR'), /1[.,]5/);
  for (const none of [money(0, 'EUR'), money(1, ''), money(1, used([turn('x', '', { usage: { _meta: { cost: 1, currency: '<b>' } } })])[0].currency)]) assert.equal(none, '');
});

test('a chat keeps its first words as a name after the page has left it', async () => {
  const { Store } = await import('../src/store');
  const store = new Store('me');
  store.snapshot({ resource: 'c', fromSeq: 0, state: { status: 1, turns: [turn('a', ' Why is the cart slow?\nIt was quick.'), turn('b', 'Later')] } } as any);
  assert.equal(store.firstWords('c'), 'Why is the cart slow?');
  store.drop('c');
  assert.equal(store.firstWords('c'), 'Why is the cart slow?');
  for (let i = 0; i < 300; i++) store.drop(String(i));
  assert.deepEqual([store.firstWords('c'), store.firstWords('d'), store.firstWords(undefined)], ['', '', '']);
});

test('a run of steps took the time that their calls cover together, by the host\'s word or as seen here', async () => {
  const { Store, runningTerminal } = await import('../src/store');
  const { lastLine, together } = await import('../src/words');
  assert.equal(together([[0, 5000], [7000, 8000], [1000, 6000]]), 7000);
  assert.equal(together([[0, 5000], undefined]), 0);
  const store = new Store('me');
  let seq = 0;
  const say = (action: object, now?: number) => store.apply({ channel: 'c', serverSeq: ++seq, action: { turnId: 't', ...action } as never }, now);
  const calls = () => store.get('c').activeTurn.responseParts.map((p: any) => p.toolCall);
  store.snapshot({ resource: 'c', fromSeq: 0, state: { status: 8, turns: [], activeTurn: { id: 't', message: {}, responseParts: [] } } });
  for (const id of ['a', 'b']) say({ type: 'chat/toolCallStart', toolCallId: id }, 1000);
  say({ type: 'chat/toolCallReady', toolCallId: 'a', options: [] }, 2000);
  say({ type: 'chat/toolCallConfirmed', toolCallId: 'a', approved: true }, 9000);
  say({ type: 'chat/toolCallReady', toolCallId: 'b', confirmed: 'not-needed' }, 9500);
  say({ type: 'chat/toolCallContentChanged', toolCallId: 'b', content: [{ type: 'terminal', resource: 'term' }] }, 9600);
  assert.equal(store.ranFor('c', calls()[0]), undefined);
  assert.equal(runningTerminal(store.get('c')), 'term');
  store.snapshot({ resource: 'term', fromSeq: 0, state: { content: [{ type: 'unclassified', value: 'ok a\r\n10 %\r\u001b[32m20 %\u001b[0m\r\n' }] } });
  assert.equal(lastLine(calls()[1], (c) => store.get(c)), '20 %');
  store.snapshot({ resource: 'term', fromSeq: 0, state: { content: [{ type: 'command', output: 'made\n' }, { type: 'unclassified', value: '$ ' }] } });
  assert.equal(lastLine(calls()[1], (c) => store.get(c)), 'made');
  say({ type: 'chat/toolCallComplete', toolCallId: 'a', result: { success: true } }, 12_000);
  say({ type: 'chat/toolCallComplete', toolCallId: 'b', result: { success: true } }, 12_500);
  assert.deepEqual(calls().map((c: any) => store.ranFor('c', c)), [[9000, 12_000], [9500, 12_500]]); // not while the question was open
  assert.equal(runningTerminal(store.get('c')), '');
  assert.deepEqual(store.ranFor('c', { toolCallId: 'a', _meta: { 'agenthost.ran': { startedAt: '1970-01-01T00:00:01Z', durationMs: 5 } } }), [1000, 1005]);
  store.sync({ fresh: false, snapshots: [], actions: [], missing: [], serverSeq: 0 } as never);
  assert.equal(store.ranFor('c', calls()[0]), undefined, 'a time of which a part was not seen');
});

test('a mode or switch that skips permissions is known by the host\'s mark, or by its words', async () => {
  const { skipping, skips } = await import('../src/ui/bypass');
  const approvals = { type: 'string', title: 'Approvals', enum: ['default', 'assisted', 'autoApprove'], enumLabels: ['Manual permissions', 'Assisted permissions', 'Allow all'], enumDescriptions: ['Asks when approval settings don\'t apply', 'Evaluates risk before running tools', 'Runs tool calls without asking'], default: 'default' };
  assert.deepEqual(approvals.enum.map((v) => skips('autoApprove', approvals, v)), [false, false, true]); // of VS Code's host
  const mode = { type: 'string', enum: ['ask', 'free'], bypass: ['free'], default: 'ask' };
  const schema = { properties: { mode, yes: { type: 'boolean', bypass: [true] }, allow_all: { type: 'boolean' }, verbose: { type: 'boolean' }, autoApprovePolicyRestricted: { type: 'boolean', readOnly: true }, model: { enum: ['yolo'], category: 'model', default: 'yolo' } } };
  assert.deepEqual([{}, { mode: 'free' }, { yes: true }, { yes: false }, { allow_all: true }, { verbose: true, autoApprovePolicyRestricted: true }].map((values) => skipping({ schema, values })), ['', 'mode', 'yes', '', 'allow_all', '']);
  assert.equal(skipping(undefined), '');
});

test('an offline copy has the last turns that fit', async () => {
  const { lastOf } = await import('../src/offline');
  const many = Array.from({ length: 50 }, (_, i) => turn(String(i), 'x'));
  assert.deepEqual(lastOf({ turns: many }).turns.map((t: { id: string }) => t.id), many.slice(-20).map((t) => t.id));
  const large = turn('large', 'x'.repeat(900_000));
  assert.deepEqual(lastOf({ turns: [turn('a', ''), large, large] }).turns.length, 1);
  assert.deepEqual(lastOf({ turns: [turn('too large', 'x'.repeat(2_000_000))] }).turns, []);
});

test('a row allows only a request that is shown whole and not called dangerous', async () => {
  const { askedBy } = await import('../src/asked');
  const options = [{ id: 'once', label: 'Allow Once' }, { id: 'no', label: 'Skip', deny: true }];
  const offered = (more: object) => askedBy({ kind: 'approval', answer: 'choice', options, ...more }).options.map((o) => o.id);
  assert.deepEqual(offered({}), ['once', 'no']);
  assert.deepEqual(offered({ risky: true }), ['no']);
  assert.deepEqual(offered({ edits: true }), ['no']);
  assert.deepEqual(askedBy({ kind: 'approval', options }).options, [], 'a host without answers');
  assert.deepEqual(askedBy({ kind: 'question', answer: 'choice', options: [{ id: 'a' }], edits: true }).options.map((o) => o.label), ['a']);
});

test('a notification has as many buttons as fit, and sends answers to this relay only', async () => {
  const { actionsOf, offeredBy } = await import('../src/lockscreen');
  const answers = [{ label: 'Yes', url: 'https://elsewhere.example/api/answers/a.b' }, { label: 'Reply', text: true, url: '/api/answers/c.d' }, { label: 'Odd', url: '/other' }, null, 'x', { label: 1, url: '/api/answers/e' }];
  const offered = offeredBy({ answers });
  assert.deepEqual(offered.map((o) => o.path), ['api/answers/a.b', 'api/answers/c.d']);
  assert.deepEqual(actionsOf(offered, 2, true).map((a) => a.type), [undefined, 'text']);
  assert.deepEqual(actionsOf(offered, 2, false).map((a) => a.title), ['Yes']);
  assert.deepEqual(actionsOf(offered, 0, true), []);
  assert.deepEqual(offeredBy({}), []);
});

test('each colour of a terminal has enough contrast with its background, in both themes', async () => {
  const { ansi } = await import('../src/ui/colours');
  const css = (await import('node:fs')).readFileSync('../src/style.css', 'utf8');
  const [light, dark] = [...css.matchAll(/--sunk: (#[0-9a-f]{6})/g)].map((m) => m[1]);
  const shine = (colour: string) => [0.2126, 0.7152, 0.0722].reduce((sum, weight, i) => {
    const v = parseInt(colour.slice(1 + 2 * i, 3 + 2 * i), 16) / 255;
    return sum + weight * (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  }, 0);
  const contrast = (a: string, b: string) => { const [x, y] = [shine(a), shine(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
  for (const [scheme, ground] of [['light', light], ['dark', dark]] as const) {
    assert.equal(Object.keys(ansi[scheme]).length, 16);
    for (const [name, colour] of Object.entries(ansi[scheme])) assert.ok(contrast(colour, ground) >= 4.5, `${scheme} ${name}: ${contrast(colour, ground).toFixed(2)}`);
  }
});

test('an answer is read aloud without code and marks', async () => {
  const { spoken } = await import('../src/speech');
  assert.equal(spoken('# Found\n\nThe **clock** in `session.go`, see [notes](https://x.example/a_b).\n\n```go\nfunc x() {}\n```\n\n- one\n- two'), 'Found The clock in session.go , see notes. one two');
});

test('ages follow the relay\'s clock', async () => {
  const { ago, setClock } = await import('../src/words');
  setClock(new Date(Date.now() + 3_660_000).toISOString());
  assert.equal(ago(new Date().toISOString()), '1 h');
  setClock(undefined);
  assert.equal(ago(new Date().toISOString()), 'now');
});

test('a link without a scheme leads to a file of the session', async () => {
  const { fileOf, isPath } = await import('../src/words');
  assert.deepEqual(['a.go', 'main.go:3', 'tel:3', './b/c.go:3', '/etc/x', 'https://x.example', 'javascript:alert(1)', '//x.example', '#part', '', 'file:///etc/x'].filter(isPath), ['a.go', 'main.go:3', './b/c.go:3', '/etc/x']);
  assert.equal(fileOf('./b/c d.go:3-7', 'file:///demo/shop'), 'file:///demo/shop/b/c%20d.go');
  assert.equal(fileOf('/etc/a b#L3', 'file:///demo/shop/'), 'file:///etc/a%20b');
  assert.equal(fileOf('../cart/x.go', 'file:///demo/shop/'), 'file:///demo/cart/x.go');
});

test('an icon is a picture in its own address, for the theme', async () => {
  const { iconOf } = await import('../src/words');
  const png = 'data:image/png;base64,iVBORw0KGgo=';
  const svg = 'data:image/svg+xml;base64,PHN2Zy8+';
  assert.equal(iconOf([{ src: 'https://elsewhere.example/icon.png' }, { src: '//elsewhere.example/i.png' }, { src: svg, theme: 'dark' }, { src: png }], false), png);
  assert.equal(iconOf([{ src: svg, theme: 'dark' }, { src: png }], true), svg);
  for (const bad of [undefined, {}, 'x', [null, 7, {}], [{ src: 'data:text/html;base64,AAAA' }], [{ src: `${png}" onerror="x` }], [{ src: `data:image/png;base64,${'A'.repeat(65536)}` }]]) assert.equal(iconOf(bad, false), '');
});

test('the changes of a turn have the address that the host names for each turn', async () => {
  const { ofTurn } = await import('../src/store');
  const all = [{ uriTemplate: 's:/1/changes', label: 'All' }, { uriTemplate: 's:/1/turn/{turnId}', label: 'This Turn' }, { uriTemplate: 's:/{a}/{turnId}' }, null, {}];
  assert.deepEqual(ofTurn(all, 'a/b'), [{ channel: 's:/1/turn/a%2Fb', title: 'This Turn' }]);
});

// Visits many sessions, as in a tab that stays open for weeks. The page must keep the conversations seen last, and
// not all of them.
test('a page that stays open keeps the latest conversations only', async () => {
  const { Offline } = await import('../src/offline');
  const state = { turns: [] };
  const link: any = { host: 'desk', live: true, past: new Map(), listAt: 0, store: { sessions: new Map(), listRevision: 0, revision: 0, get: () => state } };
  const page: any = { keeps: false, host: 'desk', session: '', chatUri: 'c:/1', links: new Map([['desk', link]]) };
  const past = new Offline(page);
  const visit = (n: number) => {
    page.session = `s:/${n}`;
    past.tick(n);
    if (n % 2) past.lost(link);
  };
  for (let n = 0; n < 1000; n++) visit(n);
  visit(970);
  visit(1000);
  assert.ok(link.past.size <= 50, `${link.past.size} conversations are kept`);
  for (const n of [970, 990, 999, 1000]) assert.ok(link.past.has(`s:/${n}`), `the conversation ${n} is not kept`);
});

// Opens the stream of questions, and lets it fall silent, as when a phone has slept and its network is another. The
// page must open a new stream, which begins with the questions that are open now. A stream with beats must stay, and
// so must the growing pauses while the relay is unreachable.
test('a silent stream of questions is opened again', async (t) => {
  const { Questions } = await import('../src/asked');
  mock.timers.enable({ apis: ['Date', 'setTimeout'] });
  t.after(() => mock.timers.reset());
  const streams: { say(words: string): void; signal: AbortSignal }[] = [];
  let there = true;
  let tries = 0;
  (globalThis as any).fetch = async (_: string, { signal }: { signal: AbortSignal }) => {
    tries++;
    if (!there) throw new TypeError('no network');
    let say: any;
    const body = new ReadableStream({ start(c) {
      say = (words: string) => c.enqueue(new TextEncoder().encode(words));
      signal.addEventListener('abort', () => c.error(signal.reason));
    } });
    streams.push({ say, signal });
    return new Response(body);
  };
  const asked = (id: string) => `event: asked\ndata: ${JSON.stringify({ id, host: 'desk', session: 's:/1', needsYou: true })}\n\n`;
  const turns = async () => { for (let i = 0; i < 20; i++) await new Promise((resolve) => { setImmediate(resolve); }); };
  const questions = new Questions({ token: 't', requests: {} as any, draw() {} });
  const passes = async (seconds: number, each = () => {}) => {
    for (let n = 0; n < seconds; n++) {
      mock.timers.tick(1000);
      if (n % 15 === 14) each();
      await turns();
      questions.follow();
      await turns();
    }
  };
  questions.follow();
  await turns();
  streams[0].say(asked('old'));
  await passes(300, () => streams[0].say(':\n\n'));
  assert.deepEqual([streams.length, questions.all().map((q) => q.id)], [1, ['old']]);
  await passes(60);
  assert.deepEqual([streams.length, streams[0].signal.aborted, streams[1]?.signal.aborted], [2, true, false]);
  streams[1].say(asked('new'));
  await turns();
  assert.deepEqual(questions.all().map((q) => q.id), ['new']);
  there = false;
  tries = 0;
  await passes(600);
  assert.ok(tries < 20, `${tries} requests were made in 10 minutes without a network`);
});

// Has a network return after a night without one, when the next attempt to open the stream is up to a minute away. The
// user looks at the page now, so it must open the stream at once, and later wait as before.
test('the stream of questions is opened when the user returns', async (t) => {
  const { Questions } = await import('../src/asked');
  const had = globalThis.fetch;
  mock.timers.enable({ apis: ['setTimeout', 'Date'] });
  t.after(() => { mock.timers.reset(); globalThis.fetch = had; });
  let there = false;
  let tries = 0;
  (globalThis as any).fetch = async (_: string, { signal }: { signal: AbortSignal }) => {
    tries++;
    if (!there) throw new TypeError('no network');
    return new Response(new ReadableStream({ start(c) { signal.addEventListener('abort', () => c.error(signal.reason)); } }));
  };
  const turns = async () => { for (let i = 0; i < 20; i++) await new Promise((resolve) => { setImmediate(resolve); }); };
  const questions = new Questions({ token: 't', requests: {} as any, draw() {} });
  questions.follow();
  for (let second = 0; second < 300; second++) {
    mock.timers.tick(1000);
    await turns();
  }
  there = true;
  tries = 0;
  for (let n = 0; n < 2; n++) { // the page is in view, and the network is back
    questions.wake();
    await turns();
  }
  assert.equal(tries, 1);
  mock.timers.tick(60_000);
  await turns();
  assert.equal(tries, 1);
});

// Requests the list of hosts again before each answer, as on a network that is slower than the pause between the
// requests. Each answer must count, unless a later one has come, or the page has another token.
test('a slow network delays the list of hosts, and does not prevent it', async (t) => {
  const { Hosts } = await import('../src/hosts');
  const had = globalThis.fetch;
  t.after(() => { globalThis.fetch = had; });
  const answers: ((host: string, status?: number) => Promise<void>)[] = [];
  (globalThis as any).fetch = () => new Promise((resolve) => {
    answers.push(async (host, status = 200) => {
      resolve(new Response(JSON.stringify({ hosts: [{ host, state: 'online' }] }), { status }));
      for (let i = 0; i < 5; i++) await new Promise((done) => { setImmediate(done); });
    });
  });
  let refused = 0;
  const page: any = { token: 't', accounts: { look() {}, hosts: () => [] }, refused() { refused++; }, hostsKnown() {}, draw() {} };
  const hosts = new Hosts(page);
  const names = () => hosts.all.map((h) => h.host);
  for (let n = 0; n < 3; n++) hosts.refresh();
  await answers[0]('first');
  assert.deepEqual(names(), ['first']);
  await answers[2]('third');
  await answers[1]('second');
  assert.deepEqual(names(), ['third']);
  hosts.refresh();
  page.token = 'another';
  hosts.refresh();
  await answers[3]('of the previous token', 401);
  assert.deepEqual([names(), refused], [['third'], 0]);
  await answers[4]('of the new token');
  hosts.refresh();
  hosts.forget();
  await answers[5]('forgotten');
  assert.deepEqual(names(), []);
});

// Requests the hosts of a further account again before each answer. An answer that comes after a later one must not count.
test('a late list of an account\'s hosts does not replace a newer one', async (t) => {
  const { Accounts, tookChange } = await import('../src/accounts');
  const had = globalThis.localStorage;
  t.after(() => { Object.assign(globalThis, { localStorage: had }); tookChange(null); });
  Object.assign(globalThis, { localStorage: { getItem: (k: string) => (k === 'ahp-accounts' ? '[{"name":"work","relay":"https://b.example"}]' : null) } });
  tookChange(null);
  const answers: any[] = [];
  let out = 0;
  const all = new Accounts({ askAs: () => new Promise<any>((resolve, reject) => { answers.push({ resolve, reject }); }), listed() {}, signedOut() { out++; } });
  for (let n = 0; n < 4; n++) all.look();
  const turns = () => new Promise((done) => { setImmediate(done); });
  const names = () => all.hosts().map((h) => h.host);
  answers[0].resolve({ status: 200, body: { hosts: [{ host: 'first' }] } });
  await turns();
  assert.deepEqual(names(), ['first@work']);
  answers[3].resolve({ status: 200, body: { hosts: [{ host: 'fourth' }] } });
  await turns();
  answers[1].resolve({ status: 401, body: {} });
  answers[2].reject(new TypeError('no network'));
  await turns();
  assert.deepEqual([names(), all.of({ name: 'work', relay: '' })!.why, out], [['fourth@work'], '', 0]);
});

// Adds an account after the relay was updated: the relay serves a newer page, with a policy for the account. Without a
// network, each cache must still give the page whose files it has.
test('a new policy is cached only with the page that it was cached with', async (t) => {
  const { keepPage } = await import('../src/accounts');
  const had = globalThis.fetch;
  t.after(() => { globalThis.fetch = had; delete (globalThis as any).caches; });
  const page = (main: string, policy: string) => new Response(`<script src="/${main}">`, { headers: { 'Content-Security-Policy': policy } });
  const all = new Map([['shell /old.js', page('old.js', 'former')], ['shell /new.js', page('new.js', 'former')], ['shared', page('', '')]]);
  const fetched = async () => page('new.js', 'present');
  (globalThis as any).fetch = fetched;
  (globalThis as any).caches = {
    keys: async () => [...all.keys()],
    open: async (name: string) => ({ match: async () => all.get(name)!.clone(), put: async (_: string, to: Response) => { all.set(name, to); }, add: async () => { all.set(name, await fetched()); } }),
  };
  await keepPage();
  const kept = await Promise.all([...all.values()].map(async (p) => [await p.text(), p.headers.get('Content-Security-Policy')]));
  assert.deepEqual(kept.slice(0, 2), [['<script src="/old.js">', 'former'], ['<script src="/new.js">', 'present']]);
});

// Prints more than the page keeps of a terminal, in small pieces. The view prints a piece that continues the text, and
// anything else from the start: the page must not shorten the text at each piece.
test('a terminal with much output is not printed anew at each piece', async () => {
  const { reduce } = await import('../src/reduce');
  const piece = 'x'.repeat(64 << 10);
  for (const begun of [[], [{ type: 'command', commandId: 'c', output: '', isComplete: false }]]) {
    let state: any = { content: begun };
    let anew = 0;
    for (let n = 0; n < 200; n++) {
      const before = state.content[0]?.output ?? state.content[0]?.value ?? '';
      state = reduce(state, { type: 'terminal/data', data: `${n} ${piece}` } as any);
      const now = state.content[0].output ?? state.content[0].value;
      if (!now.startsWith(before)) anew++;
      assert.ok(now.length <= 5 << 20 && now.endsWith(`${n} ${piece}`));
    }
    assert.ok(anew > 0 && anew < 10, `${anew} of 200 pieces`);
  }
});

// Runs commands all night in a terminal that reports each of them. The page must keep the latest output only, and not
// print it anew at each command.
test('a terminal with many commands keeps a bounded output', async () => {
  const { reduce } = await import('../src/reduce');
  const data = 'x'.repeat(20_000);
  let state: any = { content: [] };
  let anew = 0;
  for (let n = 0; n < 1000; n++) {
    const [first] = state.content;
    for (const action of [{ type: 'terminal/commandExecuted', commandId: `${n}`, commandLine: 'make' }, { type: 'terminal/data', data }, { type: 'terminal/commandFinished', commandId: `${n}` }, { type: 'terminal/data', data: `$ ${n}` }]) state = reduce(state, action as any);
    if (n > 0 && state.content[0] !== first) anew++;
    const size = state.content.reduce((sum: number, p: any) => sum + (p.output ?? p.value).length, 0);
    assert.ok(size < 5 << 20 && state.content.at(-1).value === `$ ${n}` && state.content.at(-2).output === data, `${size} characters after ${n} commands`);
  }
  assert.ok(anew > 0 && anew < 20, `${anew} of 1000 commands`);
});

/** A browser's database whose only record is a device's key. */
const databaseOf = (self: object) => {
  const db = { close() {}, transaction: () => { const made: any = { objectStore: () => ({ get: () => ({ result: self }) }) }; setTimeout(() => made.oncomplete(), 0); return made; } };
  return { open: () => { const open: any = { result: db }; setTimeout(() => open.onsuccess(), 0); return open; } };
};

// Removes a device, or ends its sign-in at the organization, while its page sleeps. The relay answers the request for a
// token with 400. The page must get 401, as for a refused token: it then offers to sign in.
test('a device without its sign-in gets 401', async (t) => {
  const had = { fetch: globalThis.fetch, indexedDB: (globalThis as any).indexedDB };
  t.after(() => Object.assign(globalThis, had));
  const { call, newKeys } = await import('../../gateway/api/people/pages/keys.js');
  Object.assign(globalThis, { indexedDB: databaseOf({ keys: await newKeys(), device: 'phone', tenant: '', subject: 'ada' }) });
  for (const [error, status] of [['invalid_grant', 401], ['login_required', 401], ['temporarily_unavailable', 503]] as [string, number][]) {
    (globalThis as any).fetch = async () => new Response(JSON.stringify({ error }), { status: status === 401 ? 400 : status });
    await assert.rejects(call('GET', 'api/hosts'), { name: error, status });
  }
});

// Asks for a token each second while the network swallows the request, as the page does. There must be one request at a
// time; after it has failed, the next call makes another.
test('a device requests one token at a time', async (t) => {
  const had = { fetch: globalThis.fetch, indexedDB: (globalThis as any).indexedDB };
  t.after(() => Object.assign(globalThis, had));
  const { accessToken, newKeys } = await import('../../gateway/api/people/pages/keys.js');
  const self = { keys: await newKeys(), device: 'phone', tenant: '', subject: 'ada' };
  const opened = { objectStore: () => ({ get: () => ({ result: self }) }) };
  const db = { close() {}, transaction: () => { const made: any = { ...opened }; setTimeout(() => made.oncomplete(), 0); return made; } };
  const requests: { resolve(answer: Response): void; reject(err: Error): void; signal?: AbortSignal }[] = [];
  Object.assign(globalThis, {
    indexedDB: { open: () => { const open: any = { result: db }; setTimeout(() => open.onsuccess(), 0); return open; } },
    fetch: (_: unknown, { signal }: RequestInit) => new Promise((resolve, reject) => { requests.push({ resolve, reject, signal: signal! }); }),
  });
  const asks = async () => {
    const all = Promise.allSettled(Array.from({ length: 5 }, () => accessToken()));
    const before = requests.length;
    for (let n = 0; n < 500 && requests.length === before; n++) await new Promise((done) => { setTimeout(done, 5); });
    await new Promise((done) => { setTimeout(done, 50); }); // further requests would come now
    return { made: requests.length - before, all };
  };
  const lost = await asks();
  assert.equal(lost.made, 1);
  requests.at(-1)!.reject(new TypeError('Failed to fetch'));
  assert.deepEqual(new Set((await lost.all).map((r) => r.status)), new Set(['rejected']));
  const given = await asks();
  assert.equal(given.made, 1);
  requests.at(-1)!.resolve(new Response(JSON.stringify({ access_token: 'a', expires_in: 300 })));
  assert.deepEqual((await given.all).map((r: any) => r.value), ['a', 'a', 'a', 'a', 'a']);
  assert.equal(await accessToken(), 'a');
});

// Sends requests into a network that swallows them. Each must end: a page that waits for ever shows an earlier state as
// the present one, and keeps its buttons disabled.
test('a request without an answer ends', async (t) => {
  const had = { fetch: globalThis.fetch, timeout: AbortSignal.timeout, indexedDB: (globalThis as any).indexedDB };
  t.after(() => { AbortSignal.timeout = had.timeout; Object.assign(globalThis, { fetch: had.fetch, indexedDB: had.indexedDB }); });
  const db = { close() {}, transaction: () => { const made: any = { objectStore: () => ({ get: () => ({}) }) }; setTimeout(() => made.oncomplete(), 0); return made; } };
  Object.assign(globalThis, { indexedDB: { open: () => { const open: any = { result: db }; setTimeout(() => open.onsuccess(), 0); return open; } } });
  const ends: (() => void)[] = [];
  AbortSignal.timeout = () => {
    const c = new AbortController();
    ends.push(() => c.abort(new DOMException('signal timed out', 'TimeoutError')));
    return c.signal;
  };
  (globalThis as any).fetch = (_: unknown, { signal }: RequestInit) => new Promise((_, reject) => { signal?.addEventListener('abort', () => reject(signal.reason)); });
  const { ask } = await import('../src/relay');
  const { give } = await import('../src/lockscreen');
  const said = [ask('t', 'POST', 'api/answers/1', {}).catch((err) => err.message), give('api/answers/1', undefined, [])];
  for (let n = 0; n < 500 && ends.length < 2; n++) await new Promise((done) => { setTimeout(done, 5); });
  for (const end of ends) end();
  assert.deepEqual(await Promise.race([Promise.all(said), new Promise((done) => { setTimeout(done, 100, 'they wait'); })]), ['no answer for 60 s', 'the relay cannot be reached']);
});

// Answers from the lock screen over a network that loses the relay's answer. The relay has the person's answer, so the second
// attempt must count as a success. An answer that was given before the first attempt must be reported.
test('a repeated answer is not refused as already given', async (t) => {
  const had = { fetch: globalThis.fetch, indexedDB: (globalThis as any).indexedDB };
  t.after(() => Object.assign(globalThis, had));
  const { give } = await import('../src/lockscreen');
  const { newKeys } = await import('../../gateway/api/people/pages/keys.js');
  const self = { keys: await newKeys(), device: 'phone', tenant: '', subject: 'ada' };
  const db = { close() {}, transaction: () => { const made: any = { objectStore: () => ({ get: () => ({ result: self }) }) }; setTimeout(() => made.oncomplete(), 0); return made; } };
  const lost = () => { throw new TypeError('Failed to fetch'); };
  const by = (who: string) => () => new Response(JSON.stringify({ error: `already answered by ${who}`, by: who }), { status: 409 });
  const gives = (...answers: (() => Response)[]) => {
    const token = () => new Response('{"access_token":"a","expires_in":300}');
    Object.assign(globalThis, { indexedDB: { open: () => { const open: any = { result: db }; setTimeout(() => open.onsuccess(), 0); return open; } }, fetch: async (to: URL) => (to.pathname.endsWith('auth/token') ? token : answers.shift()!)() });
    return give('api/answers/1', undefined, [0]);
  };
  assert.deepEqual([await gives(lost, by('ada')), await gives(lost, by('bob')), await gives(by('ada'))], ['', 'already answered by bob', 'already answered by ada']);
});

// Waits for a person to approve this device, over a network that loses an answer, while the relay restarts, and at an address
// with too many requests. The device must ask again, and be signed in; a refusal ends the wait.
test('a device that waits for its approval outlasts a bad network', async (t) => {
  const had = { fetch: globalThis.fetch, indexedDB: (globalThis as any).indexedDB };
  t.after(() => Object.assign(globalThis, had));
  if (!('navigator' in globalThis)) Object.assign(globalThis, { navigator: {} });
  const { newKeys, whenApproved } = await import('../../gateway/api/people/pages/keys.js');
  const kept: any[] = [];
  const store = { put: (value: any) => { kept.push(value); return {}; }, delete: () => ({}) };
  const db = { close() {}, transaction: () => { const made: any = { objectStore: () => store }; setTimeout(() => made.oncomplete(), 0); return made; } };
  const pending = () => new Response('{"error":"authorization_pending"}', { status: 400 });
  const answers = [pending, () => { throw new TypeError('Failed to fetch'); }, () => new Response('<h1>Bad gateway</h1>', { status: 502 }), () => new Response('too many', { status: 429 }), pending,
    () => new Response('{"access_token":"a","expires_in":300,"device":"phone","tenant":"","subject":"ada"}'), () => new Response('{"error":"access_denied"}', { status: 400 })];
  Object.assign(globalThis, { indexedDB: { open: () => { const open: any = { result: db }; setTimeout(() => open.onsuccess(), 0); return open; } }, fetch: async () => answers.shift()!() });
  const keys = await newKeys();
  await whenApproved(keys, { device_code: 'd', interval: 0.001 });
  assert.deepEqual(kept.map((k) => k.device), ['phone']);
  await assert.rejects(whenApproved(keys, { device_code: 'd', interval: 0.001 }), /access_denied/);
});

// Accepts an invitation while the relay's store is away, and again when it is back. The relay has bound the invitation to the
// key of the first attempt, so the second must have the same one.
test('a further attempt to accept an invitation has the same key', async (t) => {
  const had = { fetch: globalThis.fetch, location: globalThis.location, indexedDB: (globalThis as any).indexedDB, navigator: Object.getOwnPropertyDescriptor(globalThis, 'navigator') };
  t.after(() => {
    Object.assign(globalThis, { fetch: had.fetch, location: had.location, indexedDB: had.indexedDB });
    if (had.navigator) Object.defineProperty(globalThis, 'navigator', had.navigator); else delete (globalThis as any).navigator;
    for (const name of ['document', 'history']) delete (globalThis as any)[name];
  });
  let submits: any;
  let went: (to: string) => void;
  const signedIn = new Promise<string>((resolve) => { went = resolve; });
  const said = { textContent: '' };
  const page: Record<string, object> = { name: { value: '' }, said, on: { firstChild: {} }, form: { addEventListener: (_: string, act: any) => { submits = act; } } };
  const store = { get: () => ({}), put: () => ({}), delete: () => ({}) };
  const db = { close() {}, transaction: () => { const made: any = { objectStore: () => store }; setTimeout(() => made.oncomplete(), 0); return made; } };
  const keys: string[] = [];
  Object.defineProperty(globalThis, 'navigator', { configurable: true, value: { userAgent: '' } });
  Object.assign(globalThis, {
    location: { hash: '#invite', pathname: '/setup', assign: (to: URL) => went(to.pathname) }, history: { replaceState() {} }, document: { getElementById: (id: string) => page[id] },
    indexedDB: { open: () => { const open: any = { result: db }; setTimeout(() => open.onsuccess(), 0); return open; } },
    fetch: async (_: URL, { headers }: { headers: Record<string, string> }) => {
      keys.push(JSON.parse(atob(headers.DPoP.split('.')[0].replaceAll('-', '+').replaceAll('_', '/'))).jwk.x);
      return keys.length === 1 ? new Response('{"error":"temporarily_unavailable"}', { status: 503 }) : new Response('{"access_token":"a","expires_in":300,"device":"phone","tenant":"","subject":"ada"}');
    },
  });
  await import('../../gateway/api/people/pages/setup.js');
  for (let n = 0; n < 2; n++) await submits({ preventDefault() {}, target: { querySelector: () => ({}) } });
  assert.match(await signedIn, /device$/);
  assert.deepEqual([keys.length, keys[0] === keys[1], said.textContent], [2, true, 'temporarily_unavailable']);
});

// Sets the phone's clock back after it has got a token. The relay refuses the token, which the page believes to be valid.
// The page must get another, and keep its sign-in. A second refusal counts.
test('a device renews a token that the relay refuses early', async (t) => {
  const had = { fetch: globalThis.fetch, indexedDB: (globalThis as any).indexedDB };
  t.after(() => Object.assign(globalThis, had));
  const { accessToken, call, newKeys } = await import('../../gateway/api/people/pages/keys.js');
  const valid = new Set(['second']);
  const tokens = ['second', 'third'];
  Object.assign(globalThis, {
    indexedDB: databaseOf({ keys: await newKeys(), device: 'phone', tenant: '', subject: 'ada' }),
    fetch: async (url: URL, { headers }: { headers: Record<string, string> }) => {
      if (url.pathname.endsWith('auth/token')) return new Response(JSON.stringify({ access_token: tokens.shift(), expires_in: 300 }));
      return valid.has(headers.Authorization.slice('DPoP '.length)) ? new Response('{"hosts":[]}') : new Response('{"error":"token expired"}', { status: 401 });
    },
  });
  const first = await accessToken(); // of an earlier test
  assert.deepEqual([await call('GET', 'api/hosts'), await accessToken(), first], [{ hosts: [] }, 'second', 'a']);
  valid.clear();
  await assert.rejects(call('GET', 'api/hosts'), { status: 401 });
  assert.deepEqual(tokens, []);
});

/** An element of a page, as far as Preact needs it. */
function element(): any {
  return {
    nodeType: 1, childNodes: [] as any[], parentNode: null as any, setAttribute() {}, removeAttribute() {}, addEventListener() {},
    get firstChild() { return this.childNodes[0] ?? null; },
    get nextSibling() { return this.parentNode?.childNodes[this.parentNode.childNodes.indexOf(this) + 1] ?? null; },
    insertBefore(child: any, before: any) {
      child.parentNode?.removeChild(child);
      this.childNodes.splice(before ? this.childNodes.indexOf(before) : this.childNodes.length, 0, child);
      child.parentNode = this;
      return child;
    },
    appendChild(child: any) { return this.insertBefore(child, null); },
    removeChild(child: any) {
      this.childNodes.splice(this.childNodes.indexOf(child), 1);
      child.parentNode = null;
    },
  };
}

// Opens a dialog with a part of the page that does not come, and closes it while the second request is under way. The page must
// ask for the part again while the dialog is open, and not afterwards: on a phone, the requests would go on for hours.
test('a part of the page that is not wanted any more is not requested', async (t) => {
  mock.timers.enable({ apis: ['setTimeout'] });
  Object.assign(globalThis, { document: { createElement: element, createElementNS: element, createTextNode: () => Object.assign(element(), { nodeType: 3 }) } });
  t.after(() => { mock.timers.reset(); delete (globalThis as any).document; });
  const { h, render } = await import('preact');
  const { later } = await import('../src/ui/later');
  const requests: ((err: Error) => void)[] = [];
  const Part = later(() => new Promise<any>((_, reject) => { requests.push(reject); }));
  const passes = async (seconds: number) => {
    for (let n = 0; n < seconds; n++) {
      mock.timers.tick(1000);
      for (let i = 0; i < 5; i++) await new Promise((done) => { setImmediate(done); });
    }
  };
  const page = element();
  render(h(Part, {}), page);
  await passes(2);
  assert.equal(requests.length, 1);
  requests[0](new Error('no network'));
  await passes(5);
  assert.equal(requests.length, 2);
  render(null, page);
  requests[1](new Error('no network'));
  await passes(20);
  assert.equal(requests.length, 2);
});
