package gate

import (
	"bytes"
	"slices"
	"strings"

	"ahprelay/ahp"
)

// What a client says to an agent may have attachments: chats, annotations and
// files, which the host reads for the agent. A chat may be another session's, of
// which the agent then gets the whole transcript. So where channels are limited,
// attachments are to be in reach like what a client asks for itself, wherever
// they stand: in chat/turnStarted, chat/pendingMessageSet, a draft, the
// initialMessage of createChat, and what comes later.

// A client that may not operate attaches only the kinds that AHP defines, with the members
// that AHP defines for them: a host may take the URI of a file from any other member. Metadata (_meta) is
// the provider's own.
var (
	attachmentKinds   = []string{"simple", "embeddedResource", "resource", "annotations", "chat"}
	attachmentMembers = []string{
		"label", "range", "displayKind", "modelRepresentation", "data", "contentType", "selection", "uri", "sizeHint", "nonce",
		"resource", "annotationIds", "endTurn",
	}
	rangeMembers = []string{"range", "start", "end", "line", "character"}
)

var unknownAttachment = no("an attachment that says more than is known of it takes the level operate")

// attachmentsKnown says why the attachments of a message say more than is known.
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

// attachmentValue reports whether a member of an attachment has a value of its kind:
// a range, a list of ids, or a text or number.
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

// isRange reports whether a value is a range of a text: numbers in known members.
func isRange(value []byte, depth int) bool {
	if !ahp.IsObject(value) {
		return value[0] != '"' && value[0] != '['
	}
	list, err := ahp.AllMembers(value)
	return err == nil && depth > 0 && !slices.ContainsFunc(list, func(m ahp.Member) bool {
		return !slices.Contains(rangeMembers, m.Name) || !isRange(m.Raw, depth-1)
	})
}

// judgeAttachments says why what a message has attached is out of reach.
func (a *Authority) judgeAttachments(env *ahp.Envelope) (no *refusal) {
	if bytes.HasPrefix(env.Channel, []byte(mcpScheme)) {
		return nil // which carries what is no message to an agent
	}
	const nowhere = 1 << 30
	inside := nowhere // strings that are deeper than this are attached
	names := nowhere  // the string before is a key, so deep, whose value is a URI
	ahp.Strings(env.Params, func(s ahp.StringAt) bool {
		if s.Depth <= inside {
			inside = nowhere
		}
		object := s.Depth > names // in place of a URI: hosts read these in ways of their own
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

// namesURI reports whether a key of an attachment is that of a URI.
func namesURI(key []byte) bool {
	return slices.ContainsFunc([]string{"resource", "uri", "chat", "session", "channel"}, func(name string) bool { return isText(key, name) })
}

// isText reports whether a text is a word, in whatever case.
func isText(text []byte, word string) bool { return bytes.EqualFold(text, []byte(word)) }

// judgeAttachment says why one thing may not be attached. The web is not the
// host's; and whose a file of a client is, [Identity] sees to.
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
