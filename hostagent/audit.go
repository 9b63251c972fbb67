package hostagent

import (
	"errors"
	"sync/atomic"
	"time"

	"ahprelay/ahp"
	"ahprelay/routing"
)

// auditMessage is the message of the lines that tell the host's owner who did
// what: event is connect, disconnect, refuse, kick or bar, or an audit word in package ahp's table.
const auditMessage = "audit"

func (c *hostConn) audit(event string, fields ...any) {
	c.log.Info(auditMessage, append([]any{"event", event}, fields...)...)
}

// Lines that are alike. What one subject with one token does from one address
// again and again is counted together, on all its connections: the first lines
// are written at once, and what follows within auditEvery is one line at its end,
// which is the last of them, with their number as count. So no client fills the
// log.
const (
	auditEvery = 10 * time.Second

	comingsAtOnce = 20 // people come with some windows each
	refusedAtOnce = 1
)

// alikeKey is what lines have in common that are alike.
type alikeKey struct{ event, why, subject, token, address string }

// often writes a line that a client may cause all the time. Why is one of few
// words, and none of the client's.
func (c *hostConn) often(atOnce int, event, why string, fields ...any) {
	c.agent.often(&c.open, atOnce, event, why, fields...)
}

func (a *Agent) often(open *routing.Open, atOnce int, event, why string, fields ...any) {
	key := alikeKey{event, why, open.Subject, open.Token, open.Remote}
	a.audits.Note(key, atOnce, func(more int) {
		if more > 0 {
			fields = append(fields, "count", more)
		}
		a.connLog(open).Info(auditMessage, append([]any{"event", event}, fields...)...)
	})
}

// counts are what passed on a connection.
type counts struct {
	in, out           atomic.Int64 // messages from the client, and from the host
	inBytes, outBytes atomic.Int64
	refused           atomic.Int64 // of in
}

// refused notes that a gate has stopped a message of the client's.
func (c *hostConn) refused(env *ahp.Envelope) {
	c.counts.refused.Add(1)
	c.often(refusedAtOnce, "refuse", "message", "method", shorten(string(env.Method)))
}

// expelledReason is what a client hears that says another's clientId.
const expelledReason = "the clientId is not this token's"

// expel answers what a client must not send, and ends its connection.
func (c *hostConn) expel(env *ahp.Envelope, answer []byte) error {
	c.often(refusedAtOnce, "refuse", "clientId", "method", string(env.Method), "reason", expelledReason, "code", ahp.CloseForbidden)
	c.answerClient(env, answer)
	c.conn.Close(ahp.CloseForbidden, expelledReason)
	c.cancel()
	return errExpelled
}

// turnAway ends a connection that does not reach the host.
func (c *hostConn) turnAway(reason string) {
	c.often(refusedAtOnce, "refuse", "barred", "reason", reason, "code", ahp.CloseForbidden, "relay", c.conn.Relay(), "address", c.open.Remote)
	c.conn.Close(ahp.CloseForbidden, reason)
}

// errExpelled reports a client that was sent away.
var errExpelled = errors.New("client sent away")
