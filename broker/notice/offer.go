package notice

import (
	"regexp"
	"slices"
)

// MayAllow reports whether a person who sees the event alone may allow what it asks for: the event
// shows all of it, and the host calls it safe or does not judge it. The console has the same rule
// for its page: console/src/approval.ts. hostagent/watch/testdata/approvals.json is the table of both.
func (e *Event) MayAllow() bool { return !e.Risky && !e.Hidden }

// FromAfar returns the answers that a notification of the event offers: to allow once, if
// [Event.MayAllow], and to refuse. Wider permissions are given on the page alone.
func (e *Event) FromAfar() (Form, []Option) {
	if e.Kind != Approval {
		return e.Answer, e.Options
	}
	once, deny, _ := Arrange(e.Options)
	if !e.MayAllow() {
		once = nil
	}
	offered := slices.Concat(once, deny)
	if len(offered) == 0 {
		return NoForm, nil
	}
	return e.Answer, offered
}

// Patterns of the words of options.
var (
	onceWords  = regexp.MustCompile(`(?i)\bonce\b`)
	widerWords = regexp.MustCompile(`(?i)session|always|workspace|\ball\b|remember|every|user|global|again|trust|forever|permanent|project|folder|similar|\bany\b|auto`)
	joints     = regexp.MustCompile(`[-_]`)
)

// Arrange sorts the options of an approval into the one order in which people are offered them:
// those that allow once, those that refuse, and those that allow more. Where several allow and
// none is called once, those whose words name a wider reach come last.
func Arrange(options []Option) (once, deny, wider []Option) {
	named := false
	for _, o := range options {
		named = named || !o.Deny && onceWords.MatchString(o.words())
	}
	for _, o := range options {
		switch words := o.words(); {
		case o.Deny:
			deny = append(deny, o)
		case named && onceWords.MatchString(words), !named && !widerWords.MatchString(words):
			once = append(once, o)
		default:
			wider = append(wider, o)
		}
	}
	return once, deny, wider
}

// words returns the words of an option's id and label.
func (o *Option) words() string { return joints.ReplaceAllString(o.ID+" "+o.Label, " ") }
