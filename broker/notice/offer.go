package notice

import (
	"regexp"
	"slices"
)

// MayAllow reports whether a person who sees only the event may allow the request: the event shows
// the whole request, and the host considers it safe or does not judge it. The console has the same
// rule in console/src/approval.ts; hostagent/watch/testdata/approvals.json tests both.
func (e *Event) MayAllow() bool { return !e.Risky && !e.Hidden }

// FromAfar returns the answers offered in a notification. For an approval, these are to
// refuse and, if [Event.MayAllow], to allow once: wider permissions can be given on the
// page only. For other events, these are all answers.
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

// Patterns for the words of options.
var (
	onceWords  = regexp.MustCompile(`(?i)\bonce\b`)
	widerWords = regexp.MustCompile(`(?i)session|always|workspace|\ball\b|remember|every|user|global|again|trust|forever|permanent|project|folder|similar|\bany\b|auto`)
	joints     = regexp.MustCompile(`[-_]`)
)

// Arrange sorts an approval's options for display: first those which allow once, then
// those which refuse, then those which allow more. Options allow once if they contain
// "once", or, if no allowing option does, if their words suggest no wider scope.
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

func (o *Option) words() string { return joints.ReplaceAllString(o.ID+" "+o.Label, " ") }
