// Package acp lets the host run coding agents that speak the Agent Client Protocol:
// Claude Code, Codex, Gemini CLI, OpenCode and many others. The host is the protocol's
// client.
//
// # Processes
//
// Each conversation has an agent process of its own, in the conversation's folder and in
// a process group of its own. An agent that dies or hangs thus affects one conversation.
// The process ends with its conversation, together with the children that it has left.
// Further processes run for a moment: to learn what the agent offers, to list the
// conversations that a person began in the terminal, and to sign in.
//
// An agent inherits the environment, without the host-agent's own variables. Its
// credentials stay with it. Its standard error goes to the owner's log and never to a
// client.
//
// # Translation
//
//	initialize                  the agent's name, capabilities and sign-in methods
//	session/new                 a new conversation
//	session/resume, or load     a known conversation; load also gives the history
//	session/fork, list, delete  the same at the host
//	modes, models, configOptions  options; a change in either direction is followed
//	session/prompt              a turn; its answer ends the turn
//	session/cancel              the end of the prompt's context
//	agent_message_chunk, agent_thought_chunk  text and reasoning
//	tool_call, tool_call_update a tool call with input, diffs and terminals
//	session/request_permission  a question with the agent's own options
//	plan, usage_update, notice  plan, usage, notice
//	available_commands_update   slash commands
//	elicitation/create          a form, or an address to visit
//	fs/*                        files below the conversation's folders
//	terminal/*                  terminals of the host
//
// Claude Code and Codex send the output of their commands in _meta.terminal_output_delta;
// it becomes a terminal that clients can see. Agents that steer declare _meta.steering.
//
// Chunks of a text are passed on at once while the agent is slow. Those that wait in the
// pipe together are passed on together, so a flood of chunks does not become a flood of
// actions.
//
// # Agents that misbehave
//
// Lines that are not messages are counted and skipped. Updates of unknown kinds and of other
// sessions change nothing. Text and requests after the end of a turn form a separate turn,
// which ends when the agent is quiet for [Config.Quiet]. After a cancelled turn, and before
// the first prompt, they change nothing. A turn that is cancelled ends after [Config.Grace]
// even if the agent does not answer: its process is then killed, and the next prompt
// continues the conversation in a new one. A permission that is requested twice at once with
// the same content is asked once.
//
// # Modes that skip permissions
//
// Options with names that promise to skip permissions are marked as bypassing. With
// [Config.NoBypass] they are neither offered nor accepted, and an agent that starts or
// continues in such a mode is moved to a different one.
package acp
