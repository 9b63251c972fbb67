package gate

import (
	"strings"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
)

// A User is the user of a connection, as the relay has verified it.
type User struct {
	Subject string
	Write   bool // the user may make agents act
	Reverse Reverse

	// Refused is called for each refused message with its class, see RefusalClasses. May
	// be nil.
	Refused func(class string)
}

// Refusal is the kind of refused messages in reports and metrics.
const Refusal = "refusal"

// Refusal classes.
const (
	RefusedClientID   = "client_id"   // a clientId of another subject, or too many clientIds
	RefusedGreeting   = "greeting"    // a clientId that is too long, is no text, or that parsers could read differently
	RefusedClientFile = "client_file" // a file of another subject's client
	RefusedReverse    = "reverse"     // a host's request for a client's files
)

// RefusalClasses lists all refusal classes.
var RefusalClasses = []string{RefusedClientID, RefusedGreeting, RefusedClientFile, RefusedReverse}

// A Reverse selects when a host may request files from a client.
type Reverse int

const (
	ReverseAlone  Reverse = iota // until another subject that may make agents act has connected
	ReverseAlways                // always: the client's token permits it
	ReverseNever                 // never: the host's owner forbids it
)

// An Identity is the gate on a client's connection that separates subjects, because hosts
// cannot distinguish them. It judges clientIds, requests that name files of other subjects'
// clients, and the host's requests for this client's files. Section Subjects of the package
// documentation has the rules.
type Identity struct {
	// Set by Enter, then read-only.
	subjects *Subjects
	user     User

	// Guarded by subjects' lock.
	owner *subject
	ids   []*clientID
}

// Leave ends the connection.
func (i *Identity) Leave() { i.subjects.leave(i) }

// An objection is the reason for a refusal, or "".
type objection string

const (
	none           objection = ""
	refusedForeign objection = "this clientId belongs to a different subject"
	refusedFull    objection = "too many clientIds at this host"
	refusedMany    objection = "too many clientIds on one connection"
	refusedClear   objection = "clientId must be a single string with 1 to 1024 bytes"
	refusedFile    objection = "this file belongs to a different subject's client"
	refusedSearch  objection = "this request has too many possible names for files at different subjects' clients"
	refusedAsk     objection = "this client's files are not available: the host has further users, or its owner forbids it"
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

// greeting judges a connection's initialize or reconnect.
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
	if i.user.Refused != nil {
		i.user.Refused(class)
	}
}

// answer returns the error response to a request. It returns nil for a notification.
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

// mayBeAsked reports whether the host may request files from this client now.
func (i *Identity) mayBeAsked() bool {
	switch i.user.Reverse {
	case ReverseAlways:
		return true
	case ReverseNever:
		return false
	}
	return !i.subjects.othersWrite(i.user.Subject)
}

// asksForFiles reports whether a host's request is for a client's files: all methods that
// begin with resource, including future ones, and createResourceWatch.
func asksForFiles(method []byte) bool {
	return strings.HasPrefix(string(method), "resource") || string(method) == "createResourceWatch"
}
