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

// A client asks for the keys of the remembered sessions that it may see:
//
//	→ {"id":1,"method":"relay/rememberKeys","params":{"channel":"ahp-root://"}}
//	← {"id":1,"result":{"tenant":"…","keyId":"…","verifier":"…","key":"…"}}             may see all sessions
//	← {"id":1,"result":{"tenant":"…","keyId":"…","verifier":"…","records":{"ID":"…"}}}  otherwise
//	← {"method":"relay/rememberKeysChanged","params":{"channel":"ahp-root://"}}
//
// The host-agent answers; the host gets no request. The notification goes only to
// clients that have asked, and means: ask again.
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
	l.agent = a
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
		Mode: a.cfg.Remember, Tenant: a.tenant, Host: a.host, Instance: a.instance, StateDir: a.cfg.StateDir, Log: a.cfg.Log,
		Omits: func(session string) bool { return a.private.owner(session) != "" },
		Dial:  l.dial, Renewed: l.keysChanged,
	}
	if a.cfg.Sealed != nil { // no relay judges the devices
		cfg.Ended = func(h *remembering.Holder) bool {
			return !time.Now().Before(h.End) || slices.ContainsFunc(h.Rests, a.seals.Removed)
		}
	}
	return cfg
}

// dial opens a connection to the host for the host-agent's own reading.
func (l lastStates) dial(ctx context.Context) (watch.Socket, error) {
	ctx, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	return l.agent.dialForMonitor(ctx, nil)
}

// run writes until ctx ends, or removes the state that an earlier run has written.
func (l lastStates) run(ctx context.Context, conn *broker.Conn) {
	ask := keeperAt(l.agent, conn)
	switch {
	case l.keeper != nil:
		l.keeper.Run(ctx, ask)
	case l.agent.cfg.Remember == remembering.Off, l.agent.cfg.Sealed != nil: // relays may still have records of before
		remembering.Forget(ctx, l.config(), ask)
	}
}

// keeperAt returns how to send requests to the relays' keeper of last states, which also knows
// revocations.
func keeperAt(a *Agent, conn *broker.Conn) remembering.Ask {
	return func(ctx context.Context, data []byte) ([]byte, error) {
		return conn.Request(ctx, remember.Subject(a.tenant, a.host), data)
	}
}

// flush writes everything before the machine sleeps.
func (l lastStates) flush(ctx context.Context) {
	if l.keeper != nil {
		ctx, cancel := context.WithTimeout(ctx, sleepDelay)
		defer cancel()
		l.keeper.Flush(ctx)
	}
}

// keysChanged notifies the clients that have requested keys to remembered sessions: the
// keys have changed, so the clients request them again.
func (l lastStates) keysChanged() {
	for _, c := range l.agent.clients.every() {
		if c.hasKeys.Load() {
			c.order.Lock()
			_ = c.conn.FromHost([]byte(rememberChanged), false, nil) // fails if the client has left
			c.order.Unlock()
		}
	}
}

// answersKeys answers a client's request for keys, and reports whether it was one.
func (w *hostWriter) answersKeys(env *ahp.Envelope) (isRequest bool, err error) {
	c := w.c
	keeper := c.agent.last.keeper
	if keeper == nil || env.Kind != ahp.Request || string(env.Method) != rememberMethod {
		return false, nil
	}
	return true, w.answerHere(func() []byte {
		c.hasKeys.Store(true) // before the keys are read: a later renewal is announced
		c.auditOften(connectsAtOnce, "keys", "")
		keys, err := keeper.Keys(c.policy, c.keyHolder())
		if err != nil {
			c.log.Warn("keys for remembered sessions not handed out", "error", err)
			return ahp.AppendError(nil, env.ID, ahp.CodeInternalError, "the host-agent cannot keep its keys", nil)
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

// keyHolder names the client of a connection.
func (c *hostConn) keyHolder() remembering.Holder {
	h := remembering.Holder{Holder: auth.Holder{
		Token: c.open.Token, Device: c.open.DeviceID, Subject: c.open.Subject, At: time.Now().UTC().Truncate(time.Second),
	}}
	if seal := c.conn.seal; seal != nil {
		h.End, h.Rests = seal.device.End.UTC(), seal.device.All()
	}
	return h
}
