// Tests the reducers with a row for each action: state before, action, state after.
// null stands for the same state object.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { actionTypes, reduce, reducers } from '../src/reduce';

type Row = [before: any, action: any, after: any];

const turn = (...responseParts: any[]) => ({ id: 't', startedAt: '2026-01-01T00:00:00.000Z', message: { text: 'hi' }, responseParts, usage: undefined });
const chat = (activeTurn: any, more: any = {}) => ({ status: 1, turns: [], modifiedAt: '', activeTurn, ...more });
const call = (status: string, more: any = {}) => ({ kind: 'toolCall', toolCall: { status, toolCallId: 'c', toolName: 'sh', displayName: 'Shell', intention: undefined, contributor: undefined, _meta: undefined, ...more } });
const c = { turnId: 't', toolCallId: 'c' };
const options = [{ id: 'once', label: 'Once', kind: 'approve' }];
const ask = (more: any = {}) => ({ kind: 'inputRequest', request: { id: 'q', ...more } });
const mcp = { kind: 'mcp', customizationId: 'm' };
const server = { id: 'm', type: 'mcpServer', state: { kind: 'ready' }, channel: 'mcp://x' };

const rows: Row[] = [
  // the root
  [{ agents: [] }, { type: 'root/agentsChanged', agents: [1] }, { agents: [1] }],
  [{}, { type: 'root/activeSessionsChanged', activeSessions: 3 }, { activeSessions: 3 }],
  [{}, { type: 'root/terminalsChanged', terminals: [1] }, { terminals: [1] }],
  [{ config: { values: { a: 1 } } }, { type: 'root/configChanged', config: { b: 2 } }, { config: { values: { a: 1, b: 2 } } }],
  [{ config: { values: { a: 1 } } }, { type: 'root/configChanged', config: { b: 2 }, replace: true }, { config: { values: { b: 2 } } }],
  [{}, { type: 'root/configChanged', config: {} }, null],

  // sessions
  [{}, { type: 'session/ready' }, { lifecycle: 'ready' }],
  [{}, { type: 'session/creationFailed', error: { message: 'x' } }, { lifecycle: 'failed', creationError: { message: 'x' } }],
  [{ title: 'a' }, { type: 'session/titleChanged', title: 'b' }, { title: 'b' }],
  [{ status: 8 }, { type: 'session/isReadChanged', isRead: true }, { status: 40 }],
  [{ status: 65 }, { type: 'session/isArchivedChanged', isArchived: false }, { status: 1 }],
  [{ changesets: [1] }, { type: 'session/changesetsChanged' }, {}],
  [{ chats: [{ resource: 'a' }] }, { type: 'session/chatAdded', summary: { resource: 'a', title: 'A' } }, { chats: [{ resource: 'a', title: 'A' }] }],
  [{ chats: [{ resource: 'a' }], defaultChat: 'a' }, { type: 'session/chatRemoved', chat: 'a' }, { chats: [] }],
  [{ chats: [] }, { type: 'session/chatRemoved', chat: 'a' }, null],
  [{ chats: [{ resource: 'a', title: 'A' }] }, { type: 'session/chatUpdated', chat: 'a', changes: { resource: 'no', status: 8 } }, { chats: [{ resource: 'a', title: 'A', status: 8 }] }],
  [{ chats: [{ resource: 'a' }, { resource: 'b' }, { resource: 'c' }] }, { type: 'session/chatsReordered', chats: ['c', 'x', 'a'] }, { chats: [{ resource: 'c' }, { resource: 'a' }, { resource: 'b' }] }],
  [{}, { type: 'session/defaultChatChanged', defaultChat: 'a' }, { defaultChat: 'a' }],
  [{ activeClients: [{ clientId: 'a' }] }, { type: 'session/activeClientSet', activeClient: { clientId: 'a', tools: [] } }, { activeClients: [{ clientId: 'a', tools: [] }] }],
  [{ activeClients: [{ clientId: 'a' }] }, { type: 'session/activeClientRemoved', clientId: 'b' }, null],
  [{ workingDirectories: ['a', 'b', 'c'] }, { type: 'session/workingDirectoryReplaced', directory: 'c', replacement: 'a' }, { workingDirectories: ['a', 'b'] }],
  [{ workingDirectories: ['a', 'b', 'c'] }, { type: 'session/workingDirectoryReplaced', directory: 'a', replacement: 'c' }, { workingDirectories: ['c', 'b'] }],
  [{ workingDirectories: ['a'] }, { type: 'session/workingDirectorySet', directory: 'a' }, null],
  [{ status: 33 }, { type: 'session/inputNeededSet', request: { id: 'r', kind: 'chatInput' } }, { status: 56, inputNeeded: [{ id: 'r', kind: 'chatInput' }] }],
  // a call on a client's machine does not need the user
  [{ status: 8 }, { type: 'session/inputNeededSet', request: { id: 'r', kind: 'toolClientExecution' } }, { status: 8, inputNeeded: [{ id: 'r', kind: 'toolClientExecution' }] }],
  [{ status: 24, inputNeeded: [{ id: 'r' }] }, { type: 'session/inputNeededRemoved', id: 'r' }, { status: 8 }],
  [{}, { type: 'session/artifactSet', artifact: { uri: 'u', label: 'x' } }, { artifacts: [{ uri: 'u', label: 'x' }] }],
  [{ artifacts: [{ uri: 'u' }] }, { type: 'session/artifactRemoved', uri: 'u' }, { artifacts: [] }],
  [{ customizations: [{ id: 'p', type: 'plugin', enablement: [1] }] }, { type: 'session/customizationToggled', id: 'p', enablement: [] }, { customizations: [{ id: 'p', type: 'plugin' }] }],
  [{ customizations: [{ id: 'd', type: 'directory' }] }, { type: 'session/customizationToggled', id: 'd', enablement: [{ enabled: false }] }, { customizations: [{ id: 'd', type: 'directory', enabled: false }] }],
  [{ customizations: [null, { id: 'p', children: [null, server] }] }, { type: 'session/customizationRemoved', id: 'm' }, { customizations: [null, { id: 'p', children: [null] }] }],
  [{ customizations: [server] }, { type: 'session/mcpServerStateChanged', id: 'm', state: { kind: 'error' } }, { customizations: [{ ...server, state: { kind: 'error' }, channel: undefined }] }],
  [{ customizations: [server] }, { type: 'session/mcpServerStopRequested', id: 'm' }, { customizations: [{ ...server, state: { kind: 'stopped' }, channel: undefined }] }],
  [{ customizations: [{ ...server, state: { kind: 'starting', blocking: true } }] }, { type: 'session/mcpServerBackgroundRequested', id: 'm' }, { customizations: [{ ...server, state: { kind: 'starting', blocking: false } }] }],
  [{ customizations: [server] }, { type: 'session/mcpServerBackgroundRequested', id: 'm' }, null],

  // turns
  [chat(undefined, { status: 33, queuedMessages: [{ id: 'q' }], steeringMessage: { id: 's' } }), { type: 'chat/turnStarted', turnId: 't', startedAt: 'now', message: {}, queuedMessageId: 'q' },
    chat({ id: 't', startedAt: 'now', message: {}, responseParts: [], usage: undefined }, { status: 8, modifiedAt: 'now', queuedMessages: undefined, steeringMessage: { id: 's' } })],
  [chat(turn({ kind: 'markdown', id: 'p', content: 'a' })), { type: 'chat/delta', turnId: 't', partId: 'p', content: 'b' }, chat(turn({ kind: 'markdown', id: 'p', content: 'ab' }))],
  [chat(turn({ kind: 'markdown', id: 'p', content: 'a' })), { type: 'chat/delta', turnId: 'other', partId: 'p', content: 'b' }, null],
  [chat(turn({ kind: 'reasoning', id: 'p', content: 'a' })), { type: 'chat/delta', turnId: 't', partId: 'p', content: 'b' }, null],
  [chat(turn({ kind: 'reasoning', id: 'p', content: 'a' })), { type: 'chat/reasoning', turnId: 't', partId: 'p', content: 'b' }, chat(turn({ kind: 'reasoning', id: 'p', content: 'ab' }))],
  [chat(turn()), { type: 'chat/responsePart', turnId: 't', part: { kind: 'new' } }, chat(turn({ kind: 'new' }))], // whatever it is
  [chat(turn()), { type: 'chat/responsePart', turnId: 't', part: { kind: 'error' } }, null],
  [chat(turn()), { type: 'chat/usage', turnId: 't', usage: 1 }, chat({ ...turn(), usage: 1 })],
  [chat(turn(call('running', { invocationMessage: 'i' })), { status: 40 }), { type: 'chat/turnComplete', turnId: 't', duration: 1500 },
    chat(undefined, { status: 33, modifiedAt: '2026-01-01T00:00:01.500Z', turns: [{ ...turn(call('cancelled', { invocationMessage: 'i', toolInput: undefined, reason: 'skipped' })), duration: 1500, state: 'complete' }] })],
  [chat(turn(), { status: 8 }), { type: 'chat/turnCancelled', turnId: 'other', duration: 1 }, null],
  [chat(turn(), { status: 8 }), { type: 'chat/error', turnId: 't', duration: -1, part: { kind: 'error', resumable: true } },
    chat(undefined, { status: 2, modifiedAt: '2026-01-01T00:00:00.000Z', turns: [{ ...turn({ kind: 'error', resumable: true }), duration: 0, state: 'error' }] })],
  [chat(undefined, { turns: [{ ...turn({ kind: 'error', resumable: true }), state: 'error' }], status: 34 }), { type: 'chat/turnResume', turnId: 't' }, chat(turn({ kind: 'error', resumable: true }), { status: 8 })],
  [chat(undefined, { turns: [{ ...turn({ kind: 'error' }), state: 'error' }] }), { type: 'chat/turnResume', turnId: 't' }, null],
  [chat(turn(), { turns: [{ id: '1' }, { id: '2' }], turnsNextCursor: 'x' }), { type: 'chat/truncated', turnId: '1' }, chat(undefined, { turns: [{ id: '1' }], turnsNextCursor: 'x' })],
  [chat(undefined, { turns: [{ id: '1' }], turnsNextCursor: 'x' }), { type: 'chat/truncated' }, chat(undefined)],
  [chat(undefined, { turns: [{ id: '2' }], turnsNextCursor: 'x' }), { type: 'chat/turnsLoaded', turns: [{ id: '1' }, { id: '2' }] }, chat(undefined, { turns: [{ id: '1' }, { id: '2' }], turnsNextCursor: undefined })],

  // tool calls
  [chat(turn()), { type: 'chat/toolCallStart', ...c, toolName: 'sh', displayName: 'Shell' }, chat(turn(call('streaming')))],
  [chat(turn(call('streaming'))), { type: 'chat/toolCallDelta', ...c, content: 'x' }, chat(turn(call('streaming', { partialInput: 'x', invocationMessage: undefined })))],
  [chat(turn(call('running'))), { type: 'chat/toolCallDelta', ...c, content: 'x' }, null],
  [chat(turn(call('streaming'))), { type: 'chat/toolCallReady', ...c, invocationMessage: 'i', toolInput: 'ls', options, edits: 1, riskAssessment: 2, editable: true },
    chat(turn(call('pending-confirmation', { invocationMessage: 'i', toolInput: 'ls', confirmationTitle: undefined, riskAssessment: 2, edits: 1, editable: true, options })), { status: 24 })],
  // the risk comes later: an earlier assessment stays
  [chat(turn(call('pending-confirmation', { toolInput: 'ls', options })), { status: 24 }), { type: 'chat/toolCallReady', ...c, invocationMessage: 'i', riskAssessment: 3 },
    chat(turn(call('pending-confirmation', { invocationMessage: 'i', toolInput: 'ls', confirmationTitle: undefined, riskAssessment: 3, edits: undefined, editable: undefined, options })), { status: 24 })],
  [chat(turn(call('pending-confirmation', { invocationMessage: 'i', toolInput: 'ls', options })), { status: 24 }), { type: 'chat/toolCallConfirmed', ...c, approved: true, confirmed: 'user-action', selectedOptionId: 'once', editedToolInput: 'ls -l' },
    chat(turn(call('running', { invocationMessage: 'i', toolInput: 'ls -l', confirmed: 'user-action', selectedOption: options[0] })), { status: 8 })],
  [chat(turn(call('pending-confirmation', { toolInput: { uri: 'x:y' } })), { status: 24 }), { type: 'chat/toolCallConfirmed', ...c, approved: true, confirmed: 'user-action', editedToolInput: 'no' },
    chat(turn(call('running', { invocationMessage: undefined, toolInput: { uri: 'x:y' }, confirmed: 'user-action' })), { status: 8 })],
  [chat(turn(call('pending-confirmation')), { status: 24 }), { type: 'chat/toolCallConfirmed', ...c, approved: false, reason: 'denied' },
    chat(turn(call('cancelled', { invocationMessage: undefined, toolInput: undefined, reason: 'denied', reasonMessage: undefined, userSuggestion: undefined })), { status: 8 })],
  [chat(turn(call('running')), { status: 8 }), { type: 'chat/toolCallConfirmed', ...c, approved: false, reason: 'denied' }, null], // the first answer counts
  [chat(turn(call('running', { invocationMessage: 'i', confirmed: 'setting' })), { status: 8 }), { type: 'chat/toolCallComplete', ...c, requiresResultConfirmation: true, result: { success: true } },
    chat(turn(call('pending-result-confirmation', { invocationMessage: 'i', toolInput: undefined, confirmed: 'setting', success: true })), { status: 24 })],
  [chat(turn(call('pending-confirmation')), { status: 24 }), { type: 'chat/toolCallComplete', ...c, result: { success: true } },
    chat(turn(call('completed', { invocationMessage: undefined, toolInput: undefined, confirmed: 'not-needed', success: true })), { status: 8 })],
  [chat(turn(call('pending-result-confirmation', { confirmed: 'setting', success: true, content: [1] })), { status: 24 }), { type: 'chat/toolCallResultConfirmed', ...c, approved: false },
    chat(turn(call('cancelled', { invocationMessage: undefined, toolInput: undefined, reason: 'result-denied' })), { status: 8 })],
  [chat(turn(call('running', { contributor: mcp, content: [1] })), { status: 8 }), { type: 'chat/toolCallAuthRequired', ...c, auth: 'a' },
    chat(turn(call('auth-required', { contributor: mcp, invocationMessage: undefined, toolInput: undefined, confirmed: undefined, content: [1], auth: 'a' })), { status: 24 })],
  [chat(turn(call('running')), { status: 8 }), { type: 'chat/toolCallAuthRequired', ...c, auth: 'a' }, null],
  [chat(turn(call('auth-required')), { status: 24 }), { type: 'chat/toolCallComplete', ...c, result: { success: true } }, null], // it never went on
  [chat(turn(call('running'))), { type: 'chat/toolCallContentChanged', ...c, content: [2] }, chat(turn(call('running', { content: [2] })))],

  // questions
  [chat(turn(), { status: 40 }), { type: 'chat/inputRequested', request: { id: 'q' } }, chat(turn(ask()), { status: 24 })],
  [chat(turn(ask({ answers: { a: 1 } })), { status: 24 }), { type: 'chat/inputRequested', request: { id: 'q', message: 'm' } }, chat(turn(ask({ message: 'm', answers: { a: 1 } })), { status: 24 })],
  [chat(turn(ask({ answers: { a: 1 } }))), { type: 'chat/inputAnswerChanged', requestId: 'q', questionId: 'a' }, chat(turn(ask({ answers: undefined })))],
  [chat(turn(ask({ answers: { a: 1 } })), { status: 24 }), { type: 'chat/inputCompleted', requestId: 'q', response: 'accept', answers: { b: 2 } },
    chat(turn({ ...ask({ answers: { a: 1, b: 2 } }), response: 'accept' }), { status: 8 })],
  [chat(turn({ ...ask(), response: 'accept' })), { type: 'chat/inputCompleted', requestId: 'q', response: 'decline' }, null],

  // queued messages
  [chat(undefined), { type: 'chat/pendingMessageSet', kind: 'queued', id: 'm', message: 1 }, chat(undefined, { queuedMessages: [{ id: 'm', message: 1 }] })],
  [chat(undefined), { type: 'chat/pendingMessageSet', kind: 'steering', id: 'm', message: 1 }, chat(undefined, { steeringMessage: { id: 'm', message: 1 } })],
  [chat(undefined, { queuedMessages: [{ id: 'm' }] }), { type: 'chat/pendingMessageRemoved', kind: 'queued', id: 'm' }, chat(undefined, { queuedMessages: undefined })],
  [chat(undefined, { steeringMessage: { id: 'm' } }), { type: 'chat/pendingMessageRemoved', kind: 'steering', id: 'x' }, null],
  [chat(undefined, { queuedMessages: [{ id: 'a' }, { id: 'b' }] }), { type: 'chat/queuedMessagesReordered', order: ['b'] }, chat(undefined, { queuedMessages: [{ id: 'b' }, { id: 'a' }] })],
  [chat(undefined), { type: 'chat/draftChanged', draft: 1 }, chat(undefined, { draft: 1 })],
  [chat(undefined), { type: 'chat/backgroundWorkSet', work: { id: 'w' } }, chat(undefined, { backgroundWork: [{ id: 'w' }] })],
  [chat(undefined, { backgroundWork: [{ id: 'w' }] }), { type: 'chat/backgroundWorkRemoved', id: 'w' }, chat(undefined)],
  [chat(undefined, { canvases: [1] }), { type: 'chat/canvasesChanged' }, chat(undefined)],

  // other channels
  [{ files: [{ id: 'a' }] }, { type: 'changeset/fileSet', file: { id: 'b' } }, { files: [{ id: 'a' }, { id: 'b' }] }],
  [{ files: [{ id: 'a' }] }, { type: 'changeset/fileRemoved', fileId: 'b' }, null],
  [{ files: [{ id: 'a' }, { id: 'b' }] }, { type: 'changeset/filesReviewChanged', files: ['b'], reviewed: true }, { files: [{ id: 'a' }, { id: 'b', reviewed: true }] }],
  [{ status: 'ready', files: [], operations: [1] }, { type: 'changeset/contentChanged', files: [{ id: 'a' }], error: { message: 'gone' } }, { status: 'ready', files: [{ id: 'a' }], operations: [1], error: { message: 'gone' } }],
  [{ files: [{ id: 'a' }], error: { message: 'gone' } }, { type: 'changeset/contentChanged', files: [], operations: [2] }, { files: [], operations: [2] }],
  [{ status: 'error', error: 1 }, { type: 'changeset/statusChanged', status: 'ready' }, { status: 'ready' }],
  [{ operations: [{ id: 'o', error: 1 }] }, { type: 'changeset/operationStatusChanged', operationId: 'o', status: 'running' }, { operations: [{ id: 'o', status: 'running' }] }],
  [{ operations: [] }, { type: 'changeset/operationsChanged' }, {}],
  [{ files: [] }, { type: 'changeset/cleared' }, null],
  [{ annotations: [{ id: 'a', entries: [] }] }, { type: 'annotations/entrySet', annotationId: 'a', entry: { id: 'e' } }, { annotations: [{ id: 'a', entries: [{ id: 'e' }] }] }],
  [{ annotations: [{ id: 'a' }] }, { type: 'annotations/updated', annotationId: 'a', resolved: true }, { annotations: [{ id: 'a', resolved: true }] }],
  [{ content: [] }, { type: 'terminal/data', data: 'x' }, { content: [{ type: 'unclassified', value: 'x' }] }],
  [{ content: [{ type: 'command', output: 'a', isComplete: false }] }, { type: 'terminal/data', data: 'x' }, { content: [{ type: 'command', output: 'ax', isComplete: false }] }],
  [{ content: [{ type: 'command', commandId: 'c' }] }, { type: 'terminal/commandFinished', commandId: 'c', exitCode: 1 }, { content: [{ type: 'command', commandId: 'c', isComplete: true, exitCode: 1, durationMs: undefined }] }],
  [{ title: 'a', url: 'u' }, { type: 'canvas/updated', title: 'b', url: null }, { title: 'b' }],
  [{ title: 'a' }, { type: 'canvas/stateChanged', canvas: { url: 'u' } }, { url: 'u' }],
  [{ entries: [] }, { type: 'automation/set', automation: { resource: 'r' } }, { entries: [{ resource: 'r' }] }],
  [{ sessions: ['a'], primarySession: 'a' }, { type: 'automationRun/sessionRemoved', session: 'a' }, { sessions: [] }],
];

function freeze(value: any): any {
  if (value !== null && typeof value === 'object' && !Object.isFrozen(value)) {
    Object.freeze(value);
    Object.values(value).forEach(freeze);
  }
  return value;
}

test('actions change states as in AHP, never in place', () => {
  for (const [before, action, after] of rows) {
    const got = reduce(freeze(before), freeze(action));
    if (after === null) assert.equal(got, before, JSON.stringify(action));
    else {
      assert.deepEqual(got, after, JSON.stringify(action));
      assert.notEqual(got, before);
    }
  }
});

test('unknown actions differ from actions without effect', () => {
  for (const type of ['chat/new', 'x-other/thing', '__proto__', 'constructor/constructor', 'chat', '', 7, undefined]) assert.equal(reduce({}, { type } as any), undefined);
  const state = {};
  assert.equal(reducers.chat(state, { type: 'session/ready' }), state);
  assert.equal(actionTypes.length, new Set(actionTypes).size);
  for (const type of actionTypes) assert.equal(typeof reducers[type.split('/')[0]], 'function');
});
