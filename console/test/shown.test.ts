// What is shown of hosts' words, where no page is needed for it.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { answerFor, safeUrl, sortOptions } from '../src/answers';
import { linesOf, pairs } from '../src/differences';
import { commandOf, plain } from '../src/words';

test('the host\'s options, narrowest first, by their own labels', () => {
  const options = [{ id: 'allow-session', label: 'Allow in this Session', kind: 'approve', group: 1 }, { id: 'allow-once', label: 'Allow Once', kind: 'approve' }, { id: 'skip', label: 'Skip', kind: 'deny' }];
  const sorted = sortOptions(options);
  assert.deepEqual([sorted.once, sorted.deny, sorted.wider].map((l) => l.map((o) => o.id)), [['allow-once'], ['skip'], ['allow-session']]);
  const plainly = sortOptions([{ id: 'yes', label: 'Go', kind: 'approve' }, { id: 'always', label: 'Always', kind: 'approve' }, { id: 'x', label: 'Odd', kind: 'x-new' }]);
  assert.deepEqual([plainly.once.map((o) => o.id), plainly.wider.map((o) => o.id)], [['yes', 'x'], ['always']]);
});

test('answers in the form of the protocol', () => {
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

test('addresses of strangers', () => {
  assert.equal(safeUrl('https://example.com/a'), 'https://example.com/a');
  for (const bad of ['javascript:alert(1)', 'java\nscript:alert(1)', 'https://me@example.com/', 'data:text/html,x', 'file:///etc/passwd', '', 7, null]) assert.equal(safeUrl(bad), '');
});

test('what terminals are told besides words is left out', () => {
  assert.equal(plain('\x1b[31mred\x1b[0m\r\n\x1b]0;title\x07\x1b]8;;javascript:x\x1b\\link\x1b]8;;\x07\x00!'), 'red\nlink!');
  assert.equal(commandOf('{"command":"ls"}'), 'ls');
  assert.equal(commandOf('{"command":["ls","-l"]}'), 'ls -l');
  assert.equal(commandOf('ls'), 'ls');
});

test('differences, with some lines around', () => {
  const same = Array.from({ length: 10 }, (_, i) => `${i}\n`).join('');
  const lines = linesOf([{ value: same }, { removed: true, value: 'a\nb\n' }, { added: true, value: 'c\n' }, { value: same }]);
  assert.deepEqual(lines.map((l) => l.kind).join(''), '@   --+   @');
  assert.deepEqual(lines[0], { kind: '@', text: '7 lines' });
  assert.deepEqual([lines[4].old, lines[6].now, lines[7].old, lines[7].now], [11, 11, 13, 12]);
  assert.deepEqual(pairs(lines).map(([a, b]) => `${a?.text ?? '-'}|${b?.text ?? '-'}`).slice(4, 6), ['a|c', 'b|-']);
});
