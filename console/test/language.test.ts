import assert from 'node:assert/strict';
import { test } from 'node:test';

test('the language is the chosen one, or the first of the browser that the page has', async () => {
  const { languageOf } = await import('../src/language/choice');
  assert.deepEqual(languageOf('', ['fr-FR', 'de-AT', 'en-US']), { language: 'de', locale: 'de-AT' });
  assert.deepEqual(languageOf('ja', ['de-AT']), { language: 'ja', locale: 'ja' });
  assert.deepEqual(languageOf('', ['fr-FR']), { language: 'en', locale: 'en' });
  assert.deepEqual(languageOf('', []), { language: 'en', locale: 'en' });
  assert.deepEqual(languageOf('', ['ar-EG']), { language: 'ar', locale: 'ar-EG-u-nu-latn' });
});

test('texts take their values, and numbers choose the form', async () => {
  const { listed, plural, rich, rounded, t } = await import('../src/language');
  assert.equal(t`Host ${'a'} since ${1234}`, 'Host a since 1,234');
  assert.equal(t`{0} stays`, '{0} stays');
  assert.equal(plural(1, '{0} host', '{0} hosts'), '1 host');
  assert.equal(plural(0, '{0} host', '{0} hosts'), '0 hosts');
  assert.equal(plural(2, '{1} of {0} host', '{1} of {0} hosts', 1), '1 of 2 hosts');
  assert.deepEqual(rich`By ${'x'}.`, ['By ', 'x', '.']);
  assert.equal(listed(['a', 'b']), 'a and b');
  assert.equal(rounded(12_345), '12.3K');
});

test('notifications are written in each language from what they are about', async () => {
  const { saysIn, texts } = await import('../src/language/worker');
  const told = { kind: 'approval', host: 'laptop', says: 'laptop: needs your approval' };
  assert.equal(saysIn('en', told), 'laptop: needs your approval');
  assert.equal(saysIn('de', told), 'laptop: bittet um Ihre Erlaubnis');
  assert.equal(saysIn('ar', { ...told, kind: 'of a version to come' }), 'laptop: needs your approval');
  assert.equal(saysIn('ja', { kind: 'test', says: 'AHP relay: this is a test' }), 'AHP relay: これはテストです');
  for (const { says } of [texts.de, texts.ja, texts.ar]) assert.deepEqual(Object.keys(says), Object.keys(texts.de.says));
});

test('the buttons of a notification are translated, unless a host names them', async () => {
  const { actionsOf } = await import('../src/lockscreen');
  const { texts } = await import('../src/language/worker');
  const offered = [{ label: 'Deny', path: 'api/answers/a', text: false }, { label: 'Use tabs', path: 'api/answers/b', text: false }];
  assert.deepEqual(actionsOf(offered, 2, false, texts.de).map((a) => a.title), ['Ablehnen', 'Use tabs']);
});
