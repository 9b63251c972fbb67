// A model on loopback without a model: answers OpenAI's chat completions and responses, Anthropic's messages and Gemini's
// streamGenerateContent with a script, so that real coding agents run whole turns here.
//   node model.mjs PORT     prompts: "run COMMAND" (a shell tool call), "write FILE TEXT" (a file tool call), "ask" (a question to the user), else an
// echo in 20 pieces
// A tool's answer ends the turn with "done: …", without directories. Each request is logged on stderr, one line.
import http from 'node:http'
const port = Number(process.argv[2] ?? 18080)
const pause = ms => new Promise(r => setTimeout(r, ms))
const text = c => typeof c === 'string' ? c : (c || []).map(p => p.text || '').join('\n')
// what the script says to a conversation: {say} or {tool, args}
function next(messages, tools) {
  const last = messages.at(-1) || {}
  if (last.role === 'tool') return { say: 'done: ' + String(last.text).replace(/\/[^\s"\\]*\//g, '').slice(0, 120) }
  const user = [...messages].reverse().find(m => m.role === 'user')
  const ask = (user?.text || '').trim().split('\n').map(l => l.trim()).filter(l => /^(run |write |ask$)/.test(l)).at(-1) || (user?.text || '').trim().split('\n').at(-1)
  const find = re => tools.find(t => re.test(t))
  let m
  if ((m = /^run (.+)$/s.exec(ask)) && find(/^(bash|shell|run_shell_command|exec_command|Bash)$/)) {
    const t = find(/^(bash|shell|run_shell_command|exec_command|Bash)$/)
    return { tool: t, args: t === 'shell' ? { command: ['bash', '-lc', m[1]] } : t === 'exec_command' ? { cmd: m[1], sandbox_permissions: 'require_escalated', justification: 'May this run?' } : { command: m[1], description: 'Runs ' + m[1] } }
  }
  if ((m = /^write (\S+) (.+)$/s.exec(ask)) && find(/^(write|write_file|Write|edit)$/)) {
    const t = find(/^(write|write_file|Write)$/)
    return { tool: t, args: t === 'write' ? { filePath: m[1], content: m[2] + '\n' } : { file_path: m[1], content: m[2] + '\n' } }
  }
  if (m && find(/^exec_command$/)) {
    return { tool: 'exec_command', args: { cmd: `apply_patch <<'EOF'\n*** Begin Patch\n*** Add File: ${m[1]}\n+${m[2]}\n*** End Patch\nEOF` } }
  }
  const question = find(/^(AskUserQuestion|ask_user|question|request_user_input)$/)
  if (ask === 'ask' && question) {
    const options = ['Red', 'Blue'].map(label => ({ label, description: label + ' it is' }))
    return { tool: question, args: { questions: [{ id: 'colour', header: 'Colour', question: 'Which colour do you want?', multiSelect: false, type: 'choice', options }] } }
  }
  if (ask === 'recall') return { say: 'recalled: ' + [...new Set(messages.flatMap(m => m.role === 'user' ? String(m.text).match(/remember \w+/g) || [] : []))].join(' ') }
  return { say: 'echo: ' + ask }
}
const pieces = s => s.match(new RegExp(`.{1,${Math.max(1, Math.ceil(s.length / 20))}}`, 'gs')) || ['']
http.createServer(async (q, r) => {
  let body = ''; for await (const c of q) body += c
  const j = body ? JSON.parse(body) : {}
  const sse = () => r.writeHead(200, { 'content-type': 'text/event-stream' })
  const ev = (o, name) => r.write((name ? `event: ${name}\n` : '') + `data: ${typeof o === 'string' ? o : JSON.stringify(o)}\n\n`)
  console.error(q.method, q.url, body.length, (j.tools || []).map(t => t.name || t.function?.name || t.type).join(' '))
  if (/\/models$/.test(q.url)) { r.setHeader('content-type', 'application/json'); return r.end(JSON.stringify({ object: 'list', data: [{ id: 'scripted', object: 'model' }] })) }
  if (/chat\/completions/.test(q.url)) {
    const ms = j.messages.map(m => ({ role: m.role, text: text(m.content) }))
    const a = next(ms, (j.tools || []).map(t => t.function?.name)); const id = 'c' + Date.now()
    const part = (delta, finish = null) => ({ id, object: 'chat.completion.chunk', model: j.model, created: 1, choices: [{ index: 0, delta, finish_reason: finish }] })
    if (!j.stream) { r.setHeader('content-type', 'application/json'); return r.end(JSON.stringify({ id, object: 'chat.completion', model: j.model, choices: [{ index: 0, finish_reason: 'stop', message: { role: 'assistant', content: a.say || 'title' } }], usage: { prompt_tokens: 10, completion_tokens: 5, total_tokens: 15 } })) }
    sse(); ev(part({ role: 'assistant', content: '' }))
    if (a.say) for (const p of pieces(a.say)) { ev(part({ content: p })); await pause(30) }
    else ev(part({ tool_calls: [{ index: 0, id: 'call_' + Date.now(), type: 'function', function: { name: a.tool, arguments: JSON.stringify(a.args) } }] }))
    ev(part({}, a.say ? 'stop' : 'tool_calls')); ev({ ...part({}), choices: [], usage: { prompt_tokens: 1000, completion_tokens: 50, total_tokens: 1050 } }); ev('[DONE]'); return r.end()
  }
  if (/:(stream)?[gG]enerateContent/.test(q.url)) {
    const ms = (j.contents || []).map(c => { const f = c.parts?.find(p => p.functionResponse); return f ? { role: 'tool', text: JSON.stringify(f.functionResponse.response) } : { role: c.role === 'model' ? 'assistant' : 'user', text: (c.parts || []).map(p => p.text || '').join('\n') } })
    const a = next(ms, (j.tools || []).flatMap(t => (t.functionDeclarations || []).map(f => f.name)))
    const part = (parts, fin) => ({ candidates: [{ content: { role: 'model', parts }, index: 0, ...(fin ? { finishReason: 'STOP' } : {}) }], usageMetadata: { promptTokenCount: 1000, candidatesTokenCount: 50, totalTokenCount: 1050 }, modelVersion: 'scripted' })
    if (!/stream/.test(q.url)) { r.setHeader('content-type', 'application/json'); return r.end(JSON.stringify(part([{ text: j.generationConfig?.responseMimeType === 'application/json' ? '{"reasoning":"x","next_speaker":"user","complexity_reasoning":"x","complexity_score":1,"model_choice":"flash"}' : a.say || 'ok' }], true))) }
    sse()
    if (a.say) for (const p of pieces(a.say)) { ev(part([{ text: p }])); await pause(30) }
    else ev(part([{ functionCall: { name: a.tool, args: a.args } }]))
    ev(part([{ text: '' }], true)); return r.end()
  }
  if (/\/v1\/messages/.test(q.url)) {
    if (/count_tokens/.test(q.url)) { r.setHeader('content-type', 'application/json'); return r.end('{"input_tokens":10}') }
    const ms = j.messages.map(m => { const f = Array.isArray(m.content) && m.content.find(p => p.type === 'tool_result'); return f ? { role: 'tool', text: text(f.content) } : { role: m.role, text: text(m.content) } })
    const a = next(ms, (j.tools || []).map(t => t.name)); const id = 'msg_' + Date.now()
    const content = a.say ? [{ type: 'text', text: a.say }] : [{ type: 'tool_use', id: 'toolu_' + Date.now(), name: a.tool, input: a.args }]
    if (!j.stream) { r.setHeader('content-type', 'application/json'); return r.end(JSON.stringify({ id, type: 'message', role: 'assistant', model: j.model, content, stop_reason: a.say ? 'end_turn' : 'tool_use', usage: { input_tokens: 10, output_tokens: 5 } })) }
    sse(); ev({ type: 'message_start', message: { id, type: 'message', role: 'assistant', model: j.model, content: [], stop_reason: null, usage: { input_tokens: 1000, output_tokens: 1 } } }, 'message_start')
    ev({ type: 'content_block_start', index: 0, content_block: a.say ? { type: 'text', text: '' } : { ...content[0], input: {} } }, 'content_block_start')
    for (const p of a.say ? pieces(a.say) : [JSON.stringify(a.args)]) { ev({ type: 'content_block_delta', index: 0, delta: a.say ? { type: 'text_delta', text: p } : { type: 'input_json_delta', partial_json: p } }, 'content_block_delta'); await pause(30) }
    ev({ type: 'content_block_stop', index: 0 }, 'content_block_stop'); ev({ type: 'message_delta', delta: { stop_reason: a.say ? 'end_turn' : 'tool_use' }, usage: { output_tokens: 50 } }, 'message_delta'); ev({ type: 'message_stop' }, 'message_stop'); return r.end()
  }
  if (/\/responses/.test(q.url)) {
    const ms = (Array.isArray(j.input) ? j.input : [{ role: 'user', content: j.input }]).map(m => m.type === 'function_call_output' ? { role: 'tool', text: typeof m.output === 'string' ? m.output : JSON.stringify(m.output) } : { role: m.role || 'assistant', text: text(m.content) })
    const a = next(ms, (j.tools || []).map(t => t.name)); const id = 'resp_' + Date.now()
    const item = a.say ? { type: 'message', id: 'msg_1', role: 'assistant', status: 'completed', content: [{ type: 'output_text', text: a.say, annotations: [] }] } : { type: 'function_call', id: 'fc_1', call_id: 'call_' + Date.now(), name: a.tool, arguments: JSON.stringify(a.args), status: 'completed' }
    sse(); ev({ type: 'response.created', response: { id, object: 'response', status: 'in_progress', model: j.model, output: [] } }, 'response.created')
    ev({ type: 'response.output_item.added', output_index: 0, item: { ...item, status: 'in_progress', ...(a.say ? { content: [] } : {}) } }, 'response.output_item.added')
    if (a.say) for (const p of pieces(a.say)) { ev({ type: 'response.output_text.delta', item_id: 'msg_1', output_index: 0, content_index: 0, delta: p }, 'response.output_text.delta'); await pause(30) }
    ev({ type: 'response.output_item.done', output_index: 0, item }, 'response.output_item.done')
    ev({ type: 'response.completed', response: { id, object: 'response', status: 'completed', model: j.model, output: [item], usage: { input_tokens: 1000, input_tokens_details: { cached_tokens: 0 }, output_tokens: 50, output_tokens_details: { reasoning_tokens: 0 }, total_tokens: 1050 } } }, 'response.completed'); return r.end()
  }
  r.statusCode = 404; r.end('{}')
}).listen(port, '127.0.0.1', function () { console.error('model on http://127.0.0.1:' + this.address().port) })
