// Package gate decides which messages may pass on a client's connection to a host.
//
// A host-agent asks the gates of a connection about each message, in both directions,
// before it uses the message in any other way. Only the host-agent sees every message
// whole, in order, and before its bytes are shared. Requests a relay sends on a
// client's connection are judged like the client's own.
//
// # Authority
//
// A [Policy] describes a client's authority: the authority in its token, narrowed by
// the host-agent owner's limits ([Policy.Narrow]). [Policy.Gate] returns the gate for
// one connection. It returns nil for a policy that allows everything, so such a
// connection costs nothing.
//
// A policy has three parts, and a request must satisfy all three:
//
//   - Access: a level ([auth.Access]). There are five, and each includes the levels
//     before it. look (older name: read) changes nothing. talk adds turns, the queue,
//     drafts, read marks, and answers to questions. approve adds decisions about an
//     agent's tool calls. operate (write) allows everything, and own (admin) is the same
//     to a host. testdata/matrix.txt lists each method's and action's level. On mcp://
//     channels, lists, resources/read and prompts/get need look, and tools/call needs
//     operate.
//   - Methods: patterns for the allowed methods. They only restrict the access level.
//     initialize, reconnect, ping, subscribe, unsubscribe, channel/ack and
//     channel/credit need no pattern.
//   - Channels: patterns for the URIs the client may reach.
//
// # Talking without operating
//
// At the levels talk and approve, only the actions in package ahp's table pass, with
// their known members. A command is not a message to an agent, so these need operate:
// a message that begins with the host's terminalCommandPrefix, or with ! or /, even
// behind invisible characters; a message that chooses a different agent; and a tool
// call whose input the client changed before the approval. Hosts run these without
// asking. An approver chooses among the options the host has offered for that call on
// this connection. An attachment has a kind and members AHP defines. If a host
// presents a plan as a tool call, its approval needs approve; if the host asks a
// question, the answer needs talk. An agent uses its own permissions, which need no
// approval, for every client that may talk to it.
//
// A client that talks enters the session with session/activeClientSet. The gate removes
// the client's tools and customizations from this action, because the agent obeys these.
// The host echoes the action in that form to all clients. In the echo to the client
// itself, the gate restores the client's entry: VS Code repeats the action until then.
//
// # Files
//
// Below the level operate, or with limited channels, a client reaches only files that a
// channel pattern matches. Below operate, such a pattern must have a scheme. If the policy
// has folders ([Policy.WithFolders]), the working directories of visible sessions count
// too, as the host states them on this connection: in the list of sessions, in a
// session's state, or when a session is added. If policies were combined
// ([Policy.Narrow]), each must allow the file. These rules hold for the resource methods,
// for channels that are files or watches, and for file URIs in reads on canvas and MCP
// channels.
//
// The resource methods also read content that is no file. A URI's scheme decides
// whether a client may read it; testdata/schemes.txt lists the schemes VS Code's host
// serves:
//
//   - A file before or after an edit (session-db:, pending-edit-content:) is readable if
//     the host has named this URI, byte for byte, on this connection and on a channel in
//     reach: as an edit's side, in a changeset, or in a call of a host's own tool.
//   - A file in a repository's revision (git-blob:) needs the same. Below operate, the
//     file at the URI's path must be in reach too, because the host serves any file in
//     any revision.
//   - Canvas content (ahp-canvas-content:) in reach is readable.
//   - Some schemes need operate, because a read has an effect or shows a client's own
//     data.
//   - A URI with an unknown scheme is readable if the host has named it as content, if
//     it lies below a channel to which the client is subscribed (with limited channels:
//     below a channel in reach), or if a pattern names it. All other URIs are refused.
//
// These rules hold wherever a client names such a URI: in attachments, watches, reads
// at canvases and MCP servers, and as a channel. Exception: a read at an MCP server may
// name any unknown scheme, because servers define their own. After a replay the host
// repeats nothing, so the gate makes the host-agent ask for the state ([view.Reading.Ask]).
//
// A key a gate reads must not occur a second time in a different case: JSON parsers in
// Go and .NET might read the second key. A policy that is not full refuses such a
// message.
//
// The content in a client's frames (channel/frame) is not parsed. [Windows] declines
// windowed delivery, so clients use frames only on raw connections (ahp-tcp:). A
// policy that is not full refuses all other frames.
//
// A method outside package ahp's table is unknown. Below the level operate, or with
// limited channels, it is refused. Otherwise it passes if the policy's methods name
// it.
//
// # Reach
//
// With limited channels, a client's message passes if its channel and all other URIs
// in its params are in reach: initialSubscriptions, subscriptions and windows; the
// resource methods' URIs; a session, chat or claim beside the channel; sources for new
// sessions, chats and runs; attachments in requests and actions. A new chat is in
// reach too if its URI has the scheme ahp-chat, belongs to no session yet, and contains
// the name of no session out of reach. In reach is
//
//   - a URI that matches a pattern;
//   - a URI below such a URI, by a slash: mock:/1/changeset/turn below mock:/1;
//   - a URI that belongs to a channel in reach, for as long as the host states so, to
//     this client or to a different client: chats, changesets, annotations, open
//     canvases, MCP servers' channels, terminals whose state claims them for the
//     channel, and watches on files in reach, but never files. Canvas content, and the
//     host's own tools' input and complete output, are readable, and are no channels.
//     Package [ahprelay/ahp/view] reads these facts. A chat that moves to a different
//     session leaves the first session. An action with an origin brings nothing into reach,
//     because hosts only repeat a client's words in it. It can take a terminal out of reach.
//
// Thus a token for a session reaches the session, a token for
// file:///home/ada/project/* reaches the files there, and a token for a session alone
// reaches no files. An agent can use all of its own permissions for any client that
// may write to it. Limited channels separate sessions only as far as the agent does.
//
// # Comparing URIs
//
// A check of a URI is only as good as its parser, as with JSON. A URI is compared with
// the escapes of its parts decoded, and only if it has exactly one reading. Otherwise
// it is refused with the reason. One reading means:
//
//   - The scheme is in lower case.
//   - Characters outside RFC 3986 are percent-encoded, except non-Latin letters.
//     Letters, digits, - . _ and ~ are not encoded.
//   - Escapes are UTF-8. However often the path is decoded, its parts contain no slash,
//     backslash or control character, only the last part may be empty, and no part
//     consists of dots and spaces alone.
//   - A file (file:, vscode-remote: and similar) is written file:///path or
//     file://server/path, without query and fragment. The case of a drive letter does not
//     count. The case of all other letters counts, whatever the file system.
//
// A URI that is not a file also passes if it equals, byte for byte, a pattern without
// * or a URI the host has named. A * in a pattern stands for any characters, including
// slashes. The URIs of resource methods must be strings, because hosts may read
// objects in different ways.
//
// If the host's files are on this machine ([Policy].SharedFiles), the gate follows the
// symbolic links of file: and vscode-remote: URIs. The target must be in reach of the
// patterns, whose folders are followed too. For a missing file, the folder's target
// counts. A dangling link is refused. These gaps remain: a user with write permission
// can replace a folder by a link between this check and the host's access; the host
// may follow links below the requested folder, such as while it copies it; hard links
// and mounts look like ordinary files; and links on a different machine are unknown.
//
// A client that resumes with reconnect knows nothing yet on its new connection, but
// facts from the host's other connections hold. If the view knows nothing about a
// channel, reconnect is refused with -32008, hosts' code for unknown clients. The
// client then begins anew with initialize.
//
// With limited channels, a host's message passes if its channel is in reach. The gate
// keeps only members in the known shape ([ahp.Shape]), also of errors, because members
// from a later AHP version could be about anything. If a known member has a
// wrong type, such as an object for a text, or is about an unreachable channel, then the
// value around it does not pass: a list's element, or the whole message. Unreadable and
// ambiguous messages do not pass, nor do unknown notifications and requests, nor
// responses without a request. States, actions on channels in reach, and file
// contents pass unchanged. channel/frame passes only on raw connections ([Windows]).
// MCP servers' messages pass unchanged. A pattern that matches ahp-root:// itself
// lifts these limits for everything in reach.
//
// In responses to initialize, reconnect (in all forms) and subscribe, each part is
// judged by its own channel. Every client needs the root. If no pattern matches the
// root, the client sees a part:
//
//   - The state has its agents, the terminals in reach, and 0 for activeSessions. The
//     actions root/agentsChanged and root/terminalsChanged pass, the latter with the
//     terminals in reach.
//   - The response to listSessions has the sessions in reach. root/sessionAdded,
//     root/sessionRemoved and root/sessionSummaryChanged pass if the session is in
//     reach. A session has the members AHP defines. root/progress is the only other
//     notification that passes.
//   - root/progress passes if it names nothing unreachable, and if the client has sent
//     the same progress token on this connection, in a request above the level look.
//   - subscribe to the root with flowControl is refused, unless [Windows] has removed
//     that member.
//
// A host's request that is unknown, or on an unreachable channel, is answered with
// -32009. Known requests without a channel, or on the root, concern the client itself,
// and pass.
//
// # Refusals
//
// A refused request is answered with -32009. A refused dispatchAction, which is a
// notification, is answered as hosts do it: with the action's echo, which has its
// origin, a rejectionReason and the highest serverSeq sent to this client. A client
// that has already applied the action then reverts it. If VS Code's window sends the
// action by itself, the echo has no rejectionReason ([TakeBack]). Other
// notifications are dropped. A second request with the id of an open request is refused (-32600),
// because the responses would be indistinguishable.
//
// Below the level operate, a client gets the host's requests, but its response is
// replaced by error -32009 if it could grant a permission. Every result counts as
// such, except ping's, and, if the token allows reverse access, those for
// resourceRead, resourceList and resourceResolve.
//
// # Subjects
//
// A host does not know which user is behind a clientId. It lets any connection resume
// with any clientId, and asks any client for files a different client names. The
// host-agent therefore separates subjects ([Subjects], [Identity]), across all relays:
//
//   - A clientId belongs to the first subject that sends it in initialize or reconnect,
//     until the host process ends. If a different subject sends it, that request gets
//     error -32009, and the connection ends. The clientId stays owned even if the host
//     refuses the first connection. A missing clientId counts as a clientId too. A
//     clientId that is no text, or that parsers could read in two ways, gets -32602. A
//     host process has ended when its address refuses connections and all connections of
//     clients have ended. If the host is behind a proxy, or returns before the next
//     check, its end is not noticed. Its clientIds then keep their owners until the
//     host-agent ends.
//   - Once more than one subject has used the host, a request is answered with -32009 if
//     it names a file of a different subject's client: if a URI's authority, in any
//     string, object or channel name, can be read as a different subject's clientId, or
//     if a client-file URI names no client of the requesting subject. A string above 32
//     KiB that is no URI as a whole is searched only at its beginning. The request's
//     length bounds the search's cost; a more expensive request is refused. Actions are
//     not searched: the next rule covers their effects.
//   - A host's requests for a client's files (resource…, createResourceWatch) pass while
//     no different subject may talk to agents. After that, they pass only to clients
//     whose token allows reverse access. For all other clients, the host gets -32009.
package gate
