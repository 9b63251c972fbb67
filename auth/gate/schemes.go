package gate

// A contentRule decides whether a client may read content behind URIs with a scheme.
type contentRule uint8

const (
	byReach     contentRule = iota // for unknown schemes: a channel in reach, content that the host has named, or a pattern
	byFile                         // the file must be in reach
	byName                         // the host has named the URI on this connection, in a session in reach
	byRevision                     // like byName, and the file must be in reach
	byCanvas                       // the content of a canvas in reach
	operateOnly                    // the level operate is needed
)

// contentRules has the rule for each content scheme. testdata/schemes.txt lists the
// schemes that VS Code's host serves, each with its verdict.
var contentRules = map[string]contentRule{
	// The host's files, and files that the host requests from its clients.
	fileScheme: byFile, remoteScheme: byFile, "vscode-local": byFile, "vscode-file": byFile, "vscode-userdata": byFile,
	"vscode-agent-host": byFile, "vscode-" + clientScheme: byFile,

	// Files before and after an agent's edit: from the session's own store, or
	// prepared for an approval.
	"session-db": byName, "pending-edit-content": byName,

	// A file in any revision of the session's repository: the host runs git show.
	"git-blob": byRevision,

	"ahp-canvas-content": byCanvas,

	// Reading commits or drops the host's edit measurements.
	"agent-edit-attribution": operateOnly,
	// A client's uploads for its agents, and an account's picture.
	"vscode-synced-customization": operateOnly, "vscode-codex-profile-image": operateOnly,
}

// isHosts reports whether a URI's scheme names content with a rule in contentRules, except
// canvas content. The scheme's rule then decides, whatever the method.
func isHosts(uri string) bool {
	rule := contentRules[bareScheme(uri)]
	return rule != byReach && rule != byCanvas
}

// NamesContent reports whether a pattern in a token's channels names files, or other
// content with a rule of its own. Below the level operate, such a pattern permits reading,
// which the permission for all channels does not include.
func NamesContent(pattern string) bool { return isHosts(canonicalPattern(pattern)) }
