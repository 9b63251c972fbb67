package gate

// A contentRule decides who may read the content that the URIs of a scheme name.
type contentRule uint8

const (
	byReach     contentRule = iota // the scheme is unknown: a channel in reach, content that the host names, or a pattern
	byFile                         // the file must be allowed
	byName                         // the host has named the URI on this connection, in a session in reach
	byRevision                     // the same, and the file must be allowed
	byCanvas                       // the content of a canvas in reach
	operateOnly                    // the level operate is needed
)

// contentRules are the rules of the schemes by which hosts serve content.
// testdata/schemes.txt lists what VS Code's host serves, and each verdict.
var contentRules = map[string]contentRule{
	// Files of the host, and files that the host asks its clients for.
	fileScheme: byFile, remoteScheme: byFile, "vscode-local": byFile, "vscode-file": byFile, "vscode-userdata": byFile,
	"vscode-agent-host": byFile, "vscode-" + clientScheme: byFile,

	// Files before and after an edit of an agent: from the session's own store, or
	// prepared for an approval.
	"session-db": byName, "pending-edit-content": byName,

	// A file in any revision of the session's repository: the host runs git show.
	"git-blob": byRevision,

	"ahp-canvas-content": byCanvas,

	// To read it commits or drops what the host has measured of edits.
	"agent-edit-attribution": operateOnly,
	// What a client has uploaded for its agents, and a picture of an account.
	"vscode-synced-customization": operateOnly, "vscode-codex-profile-image": operateOnly,
}

// isHosts reports whether the scheme of a URI names files, or what hosts serve beside
// channels and canvases: its own rule decides, whatever asks for it.
func isHosts(uri string) bool {
	rule := contentRules[bareScheme(uri)]
	return rule != byReach && rule != byCanvas
}
