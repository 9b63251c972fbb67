package gate

// A contentRule decides whether a client may read the content behind a scheme's URIs.
type contentRule uint8

const (
	byReach     contentRule = iota // unknown scheme: a channel in reach, content that the host names, or a pattern
	byFile                         // the file must be in reach
	byName                         // the host has named the URI on this connection, in a session in reach
	byRevision                     // like byName, and the file must be in reach
	byCanvas                       // the content of a canvas in reach
	operateOnly                    // the level operate is needed
)

// contentRules has each content scheme's rule. testdata/schemes.txt lists the schemes
// VS Code's host serves, and each verdict.
var contentRules = map[string]contentRule{
	// The host's files, and files the host requests from its clients.
	fileScheme: byFile, remoteScheme: byFile, "vscode-local": byFile, "vscode-file": byFile, "vscode-userdata": byFile,
	"vscode-agent-host": byFile, "vscode-" + clientScheme: byFile,

	// Files before and after an agent's edit: from the session's own store, or
	// prepared for an approval.
	"session-db": byName, "pending-edit-content": byName,

	// A file in any revision in the session's repository: the host runs git show.
	"git-blob": byRevision,

	"ahp-canvas-content": byCanvas,

	// A read commits or drops the host's edit measurements.
	"agent-edit-attribution": operateOnly,
	// A client's uploads for its agents, and an account's picture.
	"vscode-synced-customization": operateOnly, "vscode-codex-profile-image": operateOnly,
}

// isHosts reports whether a URI's scheme names files, or host content other than
// channels and canvases. Its own rule then decides, whatever the method.
func isHosts(uri string) bool {
	rule := contentRules[bareScheme(uri)]
	return rule != byReach && rule != byCanvas
}
