// Tests the display of a host's texts, where no page is needed.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { answerFor, safeUrl, sortOptions } from '../src/answers';
import { Blocks } from '../src/blocks';
import { linesOf, pairs } from '../src/differences';
import { pieces, rangeOf } from '../src/ui/near';
import { treeOf } from '../src/ui/tree';
import { below, chatBeside, commandIn, commandOf, parentOf, plain, pretty } from '../src/words';

test('the host\'s options, narrowest first, by their own labels', () => {
  const options = [{ id: 'allow-session', label: 'Allow in this Session', kind: 'approve', group: 1 }, { id: 'allow-once', label: 'Allow Once', kind: 'approve' }, { id: 'skip', label: 'Skip', kind: 'deny' }];
  const sorted = sortOptions(options);
  assert.deepEqual([sorted.once, sorted.deny, sorted.wider].map((l) => l.map((o) => o.id)), [['allow-once'], ['skip'], ['allow-session']]);
  const plainly = sortOptions([{ id: 'yes', label: 'Go', kind: 'approve' }, { id: 'always', label: 'Always', kind: 'approve' }, { id: 'x', label: 'Odd', kind: 'x-new' }]);
  assert.deepEqual([plainly.once, plainly.deny, plainly.wider].map((l) => l.map((o) => o.id)), [['yes'], ['x'], ['always']]);
});

test('answers have the protocol\'s form', () => {
  for (const [q, entered, want] of [
    [{ kind: 'text' }, { value: '' }, undefined],
    [{ kind: 'text' }, { value: 'a' }, { kind: 'text', value: 'a' }],
    [{ kind: 'integer' }, { value: '7' }, { kind: 'number', value: 7 }],
    [{ kind: 'integer' }, { value: '7.5' }, undefined],
    [{ kind: 'number' }, { value: '' }, undefined],
    [{ kind: 'boolean' }, {}, { kind: 'boolean', value: false }],
    [{ kind: 'single-select' }, {}, undefined],
    [{ kind: 'single-select' }, { free: ' other ' }, { kind: 'selected', value: '', freeformValues: ['other'] }],
    [{ kind: 'multi-select', max: 1 }, { value: ['a', 'b'] }, undefined],
    [{ kind: 'multi-select' }, { value: ['a'] }, { kind: 'selected-many', value: ['a'] }],
  ] as [any, any, any][]) assert.deepEqual(answerFor(q, entered)?.value, want, JSON.stringify([q, entered]));
});

test('a path is shown from the session\'s folder on', async () => {
  const { shortPathOf } = await import('../src/words');
  assert.equal(shortPathOf('file:///w/shop/a%20b/c.go', ['file:///else', 'file:///w/shop/']), 'a b/c.go');
  for (const whole of ['file:///w/shopper/c.go', 'file:///etc/passwd', 'file:///w/shop']) assert.equal(shortPathOf(whole, ['file:///w/shop']), whole.slice(7));
});

test('only web addresses are opened', () => {
  assert.equal(safeUrl('https://example.com/a'), 'https://example.com/a');
  for (const bad of ['javascript:alert(1)', 'java\nscript:alert(1)', 'https://me@example.com/', 'data:text/html,x', 'file:///etc/passwd', '', 7, null]) assert.equal(safeUrl(bad), '');
});

test('escape sequences are removed', () => {
  assert.equal(plain('\x1b[31mred\x1b[0m\r\n\x1b]0;title\x07\x1b]8;;javascript:x\x1b\\link\x1b]8;;\x07\x00!'), 'red\nlink!');
  assert.equal(commandOf('{"command":"ls"}'), 'ls');
  assert.equal(commandOf('{"command":["ls","-l"]}'), 'ls -l');
  assert.equal(commandOf('ls'), 'ls');
});

test('differences have context lines', () => {
  const same = Array.from({ length: 10 }, (_, i) => `${i}\n`).join('');
  const lines = linesOf([{ value: same }, { removed: true, value: 'a\nb\n' }, { added: true, value: 'c\n' }, { value: same }]);
  assert.deepEqual(lines.map((l) => l.kind).join(''), '@   --+   @');
  assert.deepEqual(lines[0], { kind: '@', text: '7 lines' });
  assert.deepEqual([lines[4].old, lines[6].now, lines[7].old, lines[7].now], [11, 11, 13, 12]);
  assert.deepEqual(pairs(lines).map(([a, b]) => `${a?.text ?? '-'}|${b?.text ?? '-'}`).slice(4, 6), ['a|c', 'b|-']);
});

test('only visible rows are drawn, and the rest keeps its height', () => {
  let seed = 7;
  const random = (n: number) => { seed = (seed * 48271) % 2147483647; return seed % n; };
  for (let round = 0; round < 200; round++) {
    const heights = Array.from({ length: random(400) }, () => 20 + random(90));
    const height = (row: number) => heights[row];
    const whole = heights.reduce((a, b) => a + b, 0);
    const top = random(whole + 400) - 200;
    const bottom = top + random(1500);
    const [from, to] = rangeOf(heights.length, top, bottom, height);
    const kept = random(heights.length + 2) - 1;
    const all = pieces(heights.length, from, to, kept, height);
    const drawn = new Set(all.flatMap((p) => ('row' in p ? [p.row] : [])));
    assert.equal(all.reduce((sum, p) => sum + ('row' in p ? height(p.row) : p.gap), 0), whole);
    let y = 0;
    for (const [row, h] of heights.entries()) {
      if (y + h > top && y < bottom) assert.ok(drawn.has(row), `row ${row} of ${heights.length} is seen, and not drawn`);
      y += h;
    }
    assert.ok(drawn.size <= (bottom - top) / 20 + 2 * 8 + 3, `${drawn.size} rows are drawn for ${bottom - top} px`);
    if (kept >= 0 && kept < heights.length) assert.ok(drawn.has(kept));
  }
});

test('chats form a tree', () => {
  const chats = [{ resource: 'b', origin: { kind: 'tool', chat: 'a' } }, { resource: 'a' }, { resource: 'c', parentChat: 'b' }, { resource: 'x', parentChat: 'y' }, { resource: 'y', parentChat: 'x' }, { resource: 'd', origin: { kind: 'fork', chat: 'gone' } }];
  assert.deepEqual(treeOf(chats).map(({ chat, depth }) => `${depth}${chat.resource}`), ['0a', '1b', '2c', '0d', '0x', '1y']);
});

test('folder URIs are joined and split', () => {
  for (const [uri, want] of [['file:///a/b', 'file:///a'], ['file:///a', 'file:///'], ['file:///', ''], ['vscode-vfs://github/x', 'vscode-vfs://github/'], ['x:y', '']]) assert.equal(parentOf(uri), want, uri);
  assert.equal(below('file:///', 'a b'), 'file:///a%20b');
  assert.equal(below('file:///a', 'ü'), 'file:///a/%C3%BC');
});

test('new chats follow the host\'s URI form', () => {
  assert.equal(chatBeside('ahp-chat://default/Y29waWxvdA', '12-ab'), 'ahp-chat://12-ab/Y29waWxvdA');
  for (const first of ['', 'ahp-chat:/9', 'x-chat://default/9']) assert.equal(chatBeside(first, '12-ab'), 'ahp-chat:/12-ab');
});

test('a growing answer is drawn as if complete, and finished text stays', () => {
  const piece = '# Head\n\nWords *of* some\nkind.\n\n- one\n- two\n\n  more of two\n\n```go\nx := 1\n\ny := 2\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n> quoted\n\nThe end of it.\n\n';
  const text = piece.repeat(12);
  for (const step of [1, 7, 300]) {
    const blocks = new Blocks();
    let had: string[][] = [];
    for (let n = step; ; n += step) {
      const said = text.slice(0, n);
      const runs = blocks.of(said);
      assert.equal(runs.flat().join(''), said);
      for (const [i, run] of runs.entries()) {
        assert.ok(run.length <= 16 && (run.length === 16 || i === runs.length - 1), `run ${i} of ${runs.length} has ${run.length} blocks`);
        if (i < had.length - 2) assert.equal(run, had[i], 'a run that had ended is another'); // the very same
      }
      had = runs;
      if (n >= text.length) break;
    }
    assert.deepEqual(had.flat(), new Blocks().of(text).flat());
  }
  assert.deepEqual(new Blocks().of('').flat().join(''), '');
});

// Shows inputs that JSON.parse changes: it keeps the last of two members with one name, and rounds long numbers. A
// request must show the host's text instead, because the tool may read the other value.
test('an input is shown as the host has sent it', () => {
  for (const input of ['{"id":9007199254740993}', '{"to":"a","to":"b"}', '{"x":{"y":1e400}}', '{"2":1,"1":2}']) assert.equal(pretty(input), input);
  for (const input of ['{"command":"rm -r /","command":"ls"}', '{"cmd":"ls","n":12345678901234567890}', '{"command":["rm"],"command":"ls"}']) assert.deepEqual(commandIn(input), { command: '', whole: false }, input);
  assert.equal(pretty('{"a\\u003c":"\\"x\\u00e9\\/", "n": [1.0, -2.5,true]}'), JSON.stringify({ 'a<': '"xé/', n: [1, -2.5, true] }, null, 2));
  assert.deepEqual(commandIn('{ "command": "a \\u0026\\u0026 b", "timeout": 120.0 }'), { command: 'a && b', whole: false });
  assert.deepEqual(commandIn('{"command":"ls"}'), { command: 'ls', whole: true });
  assert.deepEqual([pretty('7'), pretty('ls "'), pretty('"\\u0041"')], ['7', 'ls "', '"\\u0041"']);
});
