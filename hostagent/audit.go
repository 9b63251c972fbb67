package hostagent

import (
	"errors"
	"sync/atomic"
	"time"

	"ahprelay/ahp"
	"ahprelay/routing"
)

// auditMessage is the message of audit lines. The attribute event is an audit word
// in the tables of package ahp, or a word of this package, such as connect or kick.
const auditMessage = "audit"

func (c *hostConn) audit(event string, fields ...any) {
	c.log.Info(auditMessage, append([]any{"event", event}, fields...)...)
}

// Bounds of repeated audit lines. Lines with the same auditKey are coalesced,
// over all connections: the first few are written at once, and all later ones
// of the interval auditEvery become one line with the attribute count. A client
// can therefore not flood the log.
const (
	auditEvery = 10 * time.Second

	connectsAtOnce = 20 // a person connects with several windows at once
	refusedAtOnce  = 1
)

// auditKey is the set of attributes shared by coalesced lines.
type auditKey struct{ event, why, subject, token, address string }

// auditOften writes an audit line that a client can trigger as often as it
// wants. why is one of a fixed set of words; a client cannot choose it.
func (c *hostConn) auditOften(atOnce int, event, why string, fields ...any) {
	c.agent.auditOften(&c.open, atOnce, event, why, fields...)
}

func (a *Agent) auditOften(open *routing.Open, atOnce int, event, why string, fields ...any) {
	key := auditKey{event, why, open.Subject, open.Token, open.Remote}
	a.audits.Note(key, atOnce, func(more int) {
		if more > 0 {
			fields = append(fields, "count", more)
		}
		connLog(a.cfg.Log, open).Info(auditMessage, append([]any{"event", event}, fields...)...)
	})
}

// counts holds a connection's traffic counters.
type counts struct {
	in, out           atomic.Int64 // messages from the client and from the host
	inBytes, outBytes atomic.Int64
	refused           atomic.Int64 // client messages that the gates refused
}

// refused counts a client message refused by a gate.
func (c *hostConn) refused(env *ahp.Envelope) {
	c.counts.refused.Add(1)
	c.auditOften(refusedAtOnce, "refuse", "message", "method", shorten(string(env.Method)))
}

// expelledReason is the close reason for a client that used a different subject's
// clientId.
const expelledReason = "the clientId is not this token's"

// expel answers a forbidden message and ends the client's connection.
func (c *hostConn) expel(env *ahp.Envelope, answer []byte) error {
	c.auditOften(refusedAtOnce, "refuse", "clientId", "method", string(env.Method), "reason", expelledReason, "code", ahp.CloseForbidden)
	c.writer.answerClient(env, answer)
	c.conn.Close(ahp.CloseForbidden, expelledReason)
	c.cancel()
	return errExpelled
}

// reject ends a connection before it reaches the host.
func (c *hostConn) reject(reason string) {
	c.auditOften(refusedAtOnce, "refuse", "barred", "reason", reason, "code", ahp.CloseForbidden, "relay", c.conn.Relay(), "address", c.open.Remote)
	c.conn.Close(ahp.CloseForbidden, reason)
}

// errExpelled reports a client whose connection ended because of a forbidden
// message.
var errExpelled = errors.New("client sent away")
