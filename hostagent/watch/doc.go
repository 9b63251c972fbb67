// Package watch detects that sessions of an AHP host need a person, have finished or
// have failed, and reports these events (package notice).
//
// # The connection
//
// A [Watch] is a separate client of the host with an unguessable clientId. It changes
// nothing: it sends initialize, listSessions, subscribe and unsubscribe, and refuses
// all requests of the host. It declares no capabilities and no flow control, and
// offers AHP 0.8 to 1.1, which share the status bits of session summaries:
//
//	status & 24 == 24    the session needs input
//	status & 8           the agent works; the end of this state is an event
//	status & 2           an error: the session has failed
//
// Summaries come in listSessions, root/sessionAdded and root/sessionSummaryChanged,
// which every client receives. The questions are on the session's channel, so the
// Watch subscribes to a session while it needs input, and reads
//
//	inputNeeded[]               of the snapshot
//	session/inputNeededSet      {request}
//	session/inputNeededRemoved  {id}
//
// Summaries also go to Config.Summary, for package remembering.
//
// Work for a client's machine (toolClientExecution) needs no person. A session that
// needs input and lists no question is reported after a second.
//
// When the connection ends, open events stay open until the host reports the state on
// the next connection. An event that ended in between is then withdrawn, once.
//
// # Answers
//
// [Watch.Answer] returns the action for an open event to its first caller only. Later
// callers learn who answered. The caller dispatches the action on the chat, with the
// answering person's authority.
//
// # Bounds
//
//	4,096    sessions; further ones are not watched
//	64       questions of a session
//	1,024    remembered answers
package watch
