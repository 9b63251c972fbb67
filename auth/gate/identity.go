package gate

import (
	"strings"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
)

// Who uses a connection, as the relay has verified it.
type Who struct {
	Subject string
	Write   bool // may have an agent of the host do something
	Reverse Reverse

	// Refused is called with the class of each message that is refused, see
	// RefusalClasses. It may be nil.
	Refused func(class string)
}

// Refusal is the kind of what is refused, in reports and metrics.
const Refusal = "refusal"

// Classes of refusals.
const (
	RefusedClientID   = "client_id"   // of another subject, or there are too many
	RefusedGreeting   = "greeting"    // a clientId that cannot be read one way only
	RefusedClientFile = "client_file" // of another subject's client
	RefusedReverse    = "reverse"     // the host asks a client for its files
)

// RefusalClasses are all classes of refusals.
var RefusalClasses = []string{RefusedClientID, RefusedGreeting, RefusedClientFile, RefusedReverse}

// A Reverse says when a host may ask a client for the client's own files.
type Reverse int

// When it may.
const (
	ReverseAlone  Reverse = iota // while no other subject has write access, or had
	ReverseAlways                // whoever else is there: the client's token says so
	ReverseNever                 // the host's owner says so
)

// An Identity is the gate of one client's connection that keeps subjects
// apart at a host that does not know them:
//
//   - initialize and reconnect with a clientId of another subject are refused,
//     and end the connection.
//   - What names a file of another subject's client is refused: hosts would
//     ask that client for it.
//   - As soon as another subject has write access, or had, the host may ask
//     this client for its files only if its token says so: somebody else may
//     be behind the question.
type Identity struct {
	// Set by Enter, then read-only.
	subjects *Subjects
	who      Who

	// Guarded by the lock of subjects.
	owner *subject
	ids   []*clientID
}

// Leave says that the connection to the host has ended.
func (i *Identity) Leave() { i.subjects.leave(i) }

// An objection is why a message is refused, "" if it is not.
type objection string

const (
	none           objection = ""
	refusedForeign objection = "this clientId is another subject's"
	refusedFull    objection = "there is no room for another clientId at this host"
	refusedMany    objection = "too many clientIds on one connection"
	refusedClear   objection = "clientId is to be one text of 1 to 1024 bytes"
	refusedFile    objection = "this is a file of another subject's client"
	refusedLook    objection = "too much in this request could be a file of another subject's client"
	refusedAsk     objection = "this client is not to be asked for its files: others use this host, or its owner says so"
)

// FromClient implements [Gate].
func (i *Identity) FromClient(_ []byte, env *ahp.Envelope) Decision {
	if env.Kind == ahp.Response {
		return Decision{}
	}
	if method := string(env.Method); method == "initialize" || method == "reconnect" {
		if d := i.greeting(env); d.Verdict != Pass {
			return d
		}
	}
	if env.Kind == ahp.Request && i.subjects.several.Load() {
		if why := i.foreignFile(env); why != none {
			i.count(RefusedClientFile)
			return Decision{Verdict: Answer, Message: why.answer(env, ahp.CodePermissionDenied)}
		}
	}
	return Decision{}
}

// greeting judges what a connection begins with.
func (i *Identity) greeting(env *ahp.Envelope) Decision {
	id, ok := view.ClientIDOf(env.Params)
	if !ok || len(id) > maxClientIDLen {
		i.count(RefusedGreeting)
		return Decision{Verdict: Answer, Message: refusedClear.answer(env, ahp.CodeInvalidParams)}
	}
	why := i.subjects.bind(i, id)
	if why == none {
		return Decision{}
	}
	i.count(RefusedClientID)
	if why == refusedForeign {
		return Decision{Verdict: Expel, Message: why.answer(env, ahp.CodePermissionDenied)}
	}
	return Decision{Verdict: Answer, Message: why.answer(env, ahp.CodeRateLimited)}
}

func (i *Identity) count(class string) {
	if i.who.Refused != nil {
		i.who.Refused(class)
	}
}

// answer is the error that a request is answered with, nil for what gets no
// answer.
func (o objection) answer(env *ahp.Envelope, code int) []byte {
	if env.Kind != ahp.Request {
		return nil
	}
	return ahp.AppendError(nil, env.ID, code, string(o), nil)
}

// FromHost implements [Gate].
func (i *Identity) FromHost(_ []byte, env *ahp.Envelope, _ *view.Reading) Decision {
	if env == nil || env.Kind != ahp.Request || !asksForFiles(env.Method) || i.mayBeAsked() {
		return Decision{}
	}
	i.count(RefusedReverse)
	return Decision{Verdict: Answer, Message: refusedAsk.answer(env, ahp.CodePermissionDenied)}
}

// mayBeAsked reports whether the host may ask this client for its files now.
func (i *Identity) mayBeAsked() bool {
	switch i.who.Reverse {
	case ReverseAlways:
		return true
	case ReverseNever:
		return false
	}
	return !i.subjects.othersWrite(i.who.Subject)
}

// asksForFiles reports whether a request of the host's is for a client's own
// files: resourceRead and all its kin, those to come included.
func asksForFiles(method []byte) bool {
	return strings.HasPrefix(string(method), "resource") || string(method) == "createResourceWatch"
}
