package view

// A Fact is something that the host has said, whatever it said it in.
type Fact struct {
	Kind Kind
	What What
	Of   string   // the channel that it is about
	URI  string   // what belongs to that, or does no more; or the id of a customization
	List []string // all that belong to it, of a Lists

	// Raw is the part of the message that describes it, and At where that
	// stands; -1 in messages that came in pieces.
	Raw []byte
	At  int

	// Own says that the host says it itself, in an action. What stands in a state
	// it may have taken over from a client.
	Own bool

	when stamp
}

// A stamp is when the host has said something: how far it was, and of what it
// said there, or of what says nothing of that, what was heard first.
type stamp struct {
	seq   int64
	heard uint64
}

func (a stamp) before(b stamp) bool { return a.seq < b.seq || a.seq == b.seq && a.heard < b.heard }

// A Kind is what a [Fact] says.
type Kind uint8

// What facts say.
const (
	Has    Kind = iota + 1 // URI belongs to Of
	HasNot                 // URI does not belong to Of any more
	Lists                  // of What, only List belong to Of
	Claims                 // URI belongs to those of List, and to nobody else
	Offers                 // the call of a tool with the id URI may be answered with the options List

	CanvasIs      // Raw is the whole state of the canvas Of
	CanvasChanges // Raw is what changes in it
	CanvasSource  // Raw is where its content is: {url}

	Customizations       // Raw is the list of all of the session Of; nil: it has none
	Customization        // Raw is one of them, whole
	CustomizationGone    // the one with the id URI is removed
	CustomizationToggled // the one with the id URI is enabled or disabled: Raw is the action
	ServerIs             // the MCP server with the id URI has another state or channel: Raw is the action
	ServerStarts         // somebody wants the MCP server with the id URI to start
	ServerStops          // or to stop

	SessionGone // the session Of is removed
)

// What is the kind of things that belong to a channel.
type What uint8

// What belongs to channels.
const (
	Channel   What = iota // one that has no kind of its own here
	Chat                  // of a session
	CanvasRef             // of a session or chat
	Terminal              // of a session or chat
	Changeset             // of a session or chat; the URI may be a template
	Server                // the channel of an MCP server
	Content               // something that can be read, and is no channel
	Watch                 // of files
	Hint                  // somebody says that it belongs there: its own state tells
	Folder                // in which a session works; nobody owns it
	FileText              // a file's content before or after an edit; nobody owns it
)
