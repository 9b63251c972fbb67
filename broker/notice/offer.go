package notice

import (
	"regexp"
	"slices"
)

// MayAllow reports whether a person may allow the request on the basis of the event
// alone: the event shows the whole request, and the host calls it safe or does not
// judge it. The console applies the same rule: console/src/approval.ts.
// hostagent/watch/testdata/approvals.json is the common table.
func (e *Event) MayAllow() bool { return !e.Risky && !e.Hidden }

// FromAfar returns the answers that a notification offers: to allow once, if
// [Event.MayAllow], and to refuse. Wider permissions need the page.
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

// Patterns of the words in options.
var (
	onceWords  = regexp.MustCompile(`(?i)\bonce\b`)
	widerWords = regexp.MustCompile(`(?i)session|always|workspace|\ball\b|remember|every|user|global|again|trust|forever|permanent|project|folder|similar|\bany\b|auto`)
	joints     = regexp.MustCompile(`[-_]`)
)

// Arrange sorts an approval's options into their display order: those that allow once,
// those that refuse, and those that allow more. If several allow and none is named
// "once", those whose words suggest a wider scope come last.
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

// words returns the words in an option's id and label.
func (o *Option) words() string { return joints.ReplaceAllString(o.ID+" "+o.Label, " ") }
