// Package acp runs coding agents that speak the Agent Client Protocol: Claude Code, Codex,
// Gemini CLI, OpenCode and many others. The host is the protocol's client.
//
// # Processes
//
// Each conversation has an agent process, in the conversation's folder and in a process
// group of its own. An agent that dies or hangs thus affects one conversation only. The
// process ends with its conversation, together with the children that it has left. Other
// processes run for a moment only: to learn the agent's capabilities, to list conversations
// that a person began in the terminal, and to sign in.
//
// An agent inherits the environment, without the host-agent's own variables. The agent
// keeps its credentials. Its standard error goes to the owner's log and never to a client.
//
// # Translation
//
//	initialize                  the agent's name, capabilities and sign-in methods
//	session/new                 a new conversation
//	session/resume, or load     a known conversation; load also gives the history
//	session/fork, list, delete  the same at the host
//	modes, models, configOptions  options; changes are passed on in both directions
//	session/prompt              a turn; its answer ends the turn
//	session/cancel              the end of the prompt's context
//	agent_message_chunk, agent_thought_chunk  text and reasoning
//	tool_call, tool_call_update a tool call with input, diffs and terminals
//	session/request_permission  a question with the agent's own options
//	plan, usage_update, notice  plan, usage, notice
//	available_commands_update   slash commands
//	elicitation/create          a form, or an address to visit
//	$/cancel_request            the end of a question
//	fs/*                        files below the conversation's folders
//	terminal/*                  terminals of the host
//
// Claude Code and Codex send their commands' output in _meta.terminal_output_delta; the
// package shows it in a terminal that clients can see. Agents that accept messages during a
// turn declare _meta.steering.
//
// While an agent writes slowly, each chunk of text becomes an action at once. Chunks that
// wait in the pipe together become one action, so a flood of chunks does not become a
// flood of actions.
//
// # Agents that misbehave
//
// Lines that are not messages are counted and skipped. Updates of unknown kinds and for
// other sessions are ignored. Text and requests after the end of a turn form a new turn,
// which ends when the agent sends nothing for [Config.Quiet]. After a cancelled turn, and
// before the first prompt, such text and requests are ignored. A cancelled turn ends after
// [Config.Grace] even if the agent does not answer: the package kills the agent's process,
// and the next prompt continues the conversation in a new one. If an agent requests the
// same permission twice, people are asked once.
//
// # Modes that skip permissions
//
// Options whose names promise to skip permissions are marked as bypassing. With
// [Config.NoBypass] they are neither offered nor accepted, and an agent that starts or
// continues in such a mode is switched to a different one.
package acp
