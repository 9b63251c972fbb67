package gate

import (
	"bytes"
	"slices"
	"strings"

	"ahprelay/ahp"
)

// A message to an agent may have attachments: chats, annotations and files, which the
// host reads for the agent. An attached chat may belong to a different session, whose
// transcript the agent then gets. So with limited channels, an attachment must be in
// reach, like everything that the client requests itself. This applies wherever
// attachments occur: in chat/turnStarted, chat/pendingMessageSet, a draft, createChat's
// initialMessage, and later actions.

// A client below the level operate may attach only the kinds that AHP defines, with AHP's
// members: a host could take a file's URI from any further member. Metadata (_meta) is
// not permitted, because it belongs to the provider.
var (
	attachmentKinds   = []string{"simple", "embeddedResource", "resource", "annotations", "chat"}
	attachmentMembers = []string{
		"label", "range", "displayKind", "modelRepresentation", "data", "contentType", "selection", "uri", "sizeHint", "nonce",
		"resource", "annotationIds", "endTurn",
	}
	rangeMembers = []string{"range", "start", "end", "line", "character"}
)

var unknownAttachment = no("an attachment with an unknown kind or member needs the level operate")

// attachmentsKnown returns a refusal if an attachment has an unknown kind or member.
func attachmentsKnown(raw []byte) *refusal {
	list, ok := listOf(raw)
	if !ok {
		return unreadable
	}
	for _, one := range list {
		members, ok := onlyMembers(one.Raw, attachmentMembers)
		if !ok || !slices.Contains(attachmentKinds, ahp.TextOf(one.Raw, "type")) {
			return unknownAttachment
		}
		for name, value := range members {
			if !attachmentValue(name, value) {
				return unknownAttachment
			}
		}
	}
	return nil
}

// attachmentValue reports whether an attachment's member has a valid value: a range, a
// list of IDs, or a text or number.
func attachmentValue(name string, value []byte) bool {
	switch name {
	case "range", "selection":
		return isRange(value, maxNested)
	case "annotationIds":
		_, ok := ahp.Texts(value)
		return ok || ahp.IsNone(value)
	}
	return value[0] != '{' && value[0] != '['
}

// isRange reports whether a value is a text range: numbers in known members.
func isRange(value []byte, depth int) bool {
	if !ahp.IsObject(value) {
		return value[0] != '"' && value[0] != '['
	}
	list, err := ahp.AllMembers(value)
	return err == nil && depth > 0 && !slices.ContainsFunc(list, func(m ahp.Member) bool {
		return !slices.Contains(rangeMembers, m.Name) || !isRange(m.Raw, depth-1)
	})
}

// judgeAttachments returns a refusal if an attachment in a message is out of reach.
func (a *Authority) judgeAttachments(env *ahp.Envelope) (no *refusal) {
	if bytes.HasPrefix(env.Channel, []byte(ahp.MCPScheme)) {
		return nil // an MCP server gets the message, not an agent
	}
	const nowhere = 1 << 30
	inside := nowhere // strings deeper than this belong to attachments
	names := nowhere  // depth of the last key, if its value is a URI
	ahp.Strings(env.Params, func(s ahp.StringAt) bool {
		if s.Depth <= inside {
			inside = nowhere
		}
		object := s.Depth > names // an object in place of a URI: hosts read it in different ways
		if !object {
			names = nowhere
		}
		switch {
		case s.IsKey && inside == nowhere:
			if isText(s.Text, "attachments") {
				inside = s.Depth
			}
		case inside == nowhere:
		case s.Text == nil, s.IsKey && object:
			no = unreadable
		case s.IsKey:
			if namesURI(s.Text) {
				names = s.Depth
			}
		case namesURI(s.Key):
			no = a.judgeAttachment(string(s.Text))
		}
		return no == nil
	})
	return no
}

// namesURI reports whether the member with this key in an attachment contains a URI.
func namesURI(key []byte) bool {
	return slices.ContainsFunc([]string{"resource", "uri", "chat", "session", "channel"}, func(name string) bool { return isText(key, name) })
}

func isText(text []byte, word string) bool { return bytes.EqualFold(text, []byte(word)) }

// judgeAttachment returns the reason why a URI may not be attached, or nil. Web addresses
// may be attached, because they are not on the host, and so may clients' files, which
// [Identity] judges.
func (a *Authority) judgeAttachment(uri string) *refusal {
	scheme, _, _ := strings.Cut(uri, ":")
	switch scheme {
	case "http", "https", "data", "vscode-" + clientScheme:
		return nil
	}
	if a.files != nil {
		return a.files.judgeURI(uri)
	}
	return a.reach.judgeURI(uri)
}
