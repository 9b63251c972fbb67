// Package watch hears an AHP host say that somebody is needed, that an agent is
// done, or that it has failed, and makes events of that (package notice).
//
// # The connection
//
// A [Watch] is a client of its own at the host, with a clientId that nobody can
// guess. It changes nothing there: it asks initialize, listSessions and subscribe,
// says unsubscribe, and refuses whatever the host asks of it. It declares no
// capabilities and no flow control, and offers AHP 0.8 to 1.1, whose summaries of
// sessions are alike:
//
//	status & 24 == 24    somebody is needed
//	status & 8           the agent works; when that ends it is done
//	status & 2           there was an error: it has failed
//
// They come in listSessions, root/sessionAdded and root/sessionSummaryChanged,
// which every client gets. What is asked is known on the session's channel, so the
// Watch subscribes to a session as long as somebody is needed there, and reads
//
//	inputNeeded[]               of the snapshot
//	session/inputNeededSet      {request}
//	session/inputNeededRemoved  {id}
//
// Work for a client's machine (toolClientExecution) needs nobody. Of a session that
// needs somebody and lists nothing, that is told after a second.
//
// When the connection ends, what was open stays open until the host says on the
// next one how things are. So what has ended meanwhile is told, once.
//
// # Answers
//
// [Watch.Answer] gives the action that answers an open event, to one caller only:
// all others hear who was first. Whoever gets it dispatches it on the chat, with
// the authority of whose answer it is.
//
// # Bounds
//
//	4,096    sessions; others are not watched
//	64       questions of a session
//	1,024    answers that are remembered
package watch
