// Package watch detects when sessions of an AHP host need a person, finish or fail,
// and reports these events (package notice).
//
// # The connection
//
// A [Watch] is a client of the host, on its own connection and with an unguessable
// clientId. It changes nothing: it sends initialize, listSessions, subscribe and
// unsubscribe, and refuses all requests of the host. It declares neither capabilities
// nor flow control. It offers AHP 0.8 to 1.1, in which the status bits of session
// summaries are the same:
//
//	status & 16    the session needs input
//	status & 8     the agent works
//	status & 2     an error: the session has failed
//
// Every client receives summaries, in listSessions, root/sessionAdded and
// root/sessionSummaryChanged. Questions are on the session's channel, so the Watch
// subscribes to a session while it needs input, and reads
//
//	inputNeeded[]               of the snapshot
//	session/inputNeededSet      {request}
//	session/inputNeededRemoved  {id}
//
// Summaries also go to Config.Summary, for package remembering.
//
// Work for a client's machine (toolClientExecution) needs no person. If a session
// needs input but lists no question for a second, the Watch reports an event without
// a question.
//
// When the connection ends, open events stay open until the next connection shows the
// host's state. Events that ended in between are then withdrawn.
//
// # Answers
//
// [Watch.Answer] returns the action that answers an open event, to its first caller
// only. Later callers learn who has answered. The caller dispatches the action on the
// chat, with the authority of the person who answers.
//
// # Bounds
//
//	4,096    sessions; further ones are not watched
//	64       questions of a session
//	1,024    remembered answers
package watch
