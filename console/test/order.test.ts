// Tests the order of rows in the list: see ui/order.ts. TestConsolesScriptsPass runs this
// file.

import assert from 'node:assert/strict';
import { mock, test } from 'node:test';

Object.assign(globalThis, {
  sessionStorage: { getItem: () => null }, localStorage: { getItem: () => null }, location: { hash: '', hostname: 'relay.example' },
});

const working = 8;
const needs = 16 | 8;

test('rows keep their place during a press, then move', async () => {
  mock.timers.enable({ apis: ['setTimeout'] });
  const { app } = await import('../src/app');
  const { aim, groups, hold, letGo } = await import('../src/ui/order');
  const sessions = new Map<string, any>();
  const store = { sessions, listRevision: 0 };
  app.links.set('desk', { host: 'desk', store } as any);
  let drawn = 0;
  app.draw = () => { drawn++; };
  const says = (resource: string, status: number, modifiedAt: string) => {
    sessions.set(resource, { resource, status, modifiedAt });
    store.listRevision++;
  };
  const list = () => groups().map((g) => `${g.name}: ${g.rows.map((r) => `${r.session.resource}${r.session.status & 16 ? '!' : ''}`)}`);
  says('a', working, '2026-01-02');
  says('b', working, '2026-01-01');
  assert.deepEqual(list(), ['works: a,b']);

  hold();
  says('b', needs, '2026-01-03');
  says('new', needs, '2026-01-04');
  assert.deepEqual(list(), ['works: a,b!'], 'while a row is pressed');
  aim();
  letGo();
  assert.deepEqual(list(), ['works: a,b!'], 'while the pointer moves');
  mock.timers.tick(999);
  aim();
  mock.timers.tick(999);
  assert.deepEqual([list(), drawn], [['works: a,b!'], 0], 'while it goes on moving');
  mock.timers.tick(1);
  assert.deepEqual([list(), drawn], [['needs: new!,b!', 'works: a'], 1], 'when it rests');

  hold();
  sessions.delete('new');
  store.listRevision++;
  assert.deepEqual(list(), ['needs: b!', 'works: a'], 'what is gone is not there to be pressed');
  app.onlyHost = 'elsewhere';
  assert.deepEqual(list(), [], 'other sessions are asked for');
  app.onlyHost = '';
  says('b', working, '2026-01-01');
  assert.deepEqual(list(), ['works: a,b']);
  letGo();
  letGo();
  assert.equal(drawn, 2, 'drawn once, when it is let go');
});
