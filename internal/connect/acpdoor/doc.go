// Package acpdoor is an agent of the Agent Client Protocol (ACP) whose sessions run at a distant
// host. Editors start it like a local agent.
//
// # Sessions
//
// The id of an ACP session is the address of the host's session.
//
//	session/new      a new session in the folder of --folder, or the editor's folder; with
//	                 --session that session, whose history follows the answer
//	session/load     a session of the host; its history comes before the answer
//	session/resume   the same without the history
//	session/list     the host's sessions
//	session/prompt   a turn, or a queued message while a turn runs
//	session/cancel   ends the editor's turn, and removes its queued messages
//	session/set_mode, set_config_option  the session's config; a model goes with the next message
//
// Turns, messages and answers of other clients are also shown in the editor.
//
// # Translation
//
//	text, reasoning       agent_message_chunk, agent_thought_chunk; the part's id is the messageId
//	tool calls            tool_call and tool_call_update, with edits as diffs
//	terminals             output in _meta.terminal_output for editors that show it, or else as text
//	a list of to-dos      plan
//	confirmations         session/request_permission with the host's options
//	questions             elicitation/create; for editors without it, a choice is a request for permission
//	usage, title, notice  usage_update, session_info_update, notice
//	slash commands        available_commands_update
//
// The first answer from any client counts. If a different client has answered, the editor's request
// is withdrawn with $/cancel_request, and the tool call's new status shows the result. If a
// confirmation does not show everything it would run, the editor can only refuse it.
//
// In the relay's audit, the token's holder is the editor.
//
// The host cannot read files of the editor's machine, so files in a prompt are read through the
// editor. Other links are passed unchanged. MCP servers on the editor's machine are not used,
// because the agent runs elsewhere.
//
// # Interruptions
//
// Short interruptions are invisible, as for all clients of ahp-connect. After a longer one, the
// door reconnects, compares the host's state with what the editor has, and shows the difference.
package acpdoor
