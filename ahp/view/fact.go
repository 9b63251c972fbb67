package view

// A Fact is a host's statement about a channel, independent of the message's form.
type Fact struct {
	Kind  Kind
	Thing Thing
	Of    string   // the channel
	URI   string   // the URI that belongs, or no longer belongs, to the channel; or the id of a customization
	List  []string // the list of a fact of the kind Lists, Claims, Keeps or Offers

	// Raw is the part of the message that describes the fact, and At its position; -1 if
	// the part cannot be edited there.
	Raw []byte
	At  int

	// Own is true if the fact comes from an action of the host itself. States may
	// contain statements of clients.
	Own bool

	when stamp
}

// A stamp orders facts: by serverSeq, then by receipt.
type stamp struct {
	seq   int64
	heard uint64
}

func (a stamp) before(b stamp) bool { return a.seq < b.seq || a.seq == b.seq && a.heard < b.heard }

// A Kind is a [Fact]'s kind.
type Kind uint8

// Fact kinds.
const (
	Has    Kind = iota + 1 // URI belongs to Of
	HasNot                 // URI no longer belongs to Of
	Lists                  // only the URIs in List, of the kind Thing, belong to Of
	Claims                 // URI belongs to the channels in List alone
	Keeps                  // URI belongs to none but those of its present channels that List has
	Offers                 // the tool call with the id URI has the options List

	CanvasIs      // Raw is the complete state of the canvas Of
	CanvasChanges // Raw is a change of that state
	CanvasSource  // Raw is the location of its content: {url}

	Customizations       // Raw is the complete list of the session Of; nil: it has none
	Customization        // Raw is a complete customization
	CustomizationGone    // the customization with the id URI is removed
	CustomizationToggled // the customization with the id URI is enabled or disabled: Raw is the action
	ServerIs             // the MCP server with the id URI has a new state or channel: Raw is the action
	ServerStarts         // a client has asked to start the MCP server with the id URI
	ServerStops          // a client has asked to stop it

	SessionGone // the session Of is removed
)

// A Thing is a kind of thing that belongs to a channel.
type Thing uint8

// Things that belong to channels.
const (
	Channel   Thing = iota // any other channel
	Chat                   // of a session
	CanvasRef              // of a session or chat
	Terminal               // of a session or chat
	Changeset              // of a session or chat; the URI may be a template
	Server                 // the channel of an MCP server
	Content                // readable content, which is no channel
	Watch                  // of files
	Hint                   // a claim by a tool or client; the terminal's own state decides
	Folder                 // a working directory of a session, which has no owner
	FileText               // a file's content before or after an edit, which has no owner
)
