package hostagent

import (
	"errors"
	"sync/atomic"
	"time"

	"ahprelay/ahp"
)

// auditMessage is the message of the lines that tell the host's owner who did
// what: event is connect, disconnect, refuse, kick or bar.
const auditMessage = "audit"

func (c *hostConn) audit(event string, fields ...any) {
	c.log.Info(auditMessage, append([]any{"event", event}, fields...)...)
}

// refuseEvery is the time between two lines about what one client was refused:
// one that tries on must not fill the log.
const refuseEvery = 10 * time.Second

// counts are what passed on a connection.
type counts struct {
	in, out atomic.Int64 // messages from the client, and from the host
	refused atomic.Int64 // of in

	said  time.Time // when a refusal was last logged; owned by the writer
	since int64     // how many there were then
}

// refused notes that a gate has stopped a message of the client's.
func (c *hostConn) refused(env *ahp.Envelope) {
	n := c.counts.refused.Add(1)
	if now := time.Now(); c.counts.said.IsZero() || now.Sub(c.counts.said) >= refuseEvery {
		c.audit("refuse", "method", shorten(string(env.Method)), "count", n-c.counts.since)
		c.counts.said, c.counts.since = now, n
	}
}

// expelledReason is what a client hears that says another's clientId.
const expelledReason = "the clientId is not this token's"

// expel answers what a client must not send, and ends its connection.
func (c *hostConn) expel(env *ahp.Envelope, answer []byte) error {
	c.audit("refuse", "method", string(env.Method), "reason", expelledReason, "code", ahp.CloseForbidden)
	if err := c.answerClient(env, answer); err != nil {
		return err
	}
	c.conn.Close(ahp.CloseForbidden, expelledReason)
	c.cancel()
	return errExpelled
}

// turnAway ends a connection that does not reach the host.
func (c *hostConn) turnAway(reason string) {
	c.audit("refuse", "reason", reason, "code", ahp.CloseForbidden, "relay", c.conn.Relay(), "address", c.open.Remote)
	c.conn.Close(ahp.CloseForbidden, reason)
}

// errExpelled reports a client that was sent away.
var errExpelled = errors.New("client sent away")
