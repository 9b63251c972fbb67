// Package gate decides what may pass on a client's connection to a host.
//
// A host-agent asks the gates of a connection about each message, in both
// directions, before it takes note of it otherwise: it alone sees every
// message whole, in order, and before its bytes are shared. Requests that a
// relay asks on a client's connection are judged as the client's.
//
// # Authority
//
// A [Policy] is what a client may do: what its token says, narrowed by what the
// host-agent's owner allows ([Policy.Narrow]). [Policy.Gate] makes the gate for
// one connection; it is nil for a policy that allows everything, so that
// nothing is looked at on such a connection.
//
// A policy has three parts, and a request needs all of them:
//
//   - Access, one of five levels ([auth.Access]), each of which includes those before
//     it: look (older name: read) is what changes nothing; talk adds turns, the queue,
//     drafts, marks of what was read, and answers to questions; approve adds whether an
//     agent may do what it asks for; operate (write) allows everything, and own
//     (admin) is no more to a host. testdata/matrix.txt has what each is, method by method and
//     action by action. Of MCP, on mcp:// channels, lists, resources/read and prompts/get
//     are looking, tools/call is operating.
//   - Methods: patterns of what may be called, of all that access allows.
//     initialize, reconnect, ping, subscribe, unsubscribe and the
//     acknowledgements of flow control need not be named.
//   - Channels: patterns of the URIs that may be reached.
//
// # Talking without operating
//
// Who may talk or approve says actions, of which only those pass, with the members, that
// are known. What is a command of the speaker's own, and not a word to an agent, is
// operating: a message that begins with what the host has announced as its
// terminalCommandPrefix, or with ! or /, also after characters that are not visible; one that chooses
// another agent; and a tool call whose input was changed before it was approved. An
// approver chooses among the options that the host has offered for that call on this
// connection. An attachment is of a kind that AHP defines, and has no other members. A host asks no questions there. Where a plan is
// put to a vote as a tool call, approving it takes approve; where a host asks by a
// question, it is a question. And whatever an agent does unasked, it does for whoever may talk
// to it.
//
// A client that talks enters the session with session/activeClientSet. The host gets that
// without the client's tools and customizations, which would be more than words to the agent, and echoes it so to all. In
// the echo that the client itself gets, its entry stands as it has sent it: VS Code sends the
// action again until it does. For the same reason a client that may only look gets no echo of it.
//
// # Files
//
// Where access is below operate, or channels are limited, files are reached only if they
// are named: by a pattern of channels that says of which scheme it is, and, if
// the policy has folders ([Policy.WithFolders]), in the working directories of
// sessions that may be seen, as the host has told them on this connection: in the
// list of sessions, in their state, or when they were added. With policies that
// are narrowed, each must allow a file. This holds for the resource methods, for
// channels that are files or watches of them, and for URIs of files that are read
// on channels of canvases and of MCP.
//
// The resource methods also read what is no file. The scheme of a URI decides who may
// read its content; testdata/schemes.txt lists the schemes that VS Code's host serves:
//
//   - a file before or after an edit (session-db:, pending-edit-content:) may be read by a
//     client to whom the host has named that very URI, byte for byte, on this connection, on
//     a channel in reach: as a side of an edit, in a changeset or in a call of a tool of the
//     host's own;
//   - a file in a revision of a repository (git-blob:) likewise, and below operate only if
//     the file at the URI's path may be reached: the host serves any revision of any file;
//   - the content of canvases (ahp-canvas-content:) in reach may be read;
//   - some schemes take operate: a read by them acts, or shows what is a client's own;
//   - a URI of an unknown scheme may be read if the host has said that it is content, if it
//     lies below a channel that the client is subscribed to (with limited channels: that is
//     in reach), or if a pattern names it. All else is refused.
//
// These rules hold wherever a client names such a URI: in attachments, watches, reads of
// canvases and of MCP servers, and as a channel. Only MCP servers have unknown schemes of
// their own. A client that resumes with a replay is told nothing
// anew; the gate has the host asked for the state ([view.Reading.Ask]).
//
// A key that is read is not to stand there in another case too, however it is
// written: hosts in Go or .NET would read that one. Where a policy is not full,
// such a message is refused, wherever a gate reads the key.
//
// Frames of clients (channel/frame) are not looked into. Windowed delivery is
// declined ([Windows]), so that nobody has any to send but on raw connections
// (ahp-tcp:): where a policy is not full, no others pass.
//
// A method that is not in the matrix is unknown. Below the level operate, or with
// limited channels, it is refused; otherwise it passes if the methods name it.
//
// # What is in reach
//
// With limited channels, a message of the client's passes if its channel and
// whatever else its params name are in reach: initialSubscriptions, subscriptions
// and windows, the URIs of the resource methods, a session, chat or claim that is
// named beside the channel, what sessions, chats and runs are made from, a chat that is to be made unless it is an ahp-chat: that no other
// session has or is named in, and what is attached to what it says to an agent, in requests and
// actions (chats of other sessions, files). In reach is
//
//   - what a pattern takes;
//   - what lies below that, by a slash: mock:/1/changeset/turn below mock:/1;
//   - what the host has said that it belongs to a channel in reach, to this
//     client or to others, for as long as it does: chats, changesets,
//     annotations, open canvases, the channels of MCP servers; the terminals
//     whose state says that they are claimed for it; watches of files in reach; never
//     files. What canvases show, and the input and whole output of the host's own
//     tools, may be read, and is no channel.
//     Package [ahprelay/view] reads what the host says. A chat that is moved to
//     another session leaves the first one. Actions with an origin teach nothing:
//     they are a client's words, which hosts repeat.
//
// So a token for a session reaches the session, and a token for
// file:///home/ada/project/* the files there, but a token for a session alone no
// files. An agent that a client may write to can do what it likes: limited
// channels keep one who writes to a session from others' sessions only as far as the
// agent does.
//
// # How URIs are compared
//
// A check of a URI is only as good as its parser, as with JSON. A URI is
// compared with the escapes of its parts decoded, and only if there is but one
// way to read it; otherwise it is refused, with the reason:
//
//   - it has a scheme in lower case;
//   - what RFC 3986 does not allow is percent-encoded, but for letters of other
//     alphabets, and letters, digits, - . _ and ~ are not;
//   - escapes are of UTF-8, and however often its path is decoded there are no
//     slashes, backslashes and control characters in its parts, none of them is
//     empty but the last, and none consists of dots and spaces alone;
//   - of files (file:, vscode-remote: and such): file:///path, or file://server/path,
//     without query and fragment. A drive is the same in both cases, all else is
//     not, whatever the file system says.
//
// Other URIs than those of files also pass if they are, byte for byte, what a
// pattern without * or the host says. A * in a pattern stands for any
// characters, slashes included. The URIs of resource methods are strings: hosts
// may read objects in ways of their own.
//
// Where the host's files are those of this machine ([Policy].SharedFiles), what
// file: and vscode-remote: name is followed through symbolic links, and must
// then be in reach of patterns whose folders are followed too; a file that does
// not exist, to where its folder leads; a link that leads nowhere is refused.
// What is left: somebody who may write there can put a link in place of a folder
// between this look and the host's; links that a host follows itself below what
// it was asked for, such as in a folder that it copies, are not seen; hard links
// and mounts are not told from other files; and of a host on another machine
// nobody knows where its links lead.
//
// A client that resumes with reconnect has been told nothing yet on its new
// connection, but what the host has said on others holds. If nothing is known of
// a channel, reconnect is refused with -32008, with which hosts tell clients that
// they do not know them: clients begin anew with initialize.
//
// What the host sends passes if its channel is in reach, and as far as it has the
// shape that is known (known.go): what a host adds some day may be about anything.
// What cannot be read, or in two ways, does not pass, nor notifications and requests
// that are not in the matrix, nor answers to nothing. Of the others, errors among
// them, members pass that are known. Where one of these holds what it never does,
// an object for a text or something on a channel out of reach, what it stands in does
// not pass: the element of a list, or the whole message. States, actions on
// channels in reach, and what is read of files pass as they are, whatever is in
// them. channel/frame passes on raw connections alone: nobody asks for others
// ([Windows]). What MCP servers say is their own. A pattern that takes ahp-root://
// itself lifts all this for what is in reach.
//
// In answers to initialize, reconnect (in all forms) and subscribe, each part is
// judged by its own channel. The root, unless a pattern takes it, is seen in part,
// since no client can do without:
//
//   - its state has its agents, the terminals in reach, 0 for activeSessions, and
//     nothing else; of its actions, root/agentsChanged passes, and
//     root/terminalsChanged with the terminals in reach;
//   - listSessions is answered with the sessions in reach; root/sessionAdded,
//     root/sessionRemoved and root/sessionSummaryChanged pass if the session is in
//     reach, and no other notification but root/progress. Of a session they have the
//     members that AHP defines;
//   - root/progress passes if its token is one that the client has given on this connection,
//     in a request that looking does not allow, and if it names nothing out of reach;
//   - subscribe to the root with flowControl is refused, where [Windows] has not
//     taken that out.
//
// A request of the host's that is unknown, or on a channel out of reach, is
// answered with -32009. Known ones without a channel, or on the root, are about the
// client itself, and pass.
//
// # What refused clients see
//
// A refused request is answered with -32009. A refused dispatchAction, which is a
// notification, is answered as hosts do: with the action's echo, which has its
// origin, a rejectionReason and the highest serverSeq that went to this client;
// so a client that has shown its effect takes it back. Other notifications are
// dropped. Two requests with one id at a time are refused (-32600): answers
// could not be told apart.
//
// A client that may not operate gets the host's requests, but an answer of its that
// may grant something is replaced by error -32009: that is any result but that of
// ping, and, if its token says reverse, of resourceRead, resourceList and
// resourceResolve.
//
// # Subjects
//
// A host does not know who is behind a clientId. It lets everybody resume with
// any, and asks any client for files that another names. So the host-agent
// keeps subjects apart ([Subjects], [Identity]), across all relays:
//
//   - A clientId is the subject's that was the first to say it in initialize or
//     reconnect, until the host process ends. Who says another's gets error
//     -32009, and the connection ends. That the host does not let the first one in
//     changes nothing; that it has said none counts as a clientId too. One that is
//     no text, or that parsers could read in two ways, gets -32602. A host process
//     has ended when nothing listens where it did and all connections of clients
//     are gone; of a host behind a proxy, or one that is back before anybody has
//     looked, that is never seen, and clientIds stay whose they are. They are
//     forgotten with the host-agent.
//   - While more than one subject uses the host, or has, a request that names a file
//     of another subject's client is answered with -32009: one in which the authority
//     of a URI, in any string, object or channel name, can be read as another
//     subject's clientId, or in which a URI of a client's file names no client of
//     the subject's own. Of a string above 32 KiB that is no URI as a whole, the
//     beginning is looked at. What the search costs is bounded by the request's
//     length; one that is made to cost more is refused. Other subjects' words in actions are not looked at: what
//     comes of them is the next point.
//   - Requests of the host's for a client's files (resource…, createResourceWatch)
//     pass while no other subject may talk to agents, or might. Then they pass only to
//     clients whose token says reverse; the host is answered -32009 for others.
package gate
