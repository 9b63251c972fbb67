// Runs the page's approval rule against the table shared with notifications.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { sortOptions } from '../src/answers';
import { offerOf, requestKey, textOfRead, visible } from '../src/approval';
import table from '../../hostagent/watch/testdata/approvals.json';

test('a request can be allowed only after all of it has loaded', () => {
  for (const { name, call, page, unread = page, order } of table as any[]) {
    assert.equal(offerOf(call, () => 'shown', true).allow, page, name);
    for (const state of ['loading', { why: 'no' }] as any[]) {
      const offer = offerOf(call, () => state, false);
      assert.equal(offer.allow, unread, name);
      assert.equal(offer.why === '', offer.allow !== 'no', `${name}: the reason is ${JSON.stringify(offer.why)}`);
    }
    const { once, deny, wider } = sortOptions(call.options ?? []);
    assert.deepEqual([...once, ...deny, ...wider].map((o: any) => o.id), order, name);
  }
});

test('requests have different keys exactly if they differ', () => {
  const call = { toolCallId: '1', toolInput: 'ls', riskAssessment: { status: 'loading' } };
  assert.equal(requestKey(call), requestKey({ ...call }));
  const twice = { ...call, options: [{ id: 'a', label: 'A' }] };
  assert.equal(requestKey(twice), requestKey({ options: [{ label: 'A', id: 'a' }], riskAssessment: call.riskAssessment, toolInput: 'ls', toolCallId: '1' }));
  assert.notEqual(requestKey(call), requestKey({ ...call, toolInput: 'rm' }));
  assert.notEqual(requestKey(call), requestKey({ ...call, riskAssessment: { status: 'complete', safety: 0 } }));
});

test('a read returns text or an error', () => {
  assert.equal(textOfRead({ data: 'ls', encoding: 'utf-8' }), 'ls');
  assert.equal(textOfRead({ data: 'bHM=', encoding: 'base64' }), 'ls');
  for (const wrong of [null, 7, {}, { data: 7 }, { data: ['ls'] }, { data: 'ls', encoding: 'x' }, { data: '!', encoding: 'base64' }, { data: 'iVBORw0KGgo=', encoding: 'base64' }, { data: 'l\0s' }] as any[]) {
    assert.throws(() => textOfRead(wrong), JSON.stringify(wrong));
  }
});

test('invisible and reordering characters of a command are marked', () => {
  assert.equal(visible('ls\n\t-l ä 😀'), 'ls\n\t-l ä 😀');
  assert.equal(visible('a\u202eb\u200bc\rd\x1b[2K'), 'a⟨U+202E⟩b⟨U+200B⟩c⟨U+000D⟩d⟨U+001B⟩[2K');
});
