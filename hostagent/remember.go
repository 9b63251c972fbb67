package hostagent

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/broker"
	"ahprelay/broker/remember"
	"ahprelay/hostagent/remembering"
	"ahprelay/hostagent/watch"
	"ahprelay/routing"
)

// A client requests the keys of the remembered sessions that it may see. The host-agent
// answers; the host receives nothing:
//
//	→ {"id":1,"method":"relay/rememberKeys","params":{"channel":"ahp-root://"}}
//	← {"id":1,"result":{"tenant":"…","keyId":"…","verifier":"…","key":"…"}}             may see all sessions
//	← {"id":1,"result":{"tenant":"…","keyId":"…","verifier":"…","records":{"ID":"…"}}}  otherwise
//	← {"method":"relay/rememberKeysChanged","params":{"channel":"ahp-root://"}}
//
// The notification goes only to clients that have requested keys. They then request the new keys.
const (
	rememberMethod  = "relay/rememberKeys"
	rememberChanged = `{"jsonrpc":"2.0","method":"relay/rememberKeysChanged","params":{"channel":"ahp-root://"}}`
)

// lastStates writes the last state of sessions to relays.
type lastStates struct {
	agent  *Agent
	keeper *remembering.Keeper // nil if relays keep nothing
}

func newLastStates(a *Agent) (l lastStates, err error) {
	l.agent, a.private.fence = a, a.run.fence
	if err := a.private.open(a.cfg.StateDir, a.tenant, a.host); err != nil { // before anything is kept
		return l, err
	}
	if a.cfg.remembers() {
		l.keeper, err = remembering.New(l.config())
	}
	return l, err
}

// remembers reports whether relays keep the last state of sessions.
func (c *Config) remembers() bool {
	return c.Remember != "" && c.Remember != remembering.Off && len(c.Upstream.Command) == 0
}

func (l lastStates) config() remembering.Config {
	a := l.agent
	cfg := remembering.Config{
		Mode: a.cfg.Remember, Tenant: a.tenant, Host: a.host, Instance: a.instance, StateDir: a.cfg.StateDir, Fence: a.run.fence, Log: a.cfg.Log,
		Omits: func(session string) bool { return a.private.owner(session) != "" },
		Dial:  l.dial, Renewed: l.keysChanged,
	}
	if a.cfg.Sealed != nil { // a sealed host judges its devices itself
		cfg.Ended = func(h *remembering.Holder) bool {
			lost := func(on string) bool { return a.seals.Removed(on) || a.seals.pairedAfter(on, h.At) }
			return !time.Now().Before(h.End) || slices.ContainsFunc(h.Rests, lost)
		}
	}
	return cfg
}

// dial opens a connection to the host on which the host-agent reads sessions.
func (l lastStates) dial(ctx context.Context) (watch.Socket, error) {
	ctx, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	return l.agent.dialForMonitor(ctx, nil)
}

// run writes the last state of sessions until ctx ends. Without a keeper, it removes the
// records of an earlier run if Remember is off or the host is sealed.
func (l lastStates) run(ctx context.Context, conn *broker.Conn) {
	ask := keeperAt(l.agent, conn)
	switch {
	case l.keeper != nil:
		l.keeper.Run(ctx, ask)
	case l.agent.cfg.Remember == remembering.Off, l.agent.cfg.Sealed != nil: // relays may still have records from before
		remembering.Forget(ctx, l.config(), ask)
	}
}

// keeperAt returns a function that sends requests about last states to a relay. The
// relay also knows which holders are revoked.
func keeperAt(a *Agent, conn *broker.Conn) remembering.Ask {
	return func(ctx context.Context, data []byte) ([]byte, error) {
		return conn.Request(ctx, remember.Subject(a.tenant, a.host), data)
	}
}

// flush writes all changes before the machine sleeps.
func (l lastStates) flush(ctx context.Context) {
	if l.keeper != nil {
		ctx, cancel := context.WithTimeout(ctx, sleepDelay)
		defer cancel()
		l.keeper.Flush(ctx)
	}
}

// keysChanged notifies the clients that have requested keys for remembered sessions, so
// that they request the new keys.
func (l lastStates) keysChanged() {
	for _, c := range l.agent.clients.every() {
		if c.hasKeys.Load() {
			c.order.Lock()
			_ = c.conn.FromHost([]byte(rememberChanged), false, nil) // fails if the client has left
			c.order.Unlock()
		}
	}
}

// answersKeys answers a client's request for keys. It returns false if env is a different
// message.
func (w *hostWriter) answersKeys(env *ahp.Envelope) (isRequest bool, err error) {
	c := w.c
	keeper := c.agent.last.keeper
	if keeper == nil || env.Kind != ahp.Request || string(env.Method) != rememberMethod {
		return false, nil
	}
	return true, w.answerHere(func() []byte {
		c.hasKeys.Store(true) // before the keys are read, so a later change is announced to this client
		c.auditOften(connectsAtOnce, "keys", "")
		holder := c.keyHolder()
		if seal := c.conn.seal; seal != nil && c.agent.seals.isFormer(seal) { // later pairings are after holder.At, and end the holder
			return ahp.AppendError(nil, env.ID, ahp.CodePermissionDenied, "a device was paired again: connect again", nil)
		}
		keys, err := keeper.Keys(c.policy, holder)
		if err != nil {
			c.log.Warn("keys for remembered sessions not handed out", "error", err)
			return ahp.AppendError(nil, env.ID, ahp.CodeInternalError, "the host-agent cannot record that this client has the keys", nil)
		}
		result, _ := json.Marshal(keys) // all fields can be encoded
		return ahp.AppendResult(nil, env.ID, result)
	})
}

// answerHere answers a client's request in place of the host.
func (w *hostWriter) answerHere(answer func() []byte) error {
	c := w.c
	if err := c.conn.WaitToAnswer(c.ended); errors.Is(err, routing.ErrStalled) {
		c.slow()
		return err
	} // a client that has left is no error here, as in answerClient
	message := answer()
	c.order.Lock()
	defer c.order.Unlock()
	_ = c.conn.FromHost(message, false, nil) // fails if the client has left
	return nil
}

// keyHolder describes the connection's client as a holder of keys.
func (c *hostConn) keyHolder() remembering.Holder {
	h := remembering.Holder{Holder: auth.Holder{
		Token: c.open.Token, Device: c.open.DeviceID, Subject: c.open.Subject, At: time.Now().UTC().Truncate(time.Second), Origins: c.open.Origins,
	}}
	if seal := c.conn.seal; seal != nil {
		h.End, h.Rests = seal.device.End.UTC(), seal.device.All()
		h.At = time.Now().UTC() // exact, because pairedAfter compares it
	}
	return h
}
